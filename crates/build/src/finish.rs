//! The end of a build: an image, a record of it, a trial, and tags.
//!
//! Until its record loses its annotation a build can be given up and leaves nothing. That one write,
//! which also puts the tags on it, makes it ready; what follows only tidies up.

use model::{Level, Name, StringMap};

use crate::{
    error::{Failure, Stage},
    job::{Job, Outcome},
    room::shell,
};

/// Lines of a start command that failed which are shown.
const LAST_LINES: usize = 20;

/// A record that is complete, was tried out, and that no name means yet.
#[derive(Debug)]
pub(crate) struct Built(Name);

impl Job {
    /// Makes a template of what the steps have left.
    pub(crate) async fn finish(&self, record: &Name, outcome: Outcome) -> Result<Built, String> {
        let builder = self.builder();
        let build = self.build();
        let made = match &outcome.layer {
            Some(layer) => {
                let called = format!("{}/{}", build.team(), build.template);
                let made = builder.on.workshop.commit(layer, &called).await;
                made.map_err(|error| error.to_string())?
            }
            None => outcome.base,
        };
        let env: StringMap = outcome.now.env.into_iter().collect();
        let user: Box<str> = outcome.now.user.into();
        let workdir: Box<str> = outcome.now.workdir.into();
        let recipe = self.recipe();
        let words = |line: &String| shell(line).map(Into::into).to_vec();
        let parent = self.parent().map(|parent| &parent.spec);
        let amended = builder.amend(record, |next| {
            let spec = &mut next.spec;
            spec.image = made.image.as_str().into();
            spec.env.clone_from(&env);
            spec.user = Some(user.clone());
            spec.workdir = Some(workdir.clone());
            let start = recipe.start.as_ref().map(words);
            let ready = recipe.ready.as_ref().map(words);
            // Whoever says what is started says when it is ready.
            let inherits = parent.filter(|_| start.is_none());
            spec.start_command = start
                .or_else(|| Some(inherits?.start_command.clone()))
                .unwrap_or_default();
            spec.ready_command = ready
                .or_else(|| Some(inherits?.ready_command.clone()))
                .unwrap_or_default();
            true
        });
        amended.await.map_err(|error| error.to_string())?;
        // From here on the record keeps it.
        drop(made.hold);
        self.try_out(record).await?;
        Ok(Built(record.clone()))
    }

    /// Lets its tags mean it.
    pub(crate) async fn publish(&self, Built(record): &Built) -> Result<(), Failure> {
        let builder = self.builder();
        let build = self.build();
        let _alone = builder.tagging.lock().await;
        // Who deletes the template holds the same lock.
        if self.is_deleted() {
            let why = "the template was deleted while it was built";
            return Err(Failure::at(Stage::Finish, why));
        }
        let (team, template) = (build.team(), &build.template);
        let put = builder.put(team, template, record, &build.tags).await;
        put.map_err(|error| Failure::at(Stage::Finish, error.to_string()))?;
        builder.prune(team, template).await;
        self.say(Stage::Finish, Level::Info, "the template is ready");
        Ok(())
    }

    /// Starts a sandbox of it, as everybody will, and ends it: its commands must bring it up.
    async fn try_out(&self, record: &Name) -> Result<(), String> {
        let builder = self.builder();
        self.say(
            Stage::Finish,
            Level::Info,
            "starting a sandbox of it, to see that it starts",
        );
        let room = self.open_room(record, None).await;
        let seen = builder
            .on
            .sandboxes
            .find_by(cache::SandboxIndex::Template, record.as_str());
        for sandbox in seen {
            let said = builder.on.workshop.output(sandbox.uid()).await;
            let from = said.len().saturating_sub(LAST_LINES);
            for line in &said[from..] {
                self.say(Stage::Finish, Level::Info, line.as_str());
            }
        }
        let room = room.map_err(|why| format!("a sandbox of it did not start: {why}"))?;
        builder.discard(&room.sandbox.key()).await;
        Ok(())
    }
}
