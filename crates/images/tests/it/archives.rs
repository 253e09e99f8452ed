//! Archives as nobody's library would write them.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;

/// An archive that is built block by block.
#[derive(Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

/// The fields of one header.
#[derive(Clone)]
pub(crate) struct Head<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: u64,
    pub(crate) size: Option<u64>,
}

impl Default for Head<'_> {
    fn default() -> Self {
        Self {
            path: b"",
            kind: b'0',
            link: b"",
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 1_000_000_000,
            size: None,
        }
    }
}

impl Tar {
    pub(crate) fn head(mut self, head: &Head<'_>, content: &[u8]) -> Self {
        let mut block = [0_u8; 512];
        let cut = head.path.len().min(100);
        block[..cut].copy_from_slice(&head.path[..cut]);
        let mut number = |at: usize, width: usize, value: u64| {
            let text = format!("{value:0width$o}", width = width - 1);
            block[at..at + width - 1].copy_from_slice(&text.as_bytes()[..width - 1]);
        };
        number(100, 8, head.mode.into());
        number(108, 8, head.uid.into());
        number(116, 8, head.gid.into());
        number(124, 12, head.size.unwrap_or(content.len() as u64));
        number(136, 12, head.mtime);
        block[156] = head.kind;
        let cut = head.link.len().min(100);
        block[157..157 + cut].copy_from_slice(&head.link[..cut]);
        block[257..265].copy_from_slice(b"ustar\x0000");
        seal(&mut block);
        self.0.extend(block);
        self.0.extend(content);
        self.pad()
    }

    /// What a header says about the next one.
    pub(crate) fn records(self, records: &[(&str, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            body.extend(format!("{length} {key}=").bytes());
            body.extend(*value);
            body.push(b'\n');
        }
        let head = Head {
            path: b"records",
            kind: b'x',
            ..Head::default()
        };
        self.head(&head, &body)
    }

    pub(crate) fn file(self, path: &str, content: &[u8]) -> Self {
        let head = Head {
            path: path.as_bytes(),
            ..Head::default()
        };
        self.head(&head, content)
    }

    pub(crate) fn entry(self, kind: u8, path: &str, link: &str) -> Self {
        let head = Head {
            path: path.as_bytes(),
            kind,
            link: link.as_bytes(),
            mode: 0o755,
            ..Head::default()
        };
        self.head(&head, b"")
    }

    pub(crate) fn directory(self, path: &str) -> Self {
        self.entry(b'5', path, "")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path, target)
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }

    fn pad(mut self) -> Self {
        let padded = self.0.len().next_multiple_of(512);
        self.0.resize(padded, 0);
        self
    }
}

/// Computes the checksum of a header.
pub(crate) fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}
