//! The sandbox that a build runs its steps in.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use agent_client::{Client, Event, StartOptions};
use cache::{SnapshotIndex, Term, WaitError};
use model::{
    Epoch, Key as RecordKey, Level, Metadata, Name, Namespace, Sandbox, SandboxId, SandboxSnapshot,
    lifecycle::{Traffic, traffic},
    sandbox::{Lease, Resources, SANDBOX_FINALIZER, SandboxSpec, Timeouts},
    snapshot::{DEFAULT_TAG, SnapshotPhase, SnapshotSpec},
};
use store::StoreExt as _;
use tokio::time::Instant;
use wire::{
    envd,
    process::{EndEvent, ProcessConfig, StartRequest},
};

use crate::{ANNOTATION, builder::Builder, job::Job, key::Key, log::Splitter};

/// How long a sandbox of a build may take to start; what it starts from may be large.
const STARTUP: Duration = Duration::from_secs(600);
/// How often a process that is silent gives a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(30);
const ROOT: &str = "root";
/// Runs its first word as a line of the login shell that clients' own commands run in, if there is
/// one.
const SHELL: &str =
    "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$0\"; fi; exec /bin/sh -l -c \"$0\"";

/// A line of a shell, as every command of a template is run.
pub(crate) fn shell(line: &str) -> [String; 4] {
    ["/bin/sh", "-c", SHELL, line].map(Into::into)
}

/// A command inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'c> {
    pub(crate) words: &'c [String],
    pub(crate) user: &'c str,
    pub(crate) directory: Option<&'c str>,
    pub(crate) env: &'c BTreeMap<String, String>,
}

/// A sandbox that runs.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) sandbox: Arc<Sandbox>,
    agent: Client,
}

impl Job {
    /// What the sandbox of this build is.
    pub(crate) fn room_spec(&self, id: &SandboxId) -> SandboxSpec {
        let builder = self.builder();
        let now = builder.now();
        SandboxSpec {
            owner: Some(self.build().owner),
            sandbox_id: Some(id.clone()),
            epoch: Epoch(1),
            claimed_at: Some(now),
            resources: self.resources(),
            timeouts: Timeouts {
                // Should this server die, and no other come.
                end_at: Some(now.plus(builder.options.timeout + STARTUP)),
                startup_seconds: u32::try_from(STARTUP.as_secs()).ok(),
                ..Timeouts::default()
            },
            lease: Some(Box::new(Lease {
                until: now.plus(STARTUP),
                holder: None,
            })),
            access: Some(Box::new(builder.on.seal.access(id, true))),
            ..SandboxSpec::default()
        }
    }

    /// What sandboxes of it may use: what was asked for, and else what its parent says.
    pub(crate) fn resources(&self) -> Option<Resources> {
        let own = self.build().resources;
        let inherited = self.parent().and_then(|parent| parent.spec.resources);
        let (Some(own), Some(inherited)) = (own, inherited) else {
            return own.or(inherited);
        };
        Some(Resources {
            cpu_millis: own.cpu_millis.or(inherited.cpu_millis),
            memory_mib: own.memory_mib.or(inherited.memory_mib),
            disk_mib: own.disk_mib.or(inherited.disk_mib),
        })
    }

    /// Makes a sandbox and waits until it is ready: from the image of a template's record, or from
    /// what a step has left.
    pub(crate) async fn open_room(
        &self,
        template: &Name,
        from: Option<&Name>,
    ) -> Result<Room, String> {
        let builder = self.builder();
        let on = &builder.on;
        let id = SandboxId::new(format!("i{}", SandboxId::from_random(on.entropy.u128())));
        let id = id.map_err(|error| error.to_string())?;
        let build = self.build();
        let name = Name::new(id.as_str()).map_err(|error| error.to_string())?;
        let mut meta = Metadata::new(Some(build.team().clone()), name);
        meta.finalizers = vec![SANDBOX_FINALIZER.into()];
        meta.annotations.insert(ANNOTATION, build.id.to_string());
        let spec = SandboxSpec {
            template: Some(template.clone()),
            snapshot: from.cloned(),
            ..self.room_spec(&id)
        };
        let reserved = on.ledger.reserve(self.account(), &id, &spec);
        let reserved = reserved.map_err(|exceeded| exceeded.to_string())?;
        let wanted = Sandbox::new(meta, spec);
        let key = wanted.key();
        // Before the write: what may be there is removed in any case.
        self.made(key.clone());
        let written = on.store.create_object(&wanted).await;
        let written = written.map_err(|error| error.to_string())?;
        reserved.written(written.version());
        let deadline = Instant::now() + STARTUP;
        let settled = |sandbox: Option<&Sandbox>| {
            sandbox.is_none_or(|s| matches!(traffic(s), Traffic::Running | Traffic::Dead))
        };
        let seen = async {
            let version = written.version();
            on.sandboxes.wait_for_version(version, deadline).await?;
            on.sandboxes.wait_for(&key, settled, deadline).await
        };
        let sandbox = match seen.await {
            Ok(Some(sandbox)) if traffic(&sandbox) == Traffic::Running => sandbox,
            Ok(Some(sandbox)) => return Err(why_it_ended(&sandbox)),
            Ok(None) => return Err("its sandbox was deleted".into()),
            Err(WaitError::DeadlineReached { .. }) => {
                let seconds = STARTUP.as_secs();
                return Err(format!(
                    "its sandbox was not ready within {seconds} seconds"
                ));
            }
            Err(error @ WaitError::CacheStopped(_)) => return Err(error.to_string()),
        };
        let agent = builder
            .agent(&sandbox, &id)
            .map_err(|error| error.to_string())?;
        Ok(Room { sandbox, agent })
    }
}

fn why_it_ended(sandbox: &Sandbox) -> String {
    let status = &sandbox.status;
    let stopped = status.stopped.as_ref().map(|s| s.message.clone());
    let operation = status.last_operation.as_ref();
    let error = operation.and_then(|op| op.error.clone());
    let why = error.or(stopped.filter(|message| !message.is_empty()));
    why.map_or_else(|| "it ended".into(), Into::into)
}

impl Builder {
    fn agent(&self, sandbox: &Sandbox, id: &SandboxId) -> Result<Client, agent_client::Error> {
        let (inside, uid) = (Arc::clone(&self.on.inside), sandbox.uid());
        let client = Client::new(move || runtime::dial(&*inside, uid, envd::PORT));
        let token = self.on.seal.agent_token(id);
        client.with_token(&wire::Secret::from(token.reveal().to_owned()))
    }

    /// What a step of these left, if it is still kept.
    pub(crate) fn find_kept(&self, team: &Namespace, key: Key) -> Option<Arc<SandboxSnapshot>> {
        let alias = alias_of(key);
        let term = Term::within(Some(team), &alias);
        let kept = self.on.snapshots.find_by(SnapshotIndex::Alias, term);
        kept.into_iter()
            .filter(|snapshot| {
                snapshot.status.phase == SnapshotPhase::Ready
                    && !snapshot.metadata.is_deleting()
                    && snapshot.metadata.annotations.contains_key(ANNOTATION)
            })
            .max_by_key(|snapshot| snapshot.status.captured_at)
    }
}

fn alias_of(key: Key) -> String {
    format!("build-{key}:{DEFAULT_TAG}")
}

impl Room {
    /// The agent, as root.
    pub(crate) fn root(&self) -> Client {
        self.agent.clone().as_user(ROOT)
    }

    /// Runs a command, and gives each line that it says to `hear`.
    pub(crate) async fn run(
        &self,
        command: Command<'_>,
        mut hear: impl FnMut(Level, String) + Send,
    ) -> Result<EndEvent, agent_client::Error> {
        let (program, args) = command.words.split_first().ok_or_else(|| {
            agent_client::Error::Protocol("a command without a program".to_owned())
        })?;
        let request = StartRequest {
            process: Some(ProcessConfig {
                cmd: program.clone(),
                args: args.to_vec(),
                envs: command.env.clone(),
                cwd: command.directory.map(Into::into),
            }),
            stdin: Some(false),
            ..StartRequest::default()
        };
        let options = StartOptions {
            keepalive: Some(KEEPALIVE),
            ..StartOptions::default()
        };
        let agent = self.agent.clone().as_user(command.user);
        let process = agent.start(&request, options).await?;
        let (mut out, mut err) = (Splitter::default(), Splitter::default());
        let end = process
            .wait(|event| {
                match event {
                    Event::Stdout(bytes) => out.push(&bytes, |line| hear(Level::Info, line)),
                    Event::Stderr(bytes) => err.push(&bytes, |line| hear(Level::Warn, line)),
                    Event::Pty(_) | Event::End(_) => {}
                }
                Ok::<(), agent_client::Error>(())
            })
            .await?;
        out.flush(|line| hear(Level::Info, line));
        err.flush(|line| hear(Level::Warn, line));
        Ok(end)
    }

    /// Keeps what is there now under a key.
    pub(crate) async fn keep(&self, job: &Job, key: Key) -> Result<Arc<SandboxSnapshot>, String> {
        let on = &job.builder().on;
        let options = &job.builder().options;
        let source = &self.sandbox.metadata;
        let name = Name::new(format!("b{}", SandboxId::from_random(on.entropy.u128())));
        let name = name.map_err(|error| error.to_string())?;
        let mut meta = Metadata::new(source.namespace.clone(), name);
        meta.annotations
            .insert(ANNOTATION, job.build().id.to_string());
        let spec = SnapshotSpec {
            sandbox_id: self.sandbox.spec.sandbox_id.clone(),
            alias: Some(alias_of(key).into()),
            expire_after_seconds: u32::try_from(options.keep_steps.as_secs()).ok(),
            ..SnapshotSpec::of(source.name.clone())
        };
        let wanted = SandboxSnapshot::new(meta, spec);
        let key: RecordKey = wanted.key();
        let written = on.store.create_object(&wanted).await;
        let written = written.map_err(|error| error.to_string())?;
        let deadline = Instant::now() + options.timeout;
        let settled = |snapshot: Option<&SandboxSnapshot>| {
            snapshot.is_none_or(|snapshot| {
                let phase = snapshot.status.phase;
                matches!(phase, SnapshotPhase::Ready | SnapshotPhase::Failed)
            })
        };
        let seen = async {
            let version = written.version();
            on.snapshots.wait_for_version(version, deadline).await?;
            on.snapshots.wait_for(&key, settled, deadline).await
        };
        match seen.await {
            Ok(Some(ready)) if ready.status.phase == SnapshotPhase::Ready => Ok(ready),
            Ok(Some(failed)) => {
                job.builder().discard(&key).await;
                Err(format!(
                    "what it left could not be kept: {}",
                    failed.status.reason
                ))
            }
            Ok(None) => Err("what it left was deleted".into()),
            Err(error) => Err(format!("what it left could not be kept: {error}")),
        }
    }
}
