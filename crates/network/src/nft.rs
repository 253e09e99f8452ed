//! nftables as netlink messages: transactions, sets, chains and the expressions that our rules
//! are made of. Only what is used, with the kernel's numbers.

mod expression;

use std::time::Duration;

pub(crate) use expression::{Expression, FIRST, SECOND, connection, meta};

use crate::{
    error::Result,
    netlink::{ACK, Attributes, Batch, CREATE, DUMP, Socket, attribute, attributes},
};

const SUBSYSTEM: u16 = 10;
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
/// The family of rules for both versions of IP.
const INET: u8 = 1;
const UNSPECIFIED: u8 = 0;

const fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

const NEW_TABLE: u16 = kind(0);
const GET_TABLE: u16 = kind(1);
const DESTROY_TABLE: u16 = kind(26);
const NEW_CHAIN: u16 = kind(3);
const NEW_RULE: u16 = kind(6);
const NEW_SET: u16 = kind(9);
const NEW_ELEMENTS: u16 = kind(12);
const GET_ELEMENTS: u16 = kind(13);
/// Unlike a plain deletion it does not mind if an element has run out in the meantime.
const DESTROY_ELEMENTS: u16 = kind(30);

/// Owned by the socket that made it, so that nobody else's reload flushes it; and still there
/// when that socket is gone.
const OWNED_AND_PERSISTENT: u32 = 2 | 4;

const LIST_ELEMENT: u16 = 1;
/// Of one message: its length is told in sixteen bits.
const LONGEST_LIST: usize = 48 << 10;

/// A transaction: everything in it takes effect at once, or nothing does.
#[derive(Debug)]
pub(crate) struct Transaction<'a> {
    table: &'a str,
    batch: Batch,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(table: &'a str) -> Self {
        let mut batch = Batch::default();
        batch.message("begin", (BEGIN, 0), &header(UNSPECIFIED, SUBSYSTEM), |_| ());
        Self { table, batch }
    }

    /// Puts it in force.
    pub(crate) fn commit(mut self, socket: &Socket) -> Result<()> {
        let end = header(UNSPECIFIED, SUBSYSTEM);
        self.batch.message("commit", (END, 0), &end, |_| ());
        socket.send(&self.batch)
    }

    fn add(
        &mut self,
        doing: &'static str,
        kind: (u16, u16),
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        // The table's name is the first attribute of everything.
        self.batch.message(doing, kind, &header(INET, 0), |a| {
            a.text(1, self.table);
            write(a);
        });
    }

    /// Removes the table, if it is there.
    pub(crate) fn destroy_table(&mut self) {
        self.add("remove the policy table", (DESTROY_TABLE, 0), |_| ());
    }

    pub(crate) fn table(&mut self, note: &str) {
        self.add("make the policy table", (NEW_TABLE, CREATE), |a| {
            a.be32(Table::FLAGS, OWNED_AND_PERSISTENT);
            if let Some(note) = Table::write_note(note) {
                a.bytes(Table::NOTE, &note);
            }
        });
    }

    /// A chain that is called from others, or from a hook of the kernel.
    pub(crate) fn chain(&mut self, name: &str, hook: Option<Hook>) {
        self.add("make a policy chain", (NEW_CHAIN, CREATE), |a| {
            a.text(3, name);
            if let Some(hook) = hook {
                a.nest(4, |a| {
                    a.be32(1, hook.number);
                    a.be32(2, hook.priority.cast_unsigned());
                });
                a.text(7, hook.kind);
            }
        });
    }

    /// Appends a rule.
    pub(crate) fn rule(&mut self, chain: &str, expressions: &[Expression<'_>]) {
        const APPEND: u16 = 0x800;
        self.add("add a policy rule", (NEW_RULE, CREATE | APPEND), |a| {
            a.text(2, chain);
            a.nest(4, |a| {
                for expression in expressions {
                    a.nest(LIST_ELEMENT, |a| expression.write(a));
                }
            });
        });
    }

    pub(crate) fn set(&mut self, set: &Set) {
        self.add("make a policy set", (NEW_SET, CREATE), |a| {
            a.text(2, set.name);
            a.be32(3, set.flags);
            // What `nft list` shows; the kernel does not look at it.
            a.be32(4, set.types.iter().fold(0, |all, kind| all << 6 | kind));
            a.be32(5, 4 * set.types.len() as u32);
            a.nest(9, |a| {
                if let Some(size) = set.size {
                    a.be32(1, size);
                }
                if set.flags & Set::CONCATENATED != 0 {
                    a.nest(2, |a| {
                        for _ in set.types {
                            a.nest(LIST_ELEMENT, |a| a.be32(1, 4));
                        }
                    });
                }
            });
            // Numbers sets within this transaction; names would do, but the kernel insists.
            a.be32(10, 1);
        });
    }

    /// Adds elements, or gives those that are there another time to live.
    pub(crate) fn add_elements(&mut self, set: &Set, elements: &[Element]) {
        self.elements("add to a policy set", (NEW_ELEMENTS, CREATE), set, elements);
    }

    /// Removes elements, if they are there.
    pub(crate) fn remove_elements(&mut self, set: &Set, elements: &[Element]) {
        let kind = (DESTROY_ELEMENTS, 0);
        self.elements("remove from a policy set", kind, set, elements);
    }

    fn elements(&mut self, doing: &'static str, kind: (u16, u16), set: &Set, all: &[Element]) {
        let mut rest = all;
        while !rest.is_empty() {
            let mut length = 0;
            let fits = |element: &&Element| {
                length += element.longest();
                length <= LONGEST_LIST
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            rest = later;
            self.add(doing, kind, |a| {
                a.text(2, set.name);
                a.nest(3, |a| {
                    for element in now {
                        a.nest(LIST_ELEMENT, |a| element.write(a));
                    }
                });
            });
        }
    }
}

fn header(family: u8, resource: u16) -> [u8; 4] {
    let [a, b] = resource.to_be_bytes();
    [family, 0, a, b]
}

/// Where in the kernel a chain begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    pub(crate) kind: &'static str,
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// A set of keys, each of one or more values of four bytes.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) name: &'static str,
    pub(crate) flags: u32,
    pub(crate) types: &'static [u32],
    pub(crate) size: Option<u32>,
}

impl Set {
    pub(crate) const RANGES: u32 = 0x4;
    pub(crate) const TIMED: u32 = 0x10;
    pub(crate) const DYNAMIC: u32 = 0x20;
    pub(crate) const CONCATENATED: u32 = 0x80;
    pub(crate) const ADDRESS: u32 = 7;
    pub(crate) const LINK: u32 = 20;
}

/// One element of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    /// The other end of a range, where the set has more than one value in a key.
    pub(crate) key_end: Option<Vec<u8>>,
    /// Ends a range, where the set has one value in a key.
    pub(crate) ends: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) note: Vec<u8>,
}

impl Element {
    const KEY: u16 = 1;
    const FLAGS: u16 = 3;
    const TIMEOUT: u16 = 4;
    const EXPIRATION: u16 = 5;
    const NOTE: u16 = 6;
    const KEY_END: u16 = 10;
    const INTERVAL_END: u32 = 1;
    const VALUE: u16 = 1;

    fn longest(&self) -> usize {
        96 + self.key.len() * 2 + self.note.len()
    }

    fn write(&self, a: &mut Attributes<'_>) {
        a.nest(Self::KEY, |a| a.bytes(Self::VALUE, &self.key));
        if let Some(end) = &self.key_end {
            a.nest(Self::KEY_END, |a| a.bytes(Self::VALUE, end));
        }
        if self.ends {
            a.be32(Self::FLAGS, Self::INTERVAL_END);
        }
        if let Some(timeout) = self.timeout {
            let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            a.bytes(Self::TIMEOUT, &millis.to_be_bytes());
        }
        if !self.note.is_empty() {
            a.bytes(Self::NOTE, &self.note);
        }
    }

    /// Reads an element as a dump shows it; its timeout is what is left of it.
    fn read(bytes: &[u8]) -> Option<Self> {
        let key = |kind| Some(attribute(attribute(bytes, kind)?, Self::VALUE)?.to_vec());
        let left = attribute(bytes, Self::EXPIRATION).and_then(|v| v.first_chunk::<8>());
        Some(Self {
            key: key(Self::KEY)?,
            key_end: key(Self::KEY_END),
            ends: false,
            timeout: left.map(|left| Duration::from_millis(u64::from_be_bytes(*left))),
            note: attribute(bytes, Self::NOTE).unwrap_or_default().to_vec(),
        })
    }
}

/// A table, as a dump shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// A socket owns it, which is open.
    pub(crate) is_owned: bool,
    pub(crate) note: String,
}

impl Table {
    const NAME: u16 = 1;
    const FLAGS: u16 = 2;
    const NOTE: u16 = 6;
    const OWNER: u16 = 7;
    /// How `nft` writes a comment: what it is, its length, and text with the zero at its end.
    const COMMENT: u8 = 0;

    fn write_note(note: &str) -> Option<Vec<u8>> {
        let length = u8::try_from(note.len() + 1)
            .ok()
            .filter(|_| !note.is_empty())?;
        // The kernel takes so much in all.
        (note.len() + 3 <= 256).then(|| [&[Self::COMMENT, length], note.as_bytes(), &[0]].concat())
    }

    fn read_note(bytes: &[u8]) -> Option<String> {
        let (&[Self::COMMENT, length], rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let text = rest.get(..usize::from(length))?.strip_suffix(&[0])?;
        String::from_utf8(text.to_vec()).ok()
    }

    fn read(body: &[u8]) -> Option<Self> {
        let name = attribute(body, Self::NAME)?.strip_suffix(&[0])?;
        let note = attribute(body, Self::NOTE).and_then(Self::read_note);
        Some(Self {
            name: String::from_utf8(name.to_vec()).ok()?,
            is_owned: attribute(body, Self::OWNER).is_some(),
            note: note.unwrap_or_default(),
        })
    }
}

/// All tables of the family that ours are of.
pub(crate) fn list_tables(socket: &Socket) -> Result<Vec<Table>> {
    let mut batch = Batch::default();
    let kind = (GET_TABLE, DUMP | ACK);
    batch.message("list the tables", kind, &header(INET, 0), |_| ());
    let mut found = Vec::new();
    socket.exchange(&batch, |kind, body| {
        if kind == NEW_TABLE
            && let Some(table) = body.get(4..).and_then(Table::read)
        {
            found.push(table);
        }
    })?;
    Ok(found)
}

/// What is in a set; nothing if there is no such set.
pub(crate) fn list_elements(socket: &Socket, table: &str, set: &Set) -> Result<Vec<Element>> {
    let mut batch = Batch::default();
    let kind = (GET_ELEMENTS, DUMP | ACK);
    batch.message("list a policy set", kind, &header(INET, 0), |a| {
        a.text(1, table);
        a.text(2, set.name);
    });
    let mut found = Vec::new();
    let listed = socket.exchange(&batch, |kind, body| {
        let list = body.get(4..).and_then(|body| attribute(body, 3));
        if kind == NEW_ELEMENTS
            && let Some(list) = list
        {
            found.extend(attributes(list).filter_map(|(_, element)| Element::read(element)));
        }
    });
    match listed {
        Err(crate::error::NetworkError::System { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(Vec::new())
        }
        other => other.map(|()| found),
    }
}
