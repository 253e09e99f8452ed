//! As much of the messages of the domain system as a forwarder must understand. What comes in is
//! hostile: every length is checked, every name is bounded.

use std::{net::Ipv4Addr, time::Duration};

use crate::name::Name;

const HEADER: usize = 12;
const ADDRESS: u16 = 1;
const ALIAS: u16 = 5;
const ADDRESS_6: u16 = 28;
const INTERNET: u16 = 1;
/// Records of one answer that are looked at.
const MOST_RECORDS: usize = 256;

/// Outcomes.
pub(super) const FINE: u8 = 0;
pub(super) const FAILED: u8 = 2;
pub(super) const NO_SUCH_NAME: u8 = 3;

/// A question, as it came.
#[derive(Debug)]
pub(super) struct Question<'a> {
    pub(super) bytes: &'a [u8],
    /// None where it is no host's name.
    pub(super) name: Option<Name>,
    kind: u16,
    /// Where the question ends, and with it what an answer must repeat.
    end: usize,
}

impl<'a> Question<'a> {
    /// Reads a message that asks one thing in the ordinary way; anything else is none.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<HEADER>()?;
        let asks = header[2] & 0xf8 == 0;
        if !asks || header[4..6] != [0, 1] || header[6..10] != [0; 4] {
            return None;
        }
        let (labels, end) = labels(bytes, HEADER, false)?;
        let rest = bytes.get(end..end + 4)?;
        if u16::from_be_bytes([rest[2], rest[3]]) != INTERNET {
            return None;
        }
        Some(Self {
            bytes,
            name: Name::from_labels(labels.into_iter()),
            kind: u16::from_be_bytes([rest[0], rest[1]]),
            end: end + 4,
        })
    }

    pub(super) const fn wants_version_6(&self) -> bool {
        self.kind == ADDRESS_6
    }

    /// Whether a message answers this question, sent with this identifier.
    pub(super) fn is_answered_by(&self, answer: &[u8], id: [u8; 2]) -> bool {
        let asked = &self.bytes[HEADER..self.end];
        answer.len() >= HEADER
            && answer[..2] == id
            && answer[2] & 0x80 != 0
            && answer[4..6] == [0, 1]
            && answer
                .get(HEADER..self.end)
                .is_some_and(|said| said.eq_ignore_ascii_case(asked))
    }
}

/// An answer without records.
pub(super) fn refusal(question: &Question<'_>, outcome: u8) -> Vec<u8> {
    let mut answer = question.bytes[..question.end].to_vec();
    // An answer; recursion as wanted, and available.
    answer[2] = 0x80 | (answer[2] & 1);
    answer[3] = 0x80 | outcome;
    answer[4..HEADER].copy_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    answer
}

/// The addresses that an answer leads to, by the aliases that it names, and how long they hold.
pub(super) fn addresses(answer: &[u8], question: &Question<'_>) -> Vec<(Ipv4Addr, Duration)> {
    let mut found = Vec::new();
    let mut wanted = question.name.clone();
    let count = answer
        .get(6..8)
        .map_or(0, |c| usize::from(u16::from_be_bytes([c[0], c[1]])));
    let mut at = question.end;
    for _ in 0..count.min(MOST_RECORDS) {
        let Some((record, next)) = Record::read(answer, at) else {
            break;
        };
        at = next;
        if record.name.is_none() || record.name != wanted {
            continue;
        }
        match (record.kind, record.data) {
            (ALIAS, _) => {
                wanted = labels(answer, record.data_at, true)
                    .and_then(|(labels, _)| Name::from_labels(labels.into_iter()));
            }
            (ADDRESS, &[a, b, c, d]) => {
                let time = Duration::from_secs(record.time.into());
                found.push((Ipv4Addr::new(a, b, c, d), time));
            }
            _ => {}
        }
    }
    found
}

struct Record<'a> {
    name: Option<Name>,
    kind: u16,
    time: u32,
    data_at: usize,
    data: &'a [u8],
}

impl<'a> Record<'a> {
    fn read(bytes: &'a [u8], at: usize) -> Option<(Self, usize)> {
        let (labels, end) = labels(bytes, at, true)?;
        let head = bytes.get(end..)?.first_chunk::<10>()?;
        let length = usize::from(u16::from_be_bytes([head[8], head[9]]));
        let data_at = end + 10;
        let record = Self {
            name: Name::from_labels(labels.into_iter()),
            kind: u16::from_be_bytes([head[0], head[1]]),
            time: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            data_at,
            data: bytes.get(data_at..data_at + length)?,
        };
        Some((record, data_at + length))
    }
}

/// The labels of a name, and where what follows it begins. A name may go on elsewhere, but only
/// further to the front, so that it ends.
fn labels(bytes: &[u8], at: usize, may_go_on: bool) -> Option<(Vec<&[u8]>, usize)> {
    let mut labels = Vec::new();
    let (mut here, mut end, mut total) = (at, None, 0);
    loop {
        let length = usize::from(*bytes.get(here)?);
        match length {
            0 => return Some((labels, end.unwrap_or(here + 1))),
            1..=63 => {
                labels.push(bytes.get(here + 1..here + 1 + length)?);
                total += length + 1;
                if total > 254 {
                    return None;
                }
                here += 1 + length;
            }
            0xc0..=0xff if may_go_on => {
                let low = usize::from(*bytes.get(here + 1)?);
                let to = (length & 0x3f) << 8 | low;
                end.get_or_insert(here + 2);
                if to >= here {
                    return None;
                }
                here = to;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests;
