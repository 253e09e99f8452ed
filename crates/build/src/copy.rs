//! COPY: uploaded files are brought into the sandbox and put in place there.
//!
//! The archive is looked through here and unpacked inside, by the image's own `tar`, as root inside.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
};

use bytes::Bytes;
use futures_util::stream;
use model::Level;
use tokio::sync::mpsc;

use crate::{
    archive,
    job::Job,
    recipe::Copy,
    room::{Command, Room},
    surroundings::Surroundings,
};

/// Unpacks, finds what the source means, and puts it in place. Directories that are there already
/// keep their owner and mode. A wildcard leads into a directory, and so does a `/` at the end of the
/// target; of a directory its content is copied.
const PLACE: &str = r#"
set -eu
stage=/tmp/.dormouse-copy.$$
mkdir "$stage"
trap 'rm -rf "$stage" "$stage.kept" "$ARCHIVE"' EXIT
tar -x -f "$ARCHIVE" -C "$stage"
cd "$stage"
case "$SOURCE" in
    *'**'*) find . -type f -o -type l > "$stage.kept"; set --; while IFS= read -r found; do set -- "$@" "$found"; done < "$stage.kept" ;;
    *) IFS=; set -- ./$SOURCE; unset IFS ;;
esac
if [ $# = 0 ] || { [ ! -e "$1" ] && [ ! -L "$1" ]; }; then
    echo "no uploaded file matches $SOURCE" >&2
    exit 1
fi
chown -hR "$OWNER" "$@"
if [ -n "$MODE" ]; then
    find "$@" -type f -exec chmod "$MODE" {} +
    find "$@" -type d -exec chmod "$DIRECTORY_MODE" {} +
fi
directory() {
    if [ ! -d "$1" ]; then
        parent=$(dirname "$1")
        [ -d "$parent" ] || directory "$parent"
        mkdir "$1"
        chown "$OWNER" "$1"
    fi
}
if [ $# = 1 ] && { [ ! -d "$1" ] || [ -L "$1" ]; }; then
    case "$TARGET" in */) into=yes ;; *) into=no; [ ! -d "$TARGET" ] || into=yes ;; esac
else
    into=yes
fi
if [ "$into" = no ]; then
    parent=$(dirname "$TARGET")
    (directory "$parent")
    cp -a "$1" "$TARGET"
    exit 0
fi
(directory "${TARGET%/}/")
for found in "$@"; do
    if [ -d "$found" ] && [ ! -L "$found" ]; then
        (cd "$found" && find . -type d) | while IFS= read -r below; do
            if [ -d "$TARGET/$below" ]; then stat -c '%a %u:%g %n' "$TARGET/$below"; fi
        done > "$stage.kept"
        cp -a "$found/." "$TARGET/"
        while IFS=' ' read -r mode owner name; do
            chown "$owner" "$name"
            chmod "$mode" "$name"
        done < "$stage.kept"
    else
        cp -a "$found" "$TARGET/"
    fi
done
"#;

impl Job {
    /// Brings the files of a step into the sandbox.
    pub(crate) async fn copy(
        &self,
        room: &Room,
        copy: &Copy,
        now: &Surroundings,
        mut hear: impl FnMut(Level, String) + Send,
    ) -> Result<(), String> {
        let builder = self.builder();
        let team = self.build().team().clone();
        let found = builder.shelf().read(&team, &copy.files);
        let found = found.map_err(|error| error.to_string())?;
        let file =
            found.ok_or_else(|| "its uploaded files are gone: upload them again".to_owned())?;
        // The same file: another may be uploaded under its name meanwhile.
        let same = file.try_clone().map_err(|error| error.to_string())?;
        let limits = builder.options.archives;
        let checked = tokio::task::spawn_blocking(move || {
            let content = archive::plain(file).map_err(|error| error.to_string())?;
            archive::check(content, limits)
        });
        checked.await.map_err(|error| error.to_string())??;
        let path = format!("/tmp/.dormouse-{}.tar", copy.files);
        let content = pieces(same);
        let uploaded = room.root().upload(&path, content).await;
        uploaded.map_err(|error| format!("bring its files into the sandbox: {error}"))?;
        let owner = match &copy.owner {
            Some(owner) if owner.contains(':') => owner.clone(),
            Some(owner) => format!("{owner}:"),
            None => format!("{}:", now.user),
        };
        let octal = |mode: u32| format!("{mode:04o}");
        let directory_mode = copy.mode.map(|mode| mode | (mode & 0o444) >> 2);
        let env: BTreeMap<String, String> = [
            ("ARCHIVE", path),
            ("SOURCE", copy.source.clone()),
            ("TARGET", now.place(&copy.target)),
            ("OWNER", owner),
            ("MODE", copy.mode.map(octal).unwrap_or_default()),
            (
                "DIRECTORY_MODE",
                directory_mode.map(octal).unwrap_or_default(),
            ),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        let words = ["/bin/sh", "-c", PLACE].map(String::from);
        let command = Command {
            words: &words,
            user: "root",
            directory: Some("/"),
            env: &env,
        };
        let mut last = String::new();
        let ended = room.run(command, |level, line| {
            last.clone_from(&line);
            hear(level, line);
        });
        let end = ended.await.map_err(|error| error.to_string())?;
        match end.exit_code {
            0 => Ok(()),
            _ => Err(format!("{}: {last}", end.status)),
        }
    }
}

/// The content of an archive, uncompressed, as it is sent.
fn pieces(file: std::fs::File) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let mut content = match archive::plain(file) {
            Ok(content) => content,
            Err(error) => return drop(sender.blocking_send(Err(error))),
        };
        let mut buffer = vec![0; 128 << 10];
        loop {
            let piece = match content.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(error) => Err(error),
            };
            let over = piece.is_err();
            if sender.blocking_send(piece).is_err() || over {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move {
        Some((receiver.recv().await?, receiver))
    })
}
