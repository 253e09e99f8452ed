//! Writable layers there and back: the tree that comes out is the tree that went in.

mod support;

use std::{fs, os::unix::fs::MetadataExt as _};

use runtime::{Observed, Runtime as _, WorkloadSpec};
use support::{Host, fence, fence_of, spec};

/// Everything a layer has to carry, made from inside.
const MAKE: &str = r#"
set -e
cd /home/user
mkdir -p deep/er empty; chmod 2750 deep
printf 'hello' > deep/er/file; chmod 4711 deep/er/file
chown 1000:100 deep; chown 33:1000 deep/er/file
ln deep/er/file hard; ln -s /etc/passwd soft; ln -s 'nowhere at all' broken; mkfifo -m 640 pipe
head -c 300000 /dev/urandom > random
touch -d '2001-02-03 04:05:06.789' old; touch -d '1969-01-01' ancient
name=$(printf 'n%.0s' $(seq 200)); mkdir -p $name/$name; echo long > $name/$name/$name
printf x > "$(printf 'not\377utf8')"; printf x > 'with
newline'; printf x > .wh.literal; printf x > deep/.wh..wh..opq
chown -h 1000:1000 soft
rm -rf /srv /etc/ssl; mkdir /etc/ssl; echo new > /etc/ssl/new
rm /etc/hostname; echo 127.0.0.1 changed > /etc/hosts
echo local > /usr/local/bin/tool
"#;

/// Attributes with values and names that a record has to quote, and capabilities.
const ATTRIBUTES: &str = r#"
import os
os.setxattr('/home/user/random', 'user.plain', b'value')
os.setxattr('/home/user/random', 'user.a=b', b'with\nnewline\0')
os.setxattr('/home/user/deep', 'user.directory', b'')
os.setxattr('/usr/local/bin/tool', 'security.capability', b'\x01\0\0\x02\0\x04' + b'\0' * 14)
"#;

/// A description of the whole tree as it is seen inside, times included.
const DESCRIBE: &str = r#"
import os, stat, hashlib
def one(path):
    s = os.lstat(path)
    more = ''
    if stat.S_ISREG(s.st_mode):
        more = hashlib.sha256(open(path, 'rb').read()).hexdigest()
    if stat.S_ISLNK(s.st_mode):
        more = repr(os.readlink(path))
    else:
        more += repr(sorted((n, os.getxattr(path, n)) for n in os.listxattr(path)))
    links = s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0
    print(repr(path), oct(s.st_mode), s.st_uid, s.st_gid, links, s.st_mtime_ns, more)
for top in [b'/etc', b'/home', b'/srv', b'/opt', b'/usr/local', b'/var']:
    for directory, directories, files in os.walk(top):
        one(directory)
        directories.sort()
        for name in sorted(files + [d for d in directories if os.path.islink(os.path.join(directory, d))]):
            one(os.path.join(directory, name))
"#;

fn python(host: &Host, uid: model::Uid, script: &str) -> String {
    let reply = host.run(uid, 0, &["/usr/bin/python3", "-c", script]);
    assert_eq!(reply.code, 0, "{}", reply.output);
    reply.output
}

#[tokio::test]
async fn what_is_restored_is_what_was_captured() {
    let host = Host::new();
    let at = fence(1, 1);
    // The first ids are another's, so that those of the second life differ from the first.
    host.runtime().create(at, &spec()).await.unwrap();
    host.sh(at.uid, MAKE);
    python(&host, at.uid, ATTRIBUTES);
    let before = python(&host, at.uid, DESCRIBE);
    assert!(before.contains("user.a=b"), "{before}");
    let owner = fs::metadata(host.upper(at.uid)).unwrap().uid();
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();

    let from = WorkloadSpec {
        from: Some(captured.digest.clone()),
        ..spec()
    };
    let again = fence_of(at.uid, 2, 1);
    host.runtime().create(again, &from).await.unwrap();
    assert_ne!(
        fs::metadata(host.upper(at.uid)).unwrap().uid(),
        owner,
        "other ids outside"
    );
    let after = python(&host, at.uid, DESCRIBE);
    for (before, after) in before.lines().zip(after.lines()) {
        assert_eq!(before, after);
    }
    assert_eq!(before.lines().count(), after.lines().count());

    host.runtime().freeze(again).await.unwrap();
    let twice = host.runtime().capture(again, None).await.unwrap();
    assert_eq!(twice.parent, Some(captured.digest));
    host.runtime().delete(again).await.unwrap();
}

#[tokio::test]
async fn a_damaged_layer_starts_nothing() {
    let host = Host::new();
    let at = fence(1, 1);
    host.runtime().create(at, &spec()).await.unwrap();
    host.sh(at.uid, "head -c 100000 /dev/zero > /home/user/zeroes");
    host.runtime().freeze(at).await.unwrap();
    let captured = host.runtime().capture(at, None).await.unwrap();
    host.runtime().delete(at).await.unwrap();
    let hex = captured.digest.as_str().trim_start_matches("sha256:");
    let file = host.data.join("layers/sha256").join(hex);
    assert_eq!(fs::metadata(&file).unwrap().len(), captured.size);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    kit::durable::write_file(&file, &bytes, 0o600).unwrap();

    let from = WorkloadSpec {
        from: Some(captured.digest),
        ..spec()
    };
    let refused = host.runtime().create(at, &from).await.unwrap_err();
    assert!(refused.to_string().contains("damaged"), "{refused}");
    assert_eq!(
        host.runtime().inspect(at.uid).await.unwrap(),
        Observed::Absent
    );
}
