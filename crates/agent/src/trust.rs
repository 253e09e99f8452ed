//! Certificates that the control plane wants trusted, for example those of its own egress proxy.
//!
//! They are a marked block at the end of the file that the image's programs read theirs from, so
//! that the next bundle replaces this one and nothing else. A copy lies where Debian's
//! `update-ca-certificates` looks, or its next run would forget them.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

const BEGIN: &str = "# begin of the sandbox's own certificates\n";
const END: &str = "# end of the sandbox's own certificates\n";
/// Where distributions keep the certificates that are trusted: Debian, Alpine and Arch; Fedora.
const FILES: [&str; 2] = [
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
];
const COPY: &str = "usr/local/share/ca-certificates/dormouse.crt";

/// Whether this is a bundle of certificates.
pub(crate) fn is_bundle(text: &str) -> bool {
    let count = |mark| text.matches(mark).count();
    let begun = count("-----BEGIN CERTIFICATE-----");
    begun > 0 && begun == count("-----END CERTIFICATE-----") && !text.contains("PRIVATE KEY")
}

/// Has the sandbox's programs trust a bundle, instead of the one before.
pub(crate) fn install(bundle: &str) -> io::Result<()> {
    install_in(Path::new("/"), bundle)
}

fn install_in(root: &Path, bundle: &str) -> io::Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in FILES.map(|file| root.join(file)) {
        // A distribution may have one of these as a link to the other.
        match fs::canonicalize(&file) {
            Ok(real) if !files.contains(&real) => files.push(real),
            Ok(_) | Err(_) => {}
        }
    }
    if files.is_empty() {
        files.push(root.join(FILES[0]));
    }
    for file in files {
        let old = match fs::read(&file) {
            Ok(old) => old,
            Err(why) if why.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(why) => return Err(why),
        };
        let new = with_block(&old, bundle);
        if new != old {
            replace(&file, &new)?;
        }
    }
    // An image whose /usr cannot be written has nobody who would rebuild the file above.
    replace(&root.join(COPY), bundle.as_bytes()).ok();
    Ok(())
}

/// The content of a file with this bundle as its block.
fn with_block(old: &[u8], bundle: &str) -> Vec<u8> {
    let find = |mark: &str| {
        old.windows(mark.len())
            .position(|part| part == mark.as_bytes())
    };
    let mut new = match (find(BEGIN), find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            [&old[..begin], &old[end + END.len()..]].concat()
        }
        _ => old.to_vec(),
    };
    if new.last().is_some_and(|last| *last != b'\n') {
        new.push(b'\n');
    }
    for part in [BEGIN, bundle.trim_end(), "\n", END] {
        new.extend_from_slice(part.as_bytes());
    }
    new
}

/// Whole or not at all, for whoever reads meanwhile.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let mut file = fs::File::create(&new)?;
    io::Write::write_all(&mut file, content)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "-----BEGIN CERTIFICATE-----\nQQ==\n-----END CERTIFICATE-----\n";
    const B: &str = "-----BEGIN CERTIFICATE-----\nQg==\n-----END CERTIFICATE-----";

    fn read(root: &Path, file: &str) -> String {
        fs::read_to_string(root.join(file)).unwrap()
    }

    #[test]
    fn a_bundle_replaces_the_one_before_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        fs::create_dir_all(root.join("etc/ssl/certs")).unwrap();
        fs::create_dir_all(root.join("etc/pki/tls/certs")).unwrap();
        replace(&root.join(FILES[0]), b"theirs").unwrap();
        std::os::unix::fs::symlink(
            "../../../ssl/certs/ca-certificates.crt",
            root.join(FILES[1]),
        )
        .unwrap();
        install_in(root, A).unwrap();
        install_in(root, A).unwrap();
        assert_eq!(read(root, FILES[1]), format!("theirs\n{BEGIN}{A}{END}"));
        install_in(root, B).unwrap();
        assert_eq!(read(root, FILES[0]), format!("theirs\n{BEGIN}{B}\n{END}"));
        assert_eq!(read(root, COPY), B);
        assert!(
            fs::symlink_metadata(root.join(FILES[1]))
                .unwrap()
                .is_symlink()
        );
    }

    #[test]
    fn an_image_that_trusts_nobody_gets_a_file() {
        let root = tempfile::tempdir().unwrap();
        install_in(root.path(), A).unwrap();
        assert_eq!(read(root.path(), FILES[0]), format!("{BEGIN}{A}{END}"));
    }

    #[test]
    fn what_is_no_bundle_is_known() {
        assert!(is_bundle(A));
        for text in [
            "",
            "x",
            "-----BEGIN CERTIFICATE-----",
            &A.replace("CERTIFICATE", "PRIVATE KEY"),
        ] {
            assert!(!is_bundle(text), "{text:?}");
        }
    }
}
