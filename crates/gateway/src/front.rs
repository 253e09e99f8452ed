//! The gateway's decisions for somebody else who moves the bytes.
//!
//! A proxy that stands in front shows the head of each request and hears what becomes of it: whom it
//! is for, whether it may go there, and what the client is answered if not. It is the same decision,
//! in the same order, as for the gateway's own clients, and it counts in the same place: what was
//! let in is inside until its [`Admitted`] is dropped.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header};
use routes::Route;

use crate::{
    activity::Held,
    address::Port,
    admit::{self, Entry},
    answer::{self, Refusal},
    decide::{Asking, Found, Refused},
    gateway::Shared,
    headers::masked_host,
    metrics::Outcome,
    names::Fields,
    progress, tcp,
    wake::{NoWake, Watch},
};

/// Decides. Clones are the same.
#[derive(Clone, Debug)]
pub struct Front(Arc<Shared>);

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Whom it names, where that is not among the headers.
    pub authority: Option<&'a [u8]>,
    /// Path and query.
    pub target: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Whether something follows.
    pub has_body: bool,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// It is inside, for as long as this is kept.
    Pass(Admitted),
    /// That takes a while: see [`Front::wait`].
    Wait(Waiting),
    /// It is for no sandbox, but there is an API that it may be for.
    Unaddressed,
    /// It is answered here.
    Answer(Answer),
}

/// What the client is answered in the sandbox's stead.
#[derive(Debug)]
pub struct Answer {
    /// All of it.
    pub response: Box<Response<Bytes>>,
    /// How it is counted.
    pub outcome: Outcome,
}

/// A request whose sandbox sleeps, or is to be looked for, or of which not enough is known yet.
#[derive(Debug)]
pub struct Waiting(Entry);

/// A request that is inside.
#[derive(Debug)]
pub struct Admitted {
    found: Found,
    held: Held,
}

impl Admitted {
    /// Where its sandbox is.
    #[must_use]
    pub fn route(&self) -> &Route {
        &self.found.route
    }

    /// The port it is for.
    #[must_use]
    pub const fn port(&self) -> Port {
        self.found.port
    }

    /// How much of its target is the address and not the sandbox's business.
    #[must_use]
    pub const fn prefix(&self) -> usize {
        self.found.prefix
    }

    /// Whether it asks for the port itself, not for an answer of the program there.
    #[must_use]
    pub const fn is_bare(&self) -> bool {
        self.found.is_bare
    }
}

impl<'a> Head<'a> {
    fn asking(&self) -> Asking<'a> {
        let (path, query) = match self.target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (self.target, None),
        };
        let upgrade = self.headers.get(header::UPGRADE);
        Asking {
            method: self.method,
            authority: self.authority,
            path,
            query,
            fields: Fields::Map(self.headers),
            has_body: self.has_body,
            is_bare: self.method == Method::GET && upgrade.is_some_and(|to| to == tcp::PROTOCOL),
            is_socket: false,
        }
    }

    /// How long it says that its body is.
    fn told(&self) -> u64 {
        let length = self.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok());
        length.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

impl Front {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// Lets a request in, or says why not.
    #[must_use]
    pub fn admit(&self, head: &Head<'_>) -> Verdict {
        self.verdict(head, admit::enter(&self.0, &head.asking(), head.told()))
    }

    /// The same after what it takes: waking its sandbox, or finding it. At most as long as
    /// [`crate::Options::wake_timeout`] says, and a few seconds.
    pub async fn wait(&self, head: &Head<'_>, waiting: Waiting) -> Verdict {
        let asking = head.asking();
        let mut entry = waiting.0;
        if let Entry::Behind(version) = entry {
            entry = progress::catch_up(&self.0, &asking, head.told(), version).await;
        }
        if matches!(entry, Entry::Search) {
            entry = admit::search(&self.0, &asking, head.told()).await;
        }
        if let Entry::Wake(found) = entry {
            let woken = match admit::park(&self.0, &found) {
                Ok(held) => admit::wake(&self.0, &asking, found, held).await,
                Err(refused) => Err(refused),
            };
            entry = match woken {
                Ok((found, held)) => Entry::In(found, held),
                Err(refused) => Entry::Refuse(refused),
            };
        }
        match entry {
            // Nobody is waited or looked for twice.
            Entry::Behind(_) | Entry::Search => {
                self.verdict(head, Entry::Refuse(Refusal::InvalidSignature.into()))
            }
            entry => self.verdict(head, entry),
        }
    }

    /// Waits for something that tells of the sandbox's answer, however often that is put to sleep
    /// before: it is woken then, if the request may do that.
    ///
    /// # Errors
    /// With what the client is answered if the sandbox sleeps and was not woken.
    pub async fn answered<T>(
        &self,
        head: &Head<'_>,
        admitted: &Admitted,
        answer: impl Future<Output = T>,
    ) -> Result<T, Answer> {
        let watch = Watch {
            routes: &self.0.ports.routes,
            wake: match admitted.found.may_wake {
                true => &*self.0.ports.wake,
                false => &NoWake,
            },
            timeout: self.0.options.wake_timeout,
        };
        let watched = watch.answer(admitted.route(), &admitted.held, answer).await;
        watched.map_err(|why| self.answer(head, admitted.found.refused(why.into())))
    }

    /// The host that the sandbox is told instead of the client's.
    ///
    /// # Errors
    /// With what the client is answered if there can be no such host.
    pub fn masked_host(
        &self,
        head: &Head<'_>,
        admitted: &Admitted,
    ) -> Result<Option<HeaderValue>, Answer> {
        let host = masked_host(admitted.route(), admitted.port());
        host.map_err(|refusal| self.answer(head, admitted.found.refused(refusal)))
    }

    /// How long waking may take.
    #[must_use]
    pub fn wake_timeout(&self) -> std::time::Duration {
        self.0.options.wake_timeout
    }

    fn verdict(&self, head: &Head<'_>, entry: Entry) -> Verdict {
        match entry {
            Entry::In(found, held) => Verdict::Pass(Admitted { found, held }),
            Entry::Wake(_) | Entry::Search | Entry::Behind(_) => Verdict::Wait(Waiting(entry)),
            Entry::Fallback => Verdict::Unaddressed,
            Entry::Preflight => Verdict::Answer(Answer {
                response: Box::new(answer::preflight(head.headers)),
                outcome: Outcome::Forwarded,
            }),
            Entry::Refuse(refused) => Verdict::Answer(self.answer(head, refused)),
        }
    }

    fn answer(&self, head: &Head<'_>, refused: Refused) -> Answer {
        let seen = head.asking().seen();
        let request_id = seen.request_id().unwrap_or_else(|| {
            let text = format!("{:016x}", self.0.ports.entropy.u64());
            HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("none"))
        });
        Answer {
            outcome: refused.refusal.outcome(),
            response: Box::new(refused.answer(seen.marks.is_navigation, request_id)),
        }
    }
}
