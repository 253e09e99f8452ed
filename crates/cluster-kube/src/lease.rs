//! Leading by a Lease (coordination.k8s.io/v1): of several processes of one role, one acts.
//!
//! The rules are [`candidate`]'s. Here they meet the API server: a candidate looks every two seconds,
//! takes the lease when it may, and from then on a task of its own renews it. A process that has led
//! and does no longer is not to act again: [`Leadership::lost`] tells it, at the latest when its own
//! clock says that another may lead. Who stops in an orderly way gives the lease up after its last act,
//! so that the next one need not wait.
//!
//! The crate `kube-leader-election` was looked at and not taken: it compares the wall clocks of two
//! machines.

pub mod candidate;

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff,
};
use kit::{Clock, Tasks};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use thiserror::Error;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::candidate::{Candidate, Next, Rules, Term};
use crate::{Cluster, ClusterError, Reason};

/// Why a lease cannot be read or written.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// This process may not: its role is too narrow.
    #[error(
        "not allowed to {verb} the lease {name}: grant get, create and update of leases \
         (coordination.k8s.io) to the service account"
    )]
    Forbidden {
        /// What was tried.
        verb: &'static str,
        /// Of which.
        name: Box<str>,
    },
    /// The API server refuses it, or fails.
    #[error("{verb} the lease {name}: {}", source.explain())]
    Failed {
        /// What was tried.
        verb: &'static str,
        /// Of which.
        name: Box<str>,
        /// What it said.
        source: ClusterError,
    },
    /// The API server does not answer.
    #[error("the API server does not answer")]
    Silent,
}

/// What is written.
#[derive(Clone, Debug)]
pub(crate) struct Write<'a> {
    over: Option<&'a str>,
    holder: Option<&'a str>,
    transitions: i32,
    duration: Duration,
    /// When it was taken, on the wall clock.
    since: i64,
    /// Now, on the wall clock. For people: nobody decides by it.
    now: i64,
}

/// Where the lease is.
#[async_trait]
pub(crate) trait Register: Send + Sync + Debug {
    /// What it says; nothing if there is none.
    async fn read(&self) -> Result<Option<Term>, LeaseError>;

    /// Writes it. Nothing if somebody else was first.
    async fn write(&self, write: Write<'_>) -> Result<Option<Term>, LeaseError>;
}

/// How a candidate stands, for its readiness and its log.
#[derive(Debug)]
pub enum Standing<'a> {
    /// Somebody else leads, or is about to.
    Waiting {
        /// Who.
        holder: Option<&'a str>,
    },
    /// The lease cannot be read or written now.
    Trouble(&'a LeaseError),
}

/// One process that wants to lead.
#[derive(Debug)]
pub struct Election {
    register: Arc<dyn Register>,
    candidate: Candidate,
    rules: Rules,
    clock: Arc<dyn Clock>,
}

impl Election {
    /// For the lease `name` of the own namespace. `me` names this process and no other, ever.
    #[must_use]
    pub fn new(
        cluster: &Cluster,
        name: &str,
        me: &str,
        rules: Rules,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let api = Api::namespaced(cluster.client(), cluster.namespace());
        let name = name.into();
        Self::over(Arc::new(Leases { api, name }), me, rules, clock)
    }

    fn over(register: Arc<dyn Register>, me: &str, rules: Rules, clock: Arc<dyn Clock>) -> Self {
        Self {
            register,
            candidate: Candidate::new(me, rules),
            rules,
            clock,
        }
    }

    /// Waits until this process leads. `tell` hears how it stands meanwhile, each time it has looked.
    pub async fn win(mut self, tasks: &Tasks, mut tell: impl FnMut(Standing<'_>)) -> Leadership {
        let since = loop {
            let wait = match self.look().await {
                Ok(None) => break self.clock.wall_micros(),
                Ok(Some(wait)) => {
                    let seen = self.candidate.seen();
                    let holder = seen.and_then(|term| term.holder.as_deref());
                    tell(Standing::Waiting { holder });
                    wait
                }
                Err(error) => {
                    tell(Standing::Trouble(&error));
                    self.rules.every
                }
            };
            sleep(wait).await;
        };
        Leadership::start(self, since, tasks)
    }

    /// Looks, and takes what may be taken. How long to wait, if it does not lead.
    async fn look(&mut self) -> Result<Option<Duration>, LeaseError> {
        let read = self.within(self.register.read()).await?;
        let next = self.candidate.read(read, self.clock.monotonic());
        let (over, transitions) = match next {
            Next::Wait(wait) => return Ok(Some(wait)),
            Next::Take { over, transitions } => (over, transitions),
        };
        match self
            .take(over.as_deref(), transitions, self.clock.wall_micros())
            .await?
        {
            true => Ok(None),
            false => Ok(Some(self.rules.every)),
        }
    }

    async fn renew(&mut self, since: i64) -> Result<(), LeaseError> {
        let mut next = self.candidate.next(self.clock.monotonic());
        if self.candidate.seen().is_none() {
            let read = self.within(self.register.read()).await?;
            next = self.candidate.read(read, self.clock.monotonic());
        }
        if let Next::Take { over, transitions } = next {
            self.take(over.as_deref(), transitions, since).await?;
        }
        Ok(())
    }

    async fn take(
        &mut self,
        over: Option<&str>,
        transitions: i32,
        since: i64,
    ) -> Result<bool, LeaseError> {
        let asked = self.clock.monotonic();
        let me: Box<str> = self.candidate.me().into();
        let write = Write {
            over,
            holder: Some(&me),
            transitions,
            duration: self.rules.duration,
            since,
            now: self.clock.wall_micros(),
        };
        let written = self.within(self.register.write(write)).await;
        match written.inspect_err(|_| self.candidate.doubted())? {
            Some(term) => {
                self.candidate.wrote(term, asked, self.clock.monotonic());
                Ok(self.candidate.leads(self.clock.monotonic()))
            }
            None => {
                self.candidate.refused();
                Ok(false)
            }
        }
    }

    /// One call that hangs must not use up the time in which others could succeed.
    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, LeaseError>>,
    ) -> Result<T, LeaseError> {
        let patience = self.rules.renew_within / 3;
        timeout(patience, call)
            .await
            .unwrap_or(Err(LeaseError::Silent))
    }

    /// Renews until told to stop, or until it leads no more. Answers whether it still leads.
    async fn hold(&mut self, since: i64, stop: &CancellationToken) -> bool {
        loop {
            let now = self.clock.monotonic();
            let until = self.candidate.leads_until().unwrap_or_default();
            let left = until.saturating_sub(now);
            if left.is_zero() {
                return false;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return true,
                () = sleep(self.rules.every.min(left)) => {}
            }
            // The lead ends on time even while a renewal is on its way.
            let left = until.saturating_sub(self.clock.monotonic());
            match timeout(left, self.renew(since)).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed"),
            }
        }
    }

    async fn give_up(&mut self, since: i64) {
        self.candidate.resigned();
        let Some(term) = self.candidate.seen().cloned() else {
            return;
        };
        let write = Write {
            over: Some(&term.version),
            holder: None,
            transitions: term.transitions,
            duration: Duration::from_secs(1),
            since,
            now: self.clock.wall_micros(),
        };
        // Who cannot give it up lets it run out.
        if let Err(error) = self.within(self.register.write(write)).await {
            tracing::warn!(%error, "the lease was not given up, and runs out");
        }
    }
}

/// What one who leads holds. Dropped, the lease is no longer renewed and runs out.
#[derive(Debug)]
pub struct Leadership {
    lost: CancellationToken,
    stop: CancellationToken,
    renewing: Option<JoinHandle<()>>,
}

impl Leadership {
    fn start(mut election: Election, since: i64, tasks: &Tasks) -> Self {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let (tell, stopping) = (lost.clone(), stop.clone());
        let renewing = tasks.spawn(async move {
            match election.hold(since, &stopping).await {
                true => election.give_up(since).await,
                false => tell.cancel(),
            }
        });
        Self {
            lost,
            stop,
            renewing: Some(renewing),
        }
    }

    /// Completes when this process leads no more, and must not act.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Gives it up. Whoever calls this acts no more.
    pub async fn release(mut self) {
        self.stop.cancel();
        if let Some(renewing) = self.renewing.take() {
            let _ = renewing.await;
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(renewing) = &self.renewing {
            renewing.abort();
        }
    }
}

/// A lease of a cluster.
#[derive(Clone)]
struct Leases {
    api: Api<Lease>,
    name: Box<str>,
}

impl Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Leases").field(&self.name).finish()
    }
}

impl Leases {
    fn failed(&self, verb: &'static str, error: kube::Error) -> LeaseError {
        let (name, source) = (self.name.clone(), ClusterError::from(error));
        match source.reason() {
            Some(Reason::Forbidden) => LeaseError::Forbidden { verb, name },
            _ => LeaseError::Failed { verb, name, source },
        }
    }
}

#[async_trait]
impl Register for Leases {
    async fn read(&self) -> Result<Option<Term>, LeaseError> {
        let found = self.api.get_opt(&self.name).await;
        let found = found.map_err(|error| self.failed("get", error))?;
        Ok(found.map(|lease| term_of(&lease)))
    }

    async fn write(&self, write: Write<'_>) -> Result<Option<Term>, LeaseError> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.to_string()),
                resource_version: write.over.map(Into::into),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                acquire_time: moment(write.since),
                renew_time: moment(write.now),
                // Empty, not absent: so do other clients.
                holder_identity: Some(write.holder.unwrap_or_default().into()),
                lease_duration_seconds: i32::try_from(write.duration.as_secs()).ok(),
                lease_transitions: Some(write.transitions),
                ..LeaseSpec::default()
            }),
        };
        let how = PostParams::default();
        let (verb, written) = match write.over {
            Some(_) => ("update", self.api.replace(&self.name, &how, &lease).await),
            None => ("create", self.api.create(&how, &lease).await),
        };
        match written {
            Ok(lease) => Ok(Some(term_of(&lease))),
            Err(kube::Error::Api(status)) if is_lost(Reason::of(&status), write.over) => Ok(None),
            Err(error) => Err(self.failed(verb, error)),
        }
    }
}

/// Whether a refusal means that somebody else was first: it has changed, is there, or is gone.
fn is_lost(reason: Reason, over: Option<&str>) -> bool {
    match reason {
        Reason::Conflict | Reason::AlreadyExists => true,
        Reason::NotFound => over.is_some(),
        _ => false,
    }
}

fn moment(micros: i64) -> Option<MicroTime> {
    jiff::Timestamp::from_microsecond(micros)
        .ok()
        .map(MicroTime)
}

fn term_of(lease: &Lease) -> Term {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    Term {
        holder: spec
            .holder_identity
            .filter(|holder| !holder.is_empty())
            .map(Into::into),
        duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease
            .metadata
            .resource_version
            .clone()
            .unwrap_or_default()
            .into(),
    }
}

#[cfg(test)]
mod tests;
