//! Whether both sides belong together: to one installation, with one format.
//!
//! The key says that a process is one of ours. It may have been copied to another cluster, and an address may
//! be another process's by now; what a gateway of another installation knows of use is nothing of ours, and
//! would look like a gateway that saw nothing. So every question and every answer says whose it is, and
//! neither side takes what is not of its own.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use http::{HeaderMap, HeaderName, HeaderValue};

/// The format of what is asked and answered. Those who speak another do not speak to each other.
pub const FORMAT: u32 = 1;

const INSTALLATION: HeaderName = HeaderName::from_static("dormouse-installation");
const SPOKEN: HeaderName = HeaderName::from_static("dormouse-peers-format");

/// Why the other side is nobody to speak to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Stranger {
    /// It speaks another format, or none.
    #[error(
        "it speaks another format of the protocol between gateways and control: is it another version?"
    )]
    Format,
    /// It belongs to another installation.
    #[error("it belongs to another installation: do two of them share a peer key?")]
    Installation,
}

impl Stranger {
    /// The word for it in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Installation => "installation",
        }
    }
}

/// The name of an installation cannot be sent.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the name of the installation has characters that cannot be sent")]
pub struct Unspeakable;

/// Who one's own are, and how many strangers were met. Clones share the count.
#[derive(Clone, Debug)]
pub struct Kin {
    installation: HeaderValue,
    met: Arc<[AtomicU64; 2]>,
}

impl Kin {
    /// Those of this installation.
    ///
    /// # Errors
    /// If its name has control characters.
    pub fn of(installation: &str) -> Result<Self, Unspeakable> {
        let installation = HeaderValue::from_bytes(installation.as_bytes());
        Ok(Self {
            installation: installation.map_err(|_| Unspeakable)?,
            met: Arc::default(),
        })
    }

    /// Says whose a question or an answer is.
    pub(crate) fn sign(&self, headers: &mut HeaderMap) {
        headers.insert(INSTALLATION, self.installation.clone());
        headers.insert(SPOKEN, HeaderValue::from(FORMAT));
    }

    /// Looks whose it is. The format first: what else another one says may mean something else.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Stranger> {
        if headers.get(SPOKEN) != Some(&HeaderValue::from(FORMAT)) {
            return Err(Stranger::Format);
        }
        if headers.get(INSTALLATION) != Some(&self.installation) {
            return Err(Stranger::Installation);
        }
        Ok(())
    }

    /// Counts one; answers whether it is the first of its sort.
    pub(crate) fn meet(&self, stranger: Stranger) -> bool {
        self.counter(stranger).fetch_add(1, Ordering::Relaxed) == 0
    }

    /// How many were met, of each sort.
    #[must_use]
    pub fn strangers(&self) -> BTreeMap<Stranger, u64> {
        let sorts = [Stranger::Format, Stranger::Installation];
        let count = |sort| (sort, self.counter(sort).load(Ordering::Relaxed));
        sorts.into_iter().map(count).collect()
    }

    fn counter(&self, stranger: Stranger) -> &AtomicU64 {
        let [format, installation] = &*self.met;
        match stranger {
            Stranger::Format => format,
            Stranger::Installation => installation,
        }
    }
}
