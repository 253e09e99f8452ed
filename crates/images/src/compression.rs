//! Layers come plain, as gzip or as zstd; what they are is read from their first bytes, because
//! media types lie. What is written is the same for the same content each time.

use std::io::{self, BufRead, BufReader, Read, Write};

use crate::error::{ImageError, Result};

/// How a layer is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// As every tool reads it.
    Gzip,
    /// Several times as fast; tools of before 2022 do not read it.
    #[default]
    Zstd,
}

/// Fast, and what most writers of layers choose.
const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;

impl Compression {
    /// The media type of a layer that is compressed so.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::None => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Self::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }

    /// What the first bytes of a layer say.
    pub(crate) fn of(start: &[u8]) -> Result<Self> {
        let unsupported = |name: &str| ImageError::Unsupported {
            what: format!("a layer compressed with {name}").into(),
            why: "use gzip, zstd or no compression".into(),
        };
        match start {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Self::Zstd),
            // A skippable frame, as some writers of zstd put first.
            [first, 0x2a, 0x4d, 0x18, ..] if first & 0xf0 == 0x50 => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Err(unsupported("xz")),
            [b'B', b'Z', b'h', ..] => Err(unsupported("bzip2")),
            _ => Ok(Self::None),
        }
    }
}

/// Copies a layer, compressed.
pub(crate) fn compress(from: &mut dyn Read, to: impl Write, how: Compression) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 18, from);
    match how {
        Compression::None => {
            let mut to = to;
            io::copy(&mut from, &mut to)?;
            to.flush()
        }
        Compression::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut to = flate2::write::GzEncoder::new(to, level);
            io::copy(&mut from, &mut to)?;
            to.finish()?.flush()
        }
        Compression::Zstd => {
            let mut to = zstd::stream::write::Encoder::new(to, ZSTD_LEVEL)?;
            to.include_checksum(true)?;
            to.multithread(threads())?;
            io::copy(&mut from, &mut to)?;
            to.finish()?.flush()
        }
    }
}

/// More than a few gain little and take what sandboxes need.
fn threads() -> u32 {
    let there = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(there).unwrap_or(1).min(4)
}

/// What a layer holds, whatever it is compressed with.
pub(crate) fn decompressed<'a>(from: impl Read + Send + 'a) -> io::Result<Result<Layer<'a>>> {
    let mut from = BufReader::with_capacity(1 << 18, from);
    let compression = match Compression::of(from.fill_buf()?) {
        Ok(compression) => compression,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(match compression {
        Compression::None => Box::new(from),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(from)),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(from)?),
    }))
}

/// An archive's bytes.
pub(crate) type Layer<'a> = Box<dyn Read + Send + 'a>;
