//! How long the texts are that users write. The rules at the edge and the schemas of kinds go by these
//! numbers, so that an API server of Kubernetes refuses what is too long before it is stored. Rules
//! count bytes and schemas characters: a schema never refuses what the rules take.

use schemars::Schema;
use serde_json::Value;

/// A host name with a port, as `maskRequestHost`.
pub(crate) const HOST: usize = 255;
/// An address or a block of them.
pub(crate) const BLOCK: usize = 64;
/// A domain, with `*.` before it.
pub(crate) const DOMAIN: usize = 255;
/// Entries of a list of those.
pub(crate) const NETWORK_ENTRIES: usize = 256;
/// A person.
pub(crate) const PERSON: usize = 256;
/// A name for people.
pub(crate) const TITLE: usize = 128;
/// A SHA-256 in hexadecimal digits.
pub(crate) const SHA256: usize = 64;
/// The name of an image.
pub(crate) const IMAGE: usize = 512;
/// The same once a digest was found for it.
pub(crate) const PINNED_IMAGE: usize = IMAGE + "@sha256:".len() + SHA256;
/// A registry with a path.
pub(crate) const REGISTRY: usize = 512;
/// An alias with its tag.
pub(crate) const ALIAS: usize = 128;
/// Aliases of one template.
pub(crate) const ALIASES: usize = 64;
/// A user inside.
pub(crate) const USER: usize = 64;
/// A path inside, or of a request.
pub(crate) const PATH: usize = 4096;
/// Words of a command.
pub(crate) const WORDS: usize = 64;
/// One of them.
pub(crate) const WORD: usize = 64 << 10;
/// A variable with its name. The kernel takes no longer single string in an environment.
pub(crate) const VARIABLE: usize = (128 << 10) - 1;
/// All pairs of an owner's together.
pub(crate) const PAIRS: usize = 64 << 10;
/// The value of a header.
pub(crate) const HEADER: usize = 8 << 10;
/// The body of a request.
pub(crate) const BODY: usize = 64 << 10;
/// A name of Kubernetes.
pub(crate) const NAME: usize = 63;
/// The key of a label.
pub(crate) const LABEL_KEY: usize = 253 + 1 + NAME;
/// Such keys in a list.
pub(crate) const LABEL_KEYS: usize = 64;
/// A crontab.
pub(crate) const CRON: usize = 256;
/// The name of a time zone.
pub(crate) const TIME_ZONE: usize = 64;
/// Schedules of a pool.
pub(crate) const SCHEDULES: usize = 64;
/// Teams of a template.
pub(crate) const TEAMS: usize = 1000;
/// Public keys of a team.
pub(crate) const SSH_KEYS: usize = 256;
/// One of them.
pub(crate) const SSH_KEY: usize = 1024;

/// Bounds the values of a map in a schema.
pub(crate) fn values<const MOST: usize>(schema: &mut Schema) {
    if let Some(Value::Object(value)) = schema.get_mut("additionalProperties") {
        value.insert("maxLength".to_owned(), MOST.into());
    }
}
