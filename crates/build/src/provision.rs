//! What an image must have before steps run in it, and directories that steps name.

use std::collections::BTreeMap;

use crate::{
    error::Stage,
    job::Job,
    room::{Command, Room},
};

/// Sees to it that the user is there that commands run as. What there is of it is left alone.
const PROVISION: &str = r#"
set -eu
[ -e /etc/passwd ] || echo 'root:x:0:0:root:/root:/bin/sh' > /etc/passwd
[ -e /etc/group ] || echo 'root:x:0:' > /etc/group
field() {
    while IFS=: read -r name _ third rest || [ -n "$name" ]; do
        if [ "$1" = name ] && [ "$name" = "$2" ]; then echo "$third"; fi
        if [ "$1" = number ] && [ "$third" = "$2" ]; then echo "$name"; fi
    done < "$3"
}
append() {
    if [ -s "$2" ] && [ -n "$(tail -c 1 "$2")" ]; then echo >> "$2"; fi
    echo "$1" >> "$2"
}
if [ -z "$(field name user /etc/passwd)" ]; then
    number=1000
    while [ -n "$(field number $number /etc/passwd)$(field number $number /etc/group)" ]; do
        number=$((number + 1))
    done
    group=$(field name user /etc/group)
    if [ -z "$group" ]; then
        group=$number
        append "user:x:$group:" /etc/group
    fi
    shell=/bin/sh
    if [ -x /bin/bash ]; then shell=/bin/bash; fi
    append "user:x:$number:$group::/home/user:$shell" /etc/passwd
    if [ -e /etc/shadow ]; then append 'user:*:19000:0:99999:7:::' /etc/shadow; fi
    if [ ! -d /home/user ]; then
        mkdir -p /home/user
        chmod 755 /home/user
    fi
    chown "$number:$group" /home/user
fi
if [ -d /etc/sudoers.d ] && [ ! -e /etc/sudoers.d/user ]; then
    echo 'user ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/user
    chmod 440 /etc/sudoers.d/user
fi
"#;

/// Makes a directory with those above it, and gives what is new to a user.
const DIRECTORY: &str = r#"
set -eu
directory() {
    if [ ! -d "$1" ]; then
        parent=$(dirname "$1")
        [ -d "$parent" ] || (directory "$parent")
        mkdir "$1"
        chown "$OWNER:" "$1"
    fi
}
directory "$DIRECTORY"
"#;

impl Job {
    /// Prepares an image.
    pub(crate) async fn provision(&self, room: &Room) -> Result<(), String> {
        let words = ["/bin/sh", "-c", PROVISION].map(String::from);
        let command = Command {
            words: &words,
            user: "root",
            directory: Some("/"),
            env: &Default::default(),
        };
        let ended = room.run(command, |level, line| self.say(Stage::Base, level, line));
        let end = ended.await.map_err(|error| match error.code() {
            Some(wire::connect::Code::InvalidArgument) => {
                "the image has no /bin/sh: its steps cannot be run".to_owned()
            }
            _ => format!("prepare the image: {error}"),
        })?;
        match end.exit_code {
            0 => Ok(()),
            _ => Err(format!("the image could not be prepared: {}", end.status)),
        }
    }

    /// Makes a directory that steps run in.
    pub(crate) async fn make_directory(
        &self,
        room: &Room,
        stage: Stage,
        path: &str,
        owner: &str,
    ) -> Result<(), String> {
        let words = ["/bin/sh", "-c", DIRECTORY].map(String::from);
        let env = [("DIRECTORY", path), ("OWNER", owner)];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = Command {
            words: &words,
            user: "root",
            directory: Some("/"),
            env: &BTreeMap::from(env),
        };
        let ended = room.run(command, |level, line| self.say(stage, level, line));
        let end = ended.await.map_err(|error| error.to_string())?;
        match end.exit_code {
            0 => Ok(()),
            _ => Err(end.status),
        }
    }
}
