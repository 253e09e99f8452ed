//! Builds at their end and after a restart, over a store in memory. Nothing here runs a step.

use std::{os::fd::OwnedFd, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use auth::{
    Ledger, Seal,
    quota::{Account, Size},
};
use cache::{Options as CacheOptions, PoolCache, SandboxCache, SnapshotCache, TemplateCache};
use kit::{Clock, Entropy, ManualClock, Tasks};
use model::{
    Digest, Metadata, Namespace, SandboxTemplate, Uid,
    sandbox::Owner,
    snapshot::DEFAULT_TAG,
    team::Quotas,
    template::{Built, TemplateSpec},
};
use runtime::{Family, Inside, RuntimeError};
use store::{
    Store, StoreExt as _,
    memory::{MemoryStore, WriteFault},
};
use tokio::time::Instant;

use crate::{
    ANNOTATION, Asked, Build, Builder, Made, Options, Ports, Recipe, Source, State, Wish, Workshop,
    WorkshopError, entries::Entry, error::Failure, job::Job,
};

#[derive(Debug)]
struct Nothing;

impl Inside for Nothing {
    fn socket(&self, uid: Uid, _: Family) -> Result<OwnedFd, RuntimeError> {
        Err(RuntimeError::Absent(uid))
    }
}

#[async_trait]
impl Workshop for Nothing {
    async fn fetch(&self, _: &Source) -> Result<Made, WorkshopError> {
        Err(WorkshopError {
            said: "there is none".into(),
        })
    }

    async fn commit(&self, _: &Digest, _: &str) -> Result<Made, WorkshopError> {
        Err(WorkshopError {
            said: "there is none".into(),
        })
    }

    async fn output(&self, _: Uid) -> Vec<String> {
        Vec::new()
    }
}

struct World {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
    entropy: Arc<Entropy>,
    store: Arc<MemoryStore>,
    tasks: Tasks,
}

fn team() -> Namespace {
    Namespace::new("a").unwrap()
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::starting_at(1_800_000_000_000_000));
        let entropy = Arc::new(Entropy::seeded(1));
        Self {
            directory: tempfile::tempdir().unwrap(),
            store: Arc::new(MemoryStore::new(clock.clone(), Arc::clone(&entropy))),
            clock,
            entropy,
            tasks: Tasks::default(),
        }
    }

    /// A server over what there is.
    async fn server(&self, options: Options) -> Arc<Builder> {
        let store: Arc<dyn Store> = self.store.clone();
        let deadline = Instant::now() + Duration::from_secs(10);
        let cached = || CacheOptions::new(Arc::clone(&self.entropy));
        let sandboxes = SandboxCache::start(store.clone(), cached(), deadline, &self.tasks);
        let sandboxes = sandboxes.await.unwrap();
        let pools = PoolCache::start(store.clone(), cached(), deadline, &self.tasks);
        let templates = TemplateCache::start(store.clone(), cached(), deadline, &self.tasks);
        let templates = templates.await.unwrap();
        let snapshots = SnapshotCache::start(store.clone(), cached(), deadline, &self.tasks);
        let size = Size {
            cpu_millis: 1000,
            memory_mib: 512,
        };
        let clock: Arc<dyn Clock> = self.clock.clone();
        let ports = Ports {
            store,
            pools: pools.await.unwrap(),
            snapshots: snapshots.await.unwrap(),
            clock,
            entropy: Arc::clone(&self.entropy),
            seal: Seal::new([7; 32]),
            ledger: Arc::new(Ledger::new(sandboxes.clone(), templates.clone(), size)),
            inside: Arc::new(Nothing),
            workshop: Arc::new(Nothing),
            sandboxes,
            templates,
        };
        let directory: &Path = self.directory.path();
        let builder = Builder::open(directory, ports, options, &self.tasks).unwrap();
        builder.recover().await;
        builder
    }
}

fn request(builder: &Builder, of: &str) -> Build {
    let owner = Owner {
        team: Namespace::new(of).unwrap(),
        user: None,
        key: None,
    };
    let wish = Wish {
        owner,
        name: "app".into(),
        tags: Vec::new(),
        resources: None,
    };
    builder.request(wish).unwrap()
}

fn entry(builder: &Builder, build: &Build) -> Arc<Entry> {
    Arc::clone(&builder.builds.lock()[&build.id])
}

/// A build that has done all its steps, and its record.
async fn built(builder: &Builder) -> Build {
    let build = request(builder, "a");
    entry(builder, &build).note(|build| build.asked = true);
    let mut meta = Metadata::new(None, build.record().unwrap());
    meta.annotations.insert(ANNOTATION, build.id.to_string());
    let spec = TemplateSpec {
        image: "base".into(),
        teams: vec![team()],
        build: Some(Box::new(Built {
            template: build.template.clone(),
            name: build.name.clone(),
            team: Some(team()),
            id: build.id,
            tags: Vec::new(),
        })),
        ..TemplateSpec::default()
    };
    let template = SandboxTemplate::new(meta, spec);
    let written = builder.on.store.create_object(&template).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let seen = builder
        .on
        .templates
        .wait_for_version(written.version(), deadline);
    seen.await.unwrap();
    build
}

async fn put(builder: &Builder, build: &Build) -> crate::Result<()> {
    let record = build.record().unwrap();
    let tags = [DEFAULT_TAG.into()];
    builder.put(&team(), &build.template, &record, &tags).await
}

fn job(builder: &Arc<Builder>, build: &Build) -> Job {
    let account = Account {
        team: team(),
        key: None,
        team_quotas: Quotas::default(),
        key_quotas: Quotas::default(),
    };
    let asked = Asked {
        from_image: Some("a".into()),
        ..Asked::default()
    };
    let recipe = Recipe::read(asked).unwrap();
    let entry = entry(builder, build);
    Job::new(Arc::clone(builder), entry, account, recipe, None)
}

fn failure() -> Failure {
    Failure {
        stage: None,
        message: "cut off".into(),
    }
}

fn meant(builder: &Builder) -> Uid {
    let tags = builder.tags(&team(), "app").unwrap();
    assert_eq!(tags.len(), 1, "{tags:?}");
    tags[0].build
}

#[tokio::test]
async fn a_build_whose_tags_moved_is_ready_whatever_went_wrong_then() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let first = built(&builder).await;
    put(&builder, &first).await.unwrap();
    // The write took effect, and its answer was lost.
    let second = built(&builder).await;
    world
        .store
        .faults()
        .fail_nth_write(1, WriteFault::FailAfter);
    assert!(put(&builder, &second).await.is_err());
    world.store.faults().clear();
    let outcome = job(&builder, &second).clean(Err(failure())).await;
    assert!(outcome.is_ok());
    assert_eq!(meant(&builder), second.id);
    // The old one could not be told that it has lost its tag.
    let third = built(&builder).await;
    let before = world.store.faults().writes();
    world
        .store
        .faults()
        .on_write(move |n| match n > before + 1 {
            true => WriteFault::FailBefore,
            false => WriteFault::None,
        });
    put(&builder, &third).await.unwrap();
    world.store.faults().clear();
    assert_eq!(meant(&builder), third.id);
}

#[tokio::test]
async fn a_build_that_is_given_up_before_leaves_the_template_as_it_was() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let first = built(&builder).await;
    put(&builder, &first).await.unwrap();
    let second = built(&builder).await;
    let outcome = job(&builder, &second).clean(Err(failure())).await;
    assert!(outcome.is_err());
    assert_eq!(meant(&builder), first.id);
    let left = world.store.truth();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn after_a_crash_a_build_is_what_its_record_says() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let published = built(&builder).await;
    put(&builder, &published).await.unwrap();
    let unpublished = built(&builder).await;
    let builder = world.server(Options::default()).await;
    let state = |build: &Build| entry(&builder, build).find().state;
    assert_eq!(state(&published), State::Ready);
    assert_eq!(state(&unpublished), State::Error);
    assert_eq!(meant(&builder), published.id);
    assert_eq!(world.store.truth().len(), 1);
}

#[tokio::test]
async fn a_tag_means_the_build_it_was_put_on_last_also_if_the_clock_went_back() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let first = built(&builder).await;
    put(&builder, &first).await.unwrap();
    world.clock.jump(-3_600_000_000);
    let second = built(&builder).await;
    put(&builder, &second).await.unwrap();
    assert_eq!(meant(&builder), second.id);
}

#[tokio::test]
async fn a_template_that_is_shared_stays_its_builders() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let build = built(&builder).await;
    put(&builder, &build).await.unwrap();
    let other = Namespace::new("b").unwrap();
    let record = build.record().unwrap();
    let shared = builder.amend(&record, |next| {
        next.spec.teams.push(other.clone());
        true
    });
    shared.await.unwrap();
    assert_eq!(builder.template_of(&team(), "app"), Some(build.template));
    assert_eq!(builder.template_of(&other, "app"), None);
}

#[tokio::test]
async fn a_build_that_could_not_be_written_is_as_it_was() {
    let world = World::new();
    let builder = world.server(Options::default()).await;
    let entry = entry(&builder, &request(&builder, "a"));
    std::fs::remove_dir_all(&entry.directory).unwrap();
    let started = entry.change(|build| {
        build.asked = true;
        Ok(())
    });
    assert!(started.is_err());
    assert!(!entry.find().asked);
}

#[tokio::test]
async fn each_team_keeps_its_own_last_builds() {
    let world = World::new();
    let options = Options {
        keep_builds: 2,
        ..Options::default()
    };
    let builder = world.server(options).await;
    let lone = request(&builder, "b");
    builder.end(&entry(&builder, &lone), Ok(()));
    let long = request(&builder, "a");
    let mut short = Vec::new();
    for _ in 0..3 {
        world.clock.jump(1_000_000);
        let build = request(&builder, "a");
        builder.end(&entry(&builder, &build), Ok(()));
        short.push(build.id);
    }
    world.clock.jump(1_000_000);
    builder.end(&entry(&builder, &long), Ok(()));
    builder.forget_old();
    let kept: Vec<Uid> = builder.builds.lock().keys().copied().collect();
    for id in [lone.id, long.id, short[2]] {
        assert!(kept.contains(&id), "{kept:?}");
    }
    assert_eq!(kept.len(), 3);
}
