//! One build: from what it starts from, by its steps, to its end.

use std::{collections::VecDeque, sync::Arc};

use auth::quota::Account;
use model::{
    Digest, Key as RecordKey, Level, Metadata, Name, SandboxId, SandboxSnapshot, SandboxTemplate,
    template::{self, ImagePullPolicy, TemplateSpec},
};
use parking_lot::Mutex;
use store::StoreExt as _;
use tokio::time::Instant;

use crate::{
    ANNOTATION,
    builder::Builder,
    entries::Entry,
    error::{Failure, Refused, Stage},
    finish::Built,
    key::Key,
    log::Line,
    ports::{Made, Source},
    recipe::{Base, Instruction, Recipe},
    record::Build,
    room::{Command, Room, shell},
    surroundings::{Surroundings, USER, WORKDIR},
    tags::Withdrawn,
};

/// Lines of a command that failed which are part of the reason.
const LAST_LINES: usize = 8;

/// One build that is to run.
#[derive(Debug)]
pub(crate) struct Job {
    builder: Arc<Builder>,
    entry: Arc<Entry>,
    account: Account,
    recipe: Recipe,
    parent: Option<Arc<SandboxTemplate>>,
    /// Records that go when it is over.
    made: Mutex<Vec<RecordKey>>,
}

/// Where a build is after its steps.
pub(crate) struct Outcome {
    /// What the steps left; none if there were none to keep.
    pub(crate) layer: Option<Digest>,
    pub(crate) base: Made,
    pub(crate) now: Surroundings,
}

impl Job {
    pub(crate) fn new(
        builder: Arc<Builder>,
        entry: Arc<Entry>,
        account: Account,
        recipe: Recipe,
        parent: Option<Arc<SandboxTemplate>>,
    ) -> Self {
        Self {
            builder,
            entry,
            account,
            recipe,
            parent,
            made: Mutex::default(),
        }
    }

    pub(crate) fn builder(&self) -> &Builder {
        &self.builder
    }

    pub(crate) fn build(&self) -> Build {
        self.entry.find()
    }

    pub(crate) const fn account(&self) -> &Account {
        &self.account
    }

    pub(crate) const fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    pub(crate) fn parent(&self) -> Option<&SandboxTemplate> {
        self.parent.as_deref()
    }

    /// Notes a record that goes when this is over.
    pub(crate) fn made(&self, key: RecordKey) {
        self.made.lock().push(key);
    }

    /// Whether the team may have the sandbox that this needs.
    pub(crate) fn check_quota(&self) -> Result<(), Refused> {
        let random = SandboxId::from_random(self.builder.on.entropy.u128());
        let wanted = self.room_spec(&random);
        let reserved = self
            .builder
            .on
            .ledger
            .reserve(&self.account, &random, &wanted)?;
        // Taken again when its turn comes.
        drop(reserved);
        Ok(())
    }

    pub(crate) fn say(&self, stage: Stage, level: Level, message: impl Into<String>) {
        self.entry.log.add(Line {
            at: self.builder.now(),
            level,
            message: message.into(),
            step: Some(stage.to_string()),
        });
    }

    /// Builds.
    pub(crate) async fn run(&self) -> Result<Built, Failure> {
        let at_base = |error: String| Failure::at(Stage::Base, error);
        let base = self.fetch().await.map_err(at_base)?;
        let record = self.make_record(&base.image).await.map_err(at_base)?;
        let outcome = self.steps(&record, base).await?;
        self.finish(&record, outcome)
            .await
            .map_err(|why| Failure::at(Stage::Finish, why))
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.entry.deleted.is_cancelled()
    }

    /// Removes what only this needed. Answers how it went after all: what is in use by its tags is
    /// ready, whatever went wrong with it.
    pub(crate) async fn clean(&self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        let made = std::mem::take(&mut *self.made.lock());
        for key in made {
            self.builder.discard(&key).await;
        }
        let failure = match outcome {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        match self.build().record() {
            Ok(record) if self.builder.withdraw(&record).await == Withdrawn::InUse => Ok(()),
            Ok(_) | Err(_) => Err(failure),
        }
    }

    async fn fetch(&self) -> Result<Made, String> {
        let source = match (&self.recipe.base, &self.parent) {
            (
                Base::Image {
                    name,
                    identity,
                    trusted,
                },
                _,
            ) => {
                self.say(Stage::Base, Level::Info, format!("FROM {name}"));
                Source::Registry {
                    name: name.clone(),
                    identity: identity.clone(),
                    trusted: *trusted,
                }
            }
            (Base::Template(name), Some(parent)) => {
                self.say(Stage::Base, Level::Info, format!("FROM template {name}"));
                Source::Here(parent.spec.image.to_string())
            }
            (Base::Template(name), None) => return Err(format!("template {name:?} not found")),
        };
        let made = self.builder.on.workshop.fetch(&source).await;
        made.map_err(|error| error.to_string())
    }

    /// The record that this build becomes: until it is done, what its own sandbox is made from.
    async fn make_record(&self, image: &str) -> Result<Name, String> {
        let build = self.build();
        let name = build.record().map_err(|error| error.to_string())?;
        let mut meta = Metadata::new(None, name.clone());
        meta.annotations.insert(ANNOTATION, build.id.to_string());
        let parent = self.parent().map(|parent| &parent.spec);
        let spec = TemplateSpec {
            image: image.into(),
            image_pull_policy: ImagePullPolicy::Never,
            runtime_class: parent.map(|spec| spec.runtime_class).unwrap_or_default(),
            sudo: parent.is_none_or(|spec| spec.sudo),
            resources: self.resources(),
            hooks: parent.map(|spec| spec.hooks.clone()).unwrap_or_default(),
            user: Some("root".into()),
            pause_policy: parent.and_then(|spec| spec.pause_policy.clone()),
            teams: vec![build.team().clone()],
            build: Some(Box::new(template::Built {
                template: build.template.clone(),
                name: build.name.clone(),
                team: Some(build.team().clone()),
                id: build.id,
                tags: Vec::new(),
            })),
            ..TemplateSpec::default()
        };
        let on = &self.builder.on;
        let template = SandboxTemplate::new(meta, spec);
        let written = on.store.create_object(&template).await;
        let written = written.map_err(|error| error.to_string())?;
        // The control loop must know it before the sandbox that is made from it.
        let deadline = Instant::now() + std::time::Duration::from_secs(30);
        let seen = on.templates.wait_for_version(written.version(), deadline);
        seen.await.map_err(|error| error.to_string())?;
        Ok(name)
    }

    /// What the first step finds.
    fn surroundings(&self, base: &Made) -> Surroundings {
        let mut first = Surroundings::new(&base.env);
        if let Some(parent) = self.parent() {
            let pairs = parent.spec.env.iter();
            first.env = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            let user = parent.spec.user.as_deref().unwrap_or(USER);
            first.user = user.split(':').next().unwrap_or(USER).into();
            first.workdir = parent.spec.workdir.as_deref().unwrap_or(WORKDIR).into();
        }
        first
    }

    async fn steps(&self, record: &Name, base: Made) -> Result<Outcome, Failure> {
        let steps = &self.recipe.steps;
        let mut now = self.surroundings(&base);
        let env: Vec<String> = now.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let mut first = vec![now.user.as_str(), now.workdir.as_str()];
        first.extend(env.iter().map(String::as_str));
        let mut keys = vec![Key::of_base(&base.image, &first)];
        for step in steps {
            let key = keys[keys.len() - 1].then(&step.does);
            keys.push(key);
        }
        let kept = self.last_kept(&keys);
        let (done, mut last) = match kept {
            Some((done, snapshot)) => (Some(done), Some(snapshot)),
            None => (None, None),
        };
        for (at, step) in steps.iter().enumerate() {
            if done.is_some_and(|done| at < done) {
                let shown = step.does.shown();
                self.say(Stage::Step(at + 1), Level::Info, format!("CACHED {shown}"));
                now.follow(&step.does);
            }
        }
        let left = &steps[done.unwrap_or_default()..];
        let acts = |does: &Instruction| does.is_kept() || matches!(does, Instruction::Workdir(_));
        if done.is_some() && !left.iter().any(|step| acts(&step.does)) {
            left.iter().for_each(|step| now.follow(&step.does));
            return Ok(Outcome {
                layer: last.as_deref().and_then(layer_of),
                base,
                now,
            });
        }
        let from = last.as_ref().map(|snapshot| snapshot.metadata.name.clone());
        let stage = Stage::Step(done.map_or(1, |done| done + 1).min(steps.len()));
        let room = self.open_room(record, from.as_ref()).await;
        let room = room.map_err(|why| {
            let stage = if done.is_some() { stage } else { Stage::Base };
            Failure::at(stage, format!("its sandbox could not be started: {why}"))
        })?;
        if done.is_none() {
            let provisioned = self.provision(&room).await;
            provisioned.map_err(|why| Failure::at(Stage::Base, why))?;
            let snapshot = room.keep(self, keys[0]).await;
            last = Some(snapshot.map_err(|why| Failure::at(Stage::Base, why))?);
        }
        let mut unkept = false;
        for (at, step) in steps.iter().enumerate().skip(done.unwrap_or_default()) {
            let stage = Stage::Step(at + 1);
            self.say(stage, Level::Info, step.does.shown());
            let outcome = self.step(&room, stage, &step.does, &mut now).await;
            outcome.map_err(|why| Failure::at(stage, why))?;
            unkept |= acts(&step.does);
            if step.does.is_kept() {
                let snapshot = room.keep(self, keys[at + 1]).await;
                last = Some(snapshot.map_err(|why| Failure::at(stage, why))?);
                unkept = false;
            }
        }
        if unkept {
            let snapshot = room.keep(self, keys[steps.len()]).await;
            last = Some(snapshot.map_err(|why| Failure::at(Stage::Finish, why))?);
        }
        self.builder.discard(&room.sandbox.key()).await;
        Ok(Outcome {
            layer: last.as_deref().and_then(layer_of),
            base,
            now,
        })
    }

    /// The last state that is kept and may be used, and how many steps lead to it.
    fn last_kept(&self, keys: &[Key]) -> Option<(usize, Arc<SandboxSnapshot>)> {
        if self.recipe.force {
            return None;
        }
        let team = self.build().team().clone();
        let forced = self.recipe.steps.iter().position(|step| step.force);
        let most = forced.unwrap_or(self.recipe.steps.len());
        (0..=most).rev().find_map(|done| {
            let found = self.builder.find_kept(&team, keys[done])?;
            Some((done, found))
        })
    }

    async fn step(
        &self,
        room: &Room,
        stage: Stage,
        does: &Instruction,
        now: &mut Surroundings,
    ) -> Result<(), String> {
        match does {
            Instruction::Run { command, user } => {
                let user = user.as_deref().unwrap_or(&now.user);
                self.line(room, stage, command, user, now).await?;
            }
            Instruction::Copy(copy) => {
                let hear = |level, line| self.say(stage, level, line);
                self.copy(room, copy, now, hear)
                    .await
                    .map_err(|why| format!("failed to copy '{}': {why}", copy.source))?;
            }
            Instruction::Env(_) | Instruction::User(_) => {}
            Instruction::Workdir(path) => {
                self.make_directory(room, stage, &now.place(path), &now.user)
                    .await
                    .map_err(|why| format!("failed to make '{path}': {why}"))?;
            }
        }
        now.follow(does);
        Ok(())
    }

    /// Runs a line of a shell.
    async fn line(
        &self,
        room: &Room,
        stage: Stage,
        line: &str,
        user: &str,
        now: &Surroundings,
    ) -> Result<(), String> {
        let words = shell(line);
        let command = Command {
            words: &words,
            user,
            directory: Some(&now.workdir),
            env: &now.env,
        };
        let mut last = VecDeque::new();
        let ended = room.run(command, |level, line| {
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(line.clone());
            self.say(stage, level, line);
        });
        let failed = |why: String| format!("failed to run command '{line}': {why}");
        let end = ended.await.map_err(|error| match &error {
            agent_client::Error::Refused { code, message } => {
                failed(format!("command failed: {}: {message}", word(*code)))
            }
            other => failed(other.to_string()),
        })?;
        if end.exit_code == 0 {
            return Ok(());
        }
        let mut why = end.status;
        for line in last {
            why.push('\n');
            why.push_str(&line);
        }
        Err(failed(why))
    }
}

/// A code of the agent's in the words of its protocol.
fn word(code: wire::connect::Code) -> String {
    let value = serde_json::to_value(code).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// The layer that a snapshot keeps.
fn layer_of(snapshot: &SandboxSnapshot) -> Option<Digest> {
    let container = snapshot.status.containers.first();
    container.map(|container| container.digest.clone())
}
