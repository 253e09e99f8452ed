//! What engines have left in the kernel. A table and links outlive their server, because sandboxes do;
//! who never starts again never takes them away.

use crate::{
    error::Result,
    link,
    netlink::Socket,
    network::{TABLE, group_of, table_of},
    nft::{self, Transaction},
};

/// What an engine has left that no process owns now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Whose it was.
    pub instance: String,
    /// What it was told to say of itself.
    pub note: String,
}

/// What engines have left in the network namespace of the calling thread.
///
/// # Errors
/// If the kernel does not say.
pub fn left() -> Result<Vec<Left>> {
    let tables = nft::list_tables(&Socket::netfilter()?)?;
    let unowned = tables.into_iter().filter(|table| !table.is_owned);
    let left = unowned.filter_map(|table| {
        Some(Left {
            instance: table.name.strip_prefix(TABLE)?.to_owned(),
            note: table.note,
        })
    });
    Ok(left.collect())
}

impl Left {
    /// Takes it: from now on no other process can have it, until this is dropped.
    ///
    /// # Errors
    /// If a process owns it by now: then nothing has changed. Or if the kernel refuses otherwise.
    pub fn take(&self) -> Result<Taken> {
        let taken = Taken {
            instance: self.instance.clone(),
            owner: Socket::netfilter()?,
        };
        let table = table_of(&taken.instance);
        let mut t = Transaction::new(&table);
        // One that is there stays as it is, but for its owner.
        t.table(&self.note);
        t.commit(&taken.owner)?;
        Ok(taken)
    }
}

/// What an engine has left, and this process has now. What is not removed is left again.
#[derive(Debug)]
pub struct Taken {
    instance: String,
    owner: Socket,
}

impl Taken {
    /// Removes it, with the links of its sandboxes.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(self) -> Result<()> {
        let host = Socket::route()?;
        let links = link::list(&host, group_of(&self.instance))?;
        link::remove(&host, &links)?;
        // Last: by it the rest is found again.
        let table = table_of(&self.instance);
        let mut t = Transaction::new(&table);
        t.destroy_table();
        t.commit(&self.owner)
    }
}
