//! Builds that wait, run and are over.
//!
//! ```text
//!  request ─▶ waiting ──start──▶ (in line) ──▶ building ──▶ ready
//!                 │                  │             ├──────▶ error: a step failed, it took too long
//!                 └── forgotten      └─ deleted ───┴──────▶ gone, with its template
//!             the server died: error at the next start, or ready, if its tags were moved
//! ```
//!
//! What is to be built is in memory only, for it may carry credentials: a build does not survive its
//! server. What its steps left does, so the next one is short.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use auth::quota::Account;
use kit::Tasks;
use model::{
    Name, Namespace, SandboxId, SandboxTemplate, Timestamp, Uid,
    sandbox::{Owner, Resources},
    snapshot::DEFAULT_TAG,
    validate::is_alias,
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    ANNOTATION, archive,
    entries::Entry,
    error::{Doing as _, Failure, Refused, Result},
    finish::Built,
    job::Job,
    log::{Line, Log, Page},
    ports::Ports,
    recipe::{Instruction, Recipe},
    record::{Build, State},
    shelf::{self, Shelf},
    tags::{MAX_TAGS, Withdrawn},
    turns::Turns,
};

/// Bounds on builds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How many run at once.
    pub concurrent: usize,
    /// How many of a team may wait or run.
    pub per_team: usize,
    /// How long one may take, from when it is its turn.
    pub timeout: Duration,
    /// How long what a step left is kept.
    pub keep_steps: Duration,
    /// How many of a team that are over are remembered.
    pub keep_builds: usize,
    /// What may be uploaded.
    pub uploads: shelf::Room,
    /// What an upload may hold.
    pub archives: archive::Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrent: 2,
            per_team: 20,
            timeout: Duration::from_secs(3600),
            keep_steps: Duration::from_secs(7 * 24 * 3600),
            keep_builds: 200,
            uploads: shelf::Room::default(),
            archives: archive::Limits::default(),
        }
    }
}

/// What a client wants a build for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Whose it will be.
    pub owner: Owner,
    /// `[team/]name[:tag]`.
    pub name: String,
    /// More tags.
    pub tags: Vec<String>,
    /// What sandboxes of it may use.
    pub resources: Option<Resources>,
}

/// All builds of this server.
#[derive(Debug)]
pub struct Builder {
    pub(crate) on: Ports,
    pub(crate) options: Options,
    pub(crate) directory: PathBuf,
    shelf: Shelf,
    pub(crate) builds: Mutex<BTreeMap<Uid, Arc<Entry>>>,
    turns: Turns,
    /// Tags are moved by one at a time.
    pub(crate) tagging: tokio::sync::Mutex<()>,
    tasks: Tasks,
}

impl Builder {
    /// Opens the builds of a directory. What became of those that a server was at when it died is
    /// found out by [`Self::recover`].
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn open(
        directory: &Path,
        on: Ports,
        options: Options,
        tasks: &Tasks,
    ) -> io::Result<Arc<Self>> {
        fs::create_dir_all(directory.join("records"))?;
        let shelf = Shelf::open(
            directory.join("files"),
            options.uploads,
            Arc::clone(&on.clock),
        )?;
        let builder = Self {
            turns: Turns::new(options.concurrent),
            directory: directory.join("records"),
            on,
            options,
            shelf,
            builds: Mutex::default(),
            tagging: tokio::sync::Mutex::default(),
            tasks: tasks.clone(),
        };
        builder.load()?;
        Ok(Arc::new(builder))
    }

    /// Ends the builds of a server that died, and removes what they have left. Call it once the
    /// control loop runs, before any build is started.
    pub async fn recover(&self) {
        for entry in self.open_builds() {
            let record = entry.find().record();
            let outcome = match record {
                Ok(record) if self.withdraw(&record).await == Withdrawn::InUse => Ok(()),
                Ok(_) | Err(_) => Err(Failure {
                    stage: None,
                    message: "the server was stopped while it was built: build it again; what its \
                              steps had left is used again"
                        .into(),
                }),
            };
            self.end(&entry, outcome);
        }
        for sandbox in self.on.sandboxes.find_all() {
            if sandbox.metadata.annotations.contains_key(ANNOTATION) {
                self.discard(&sandbox.key()).await;
            }
        }
        for template in self.on.templates.find_all() {
            if template.metadata.annotations.contains_key(ANNOTATION) {
                self.withdraw(&template.metadata.name).await;
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.on.clock.wall_micros())
    }

    /// Where uploaded files are.
    #[must_use]
    pub const fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Gives a build its id, and its template one, if it is the first of it.
    ///
    /// # Errors
    /// If the name or a tag is none, or the team has too many builds.
    pub fn request(&self, wish: Wish) -> Result<Build> {
        let team = wish.owner.team.clone();
        let (name, tag) = plain(&team, &wish.name)?;
        let mut tags: Vec<Box<str>> = Vec::new();
        for tag in tag.into_iter().chain(wish.tags.iter().map(String::as_str)) {
            if !is_alias(&format!("{name}:{tag}")) {
                let why =
                    format!("{tag:?} is not a tag: use lower-case letters, digits, -, _ and .");
                return Err(Refused::bad("tags", why));
            }
            if !tags.iter().any(|known| &**known == tag) {
                tags.push(tag.into());
            }
        }
        if tags.is_empty() {
            tags.push(DEFAULT_TAG.into());
        }
        if tags.len() > MAX_TAGS {
            return Err(Refused::bad("tags", format!("use at most {MAX_TAGS}")));
        }
        let now = self.now();
        self.forget_unasked(now);
        let mut builds = self.builds.lock();
        let mut open = 0;
        let mut template = None;
        for entry in builds.values() {
            let build = entry.build.lock();
            if *build.team() == team {
                open += usize::from(!build.state.is_over());
                if &*build.name == name {
                    template = Some(build.template.clone());
                }
            }
        }
        if open >= self.options.per_team {
            let why = format!("the team has {open} builds that wait or run: wait for them");
            return Err(Refused::TooMany(why.into()));
        }
        let template = match self.template_of(&team, name).or(template) {
            Some(template) => template,
            None => self.mint()?,
        };
        let build = Build {
            id: Uid::from_random(self.on.entropy.u128()),
            template,
            name: name.into(),
            tags,
            owner: wish.owner,
            resources: wish.resources,
            state: State::Waiting,
            asked: false,
            created_at: now,
            finished_at: None,
            reason: None,
        };
        let directory = self.directory.join(build.id.to_string());
        let entry = Arc::new(Entry {
            log: Log::closed(directory.join("log.jsonl")),
            build: Mutex::new(build.clone()),
            deleted: CancellationToken::new(),
            directory,
            writing: Mutex::default(),
        });
        builds.insert(build.id, Arc::clone(&entry));
        // The disk is nobody's business who asks about other builds.
        drop(builds);
        let written = fs::create_dir(&entry.directory)
            .doing("make a directory for a build")
            .and_then(|()| entry.log.open().doing("open the log of a build"))
            .and_then(|()| entry.change(|_| Ok(())));
        if let Err(error) = written {
            self.builds.lock().remove(&build.id);
            fs::remove_dir_all(&entry.directory).ok();
            return Err(error);
        }
        Ok(build)
    }

    fn mint(&self) -> Result<Name> {
        let random = SandboxId::from_random(self.on.entropy.u128());
        let made = Name::new(format!("t{random}"));
        made.map_err(|error| Refused::bad("name", error.to_string()))
    }

    /// A build of a team's template.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, team: &Namespace, template: &str, id: &str) -> Result<Build> {
        Ok(self.entry(team, template, id)?.find())
    }

    /// Some lines of what a build said.
    ///
    /// # Errors
    /// If there is no such build.
    pub async fn lines(
        &self,
        team: &Namespace,
        template: &str,
        id: &str,
        page: Page,
    ) -> Result<Vec<Line>> {
        let entry = self.entry(team, template, id)?;
        let read = tokio::task::spawn_blocking(move || entry.log.page(&page)).await;
        read.map_err(io::Error::other)
            .doing("read what a build said")
    }

    /// The builds of a template, newest first.
    #[must_use]
    pub fn builds(&self, team: &Namespace, template: &str) -> Vec<Build> {
        let builds = self.builds.lock();
        let mut all: Vec<Build> = builds
            .values()
            .map(|entry| entry.find())
            .filter(|build| build.team() == team && build.template.as_str() == template)
            .collect();
        all.sort_by_key(|build| std::cmp::Reverse((build.created_at, build.id)));
        all
    }

    /// The template of a name that was asked for, whether or not it was ever built.
    #[must_use]
    pub fn requested(&self, team: &Namespace, name: &str) -> Option<Name> {
        let builds = self.builds.lock();
        builds.values().find_map(|entry| {
            let build = entry.build.lock();
            let its = [&*build.name, build.template.as_str()];
            (build.team() == team && its.contains(&name)).then(|| build.template.clone())
        })
    }

    fn entry(&self, team: &Namespace, template: &str, id: &str) -> Result<Arc<Entry>> {
        let unknown = || Refused::NotFound(format!("build {id:?} of template {template:?}").into());
        let id: Uid = id.parse().map_err(|_| unknown())?;
        let found = self.builds.lock().get(&id).cloned();
        found
            .filter(|entry| {
                let build = entry.build.lock();
                let named = [build.template.as_str(), &*build.name];
                build.team() == team && named.contains(&template)
            })
            .ok_or_else(unknown)
    }

    /// Starts a build, which goes on by itself. `parent` is the template it starts from, if it
    /// starts from one.
    ///
    /// # Errors
    /// If there is no such build, it was started before, files are missing, or the team may not have
    /// the sandbox it needs.
    pub fn start(
        self: &Arc<Self>,
        team: &Namespace,
        template: &str,
        id: &str,
        account: Account,
        recipe: Recipe,
        parent: Option<Arc<SandboxTemplate>>,
    ) -> Result<()> {
        let entry = self.entry(team, template, id)?;
        for (at, step) in recipe.steps.iter().enumerate() {
            if let Instruction::Copy(copy) = &step.does
                && !self.shelf.has(team, &copy.files)?
            {
                let why = format!(
                    "COPY: the files of {:?} were not uploaded: ask for where to at \
                     /templates/{template}/files/{}",
                    copy.source, copy.files
                );
                return Err(Refused::bad(format!("steps[{at}]"), why));
            }
        }
        let job = Job::new(
            Arc::clone(self),
            Arc::clone(&entry),
            account,
            recipe,
            parent,
        );
        job.check_quota()?;
        entry.change(|build| {
            if build.asked || build.state != State::Waiting {
                return Err(Refused::Conflict(
                    "this build was started before: ask for a new one".into(),
                ));
            }
            build.asked = true;
            Ok(())
        })?;
        let this = Arc::clone(self);
        self.tasks.spawn(async move { this.run(&entry, job).await });
        Ok(())
    }

    async fn run(&self, entry: &Entry, job: Job) {
        let built = self.built(entry, &job).await;
        // From here on nobody cuts it off: half of its tags moved is no state to stop in.
        let outcome = match built {
            Ok(built) => job.publish(&built).await,
            Err(failure) => Err(failure),
        };
        let outcome = job.clean(outcome).await;
        self.end(entry, outcome);
        if entry.deleted.is_cancelled() {
            fs::remove_dir_all(&entry.directory).ok();
        }
        self.shelf.sweep();
        self.forget_old();
    }

    /// Waits for its turn and does all that can be given up.
    async fn built(&self, entry: &Entry, job: &Job) -> Result<Built, Failure> {
        let stop = self.tasks.stopping();
        let failed = |message: &str| {
            Err(Failure {
                stage: None,
                message: message.into(),
            })
        };
        let team = entry.find().team().clone();
        let work = async {
            let _turn = self.turns.take(&team).await;
            entry.note(|build| build.state = State::Building);
            // Waiting for others is none of its own time.
            match tokio::time::timeout(self.options.timeout, job.run()).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    let seconds = self.options.timeout.as_secs();
                    failed(&format!("it was not built within {seconds} seconds"))
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => failed("the server was stopped while it was built: build it again"),
            () = entry.deleted.cancelled() => failed("the template was deleted while it was built"),
            outcome = work => outcome,
        }
    }
}

/// The name and the tag of `[team/]name[:tag]`.
pub(crate) fn plain<'a>(team: &Namespace, text: &'a str) -> Result<(&'a str, Option<&'a str>)> {
    let (name, tag) = match text.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (text, None),
    };
    let name = match name.split_once('/') {
        Some((of, name)) if of == team.as_str() => name,
        Some(_) => {
            let why = "it names another team: leave that out";
            return Err(Refused::bad("name", why));
        }
        None => name,
    };
    match is_alias(name) {
        true => Ok((name, tag)),
        false => Err(Refused::bad(
            "name",
            "use lower-case letters, digits, - and _, and a tag after a colon if need be",
        )),
    }
}
