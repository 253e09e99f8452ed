//! What repositories have served to this host.
//!
//! A digest is no proof that whoever names it may have what it names, and whoever may write to a
//! repository names what he likes in it. So a pull takes nothing that happens to be here: its
//! repository has to serve every byte of it, once, whoever pulls and with whatever credentials. The
//! same repository serves it to others too, so it is not asked again, neither by this process nor,
//! as long as an image that was pulled from that repository has its name here, by the next one. What
//! was imported or made here under such a name is not of that repository.

use std::collections::BTreeSet;

use model::Digest;
use parking_lot::Mutex;

use super::session::Session;
use crate::{
    digest::digest_of,
    store::{Image, Inner},
};

/// More than this is not remembered: what is forgotten is served again.
const MOST: usize = 1 << 16;

/// What was served, and by which repository.
#[derive(Debug, Default)]
pub(super) struct Served(Mutex<BTreeSet<(Box<str>, Digest)>>);

impl Session<'_> {
    /// The same, for a pull: it takes what its repository serves, or has served before.
    pub(super) fn proving(mut self, store: &Inner) -> Self {
        self.proves = true;
        for image in store.served_by(self.reference) {
            let parts = image.blobs().chain(image.diff_ids());
            parts.for_each(|part| self.note_served(part));
        }
        self
    }

    /// Notes what the repository has served, or proven by what it served.
    pub(super) fn note_served(&self, digest: &Digest) {
        let mut served = self.registry.served.0.lock();
        if served.len() >= MOST {
            served.clear();
        }
        served.insert((self.repository(), digest.clone()));
    }

    /// Whether what is on this host may be taken without being served.
    pub(super) fn may_take(&self, digest: &Digest) -> bool {
        !self.proves || {
            let served = self.registry.served.0.lock();
            served.contains(&(self.repository(), digest.clone()))
        }
    }

    /// The same of a whole image.
    pub(super) fn may_take_image(&self, image: &Image) -> bool {
        let mut parts = image.blobs().chain(image.diff_ids());
        parts.all(|part| self.may_take(part))
    }

    /// Whether a blob is here and may be taken.
    pub(super) fn has(&self, store: &Inner, digest: &Digest) -> bool {
        self.may_take(digest) && store.blob(digest).exists()
    }

    /// What a download is called while it is under way. One that has to prove itself does not go on
    /// where another repository broke off.
    pub(super) fn download_name(&self, digest: &Digest) -> Digest {
        match self.proves {
            true => digest_of(format!("{digest} of {}", self.repository()).as_bytes()),
            false => digest.clone(),
        }
    }

    fn repository(&self) -> Box<str> {
        let (registry, repository) = (self.reference.registry(), self.reference.repository());
        format!("{registry}/{repository}").into()
    }
}
