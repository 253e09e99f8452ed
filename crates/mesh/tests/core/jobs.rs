//! What takes long goes on beside everything else.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mesh::{
    Book, Options, Role, Why,
    core::{Core, Ground, Job, LinkId, Output, Side},
    frame::{Answer, Ask, FORMAT, Frame, Hello, MAGIC, Numbered, Part},
};
use model::Version;
use routes::{Snapshot, Table};

use crate::world::{PROCESSES, World, address, message};

const NOW: Duration = Duration::from_secs(1);

/// A core with a table, asked by hand.
struct Asked {
    core: Core,
    table: Arc<Table>,
    jobs: Vec<Job>,
    sent: Vec<(LinkId, Frame)>,
}

struct Asker {
    link: LinkId,
    said: u64,
}

impl Asked {
    fn new() -> Self {
        let table = Arc::new(Table::default());
        let routes = (1..=3).map(|key| match message(key, u64::from(key), false) {
            routes::Message::Upsert(route) => route,
            routes::Message::Delete(_) | routes::Message::Unreadable(_) => unreachable!(),
        });
        let snapshot = Snapshot {
            version: Version::from_u64(3),
            routes: routes.collect(),
        };
        table.replace_all(snapshot, NOW);
        let ground = Ground {
            process: 1,
            book: Some(Arc::clone(&table) as Arc<dyn Book>),
            ear: None,
            seed: 1,
        };
        let options = Options::new("one", Role::Gateway, address(1));
        Self {
            core: Core::new(options, ground, NOW),
            table,
            jobs: Vec::new(),
            sent: Vec::new(),
        }
    }

    fn look(&mut self) {
        let outputs: Vec<Output> = self.core.outputs().collect();
        for output in outputs {
            match output {
                Output::Run(job) => self.jobs.push(job),
                Output::Send(to, numbered) => self.sent.push((to, numbered.frame)),
                Output::Close(..) | Output::Dial(_) | Output::Heard(..) | Output::Complain(..) => {}
            }
        }
    }

    fn asker(&mut self, process: u64) -> Asker {
        let from = SocketAddr::from(([10, 0, 1, u8::try_from(process).unwrap()], 40_000));
        let link = self.core.link_up(Side::Accepted(from), NOW);
        let mut asker = Asker { link, said: 0 };
        let hello = Hello {
            magic: MAGIC.to_owned(),
            format: FORMAT,
            cluster: "one".to_owned(),
            process,
            role: Role::Gateway,
            address: from,
            listens: true,
            keeps: true,
            watched: Version::ZERO,
        };
        self.hear(&mut asker, Frame::Hello(hello));
        asker
    }

    fn hear(&mut self, from: &mut Asker, frame: Frame) {
        let number = from.said;
        from.said += 1;
        let numbered = Numbered { number, frame };
        self.core.receive(from.link, numbered, NOW);
        self.look();
    }

    fn ask(&mut self, by: &mut Asker, round: u64, full: bool) {
        let ask = Ask {
            round,
            after: Version::from_u64(3),
            told: None,
            full,
        };
        self.hear(by, Frame::Ask(ask));
    }

    fn finish(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.core.done(job.run(NOW));
        }
        self.look();
    }

    /// What was answered over a link since the last look.
    fn answers(&mut self, to: &Asker) -> Vec<(u64, Answer, usize)> {
        let part = |part: &Part| (part.round, part.answer, part.messages.len());
        let parts = self.sent.iter().filter_map(|(link, frame)| match frame {
            Frame::Part(told) if *link == to.link => Some(part(told)),
            _ => None,
        });
        let parts = parts.collect();
        self.sent.retain(|(link, _)| *link != to.link);
        parts
    }
}

#[test]
fn who_asks_for_everything_twice_is_answered_what_it_asked_last_and_once() {
    let mut asked = Asked::new();
    let mut one = asked.asker(2);
    asked.ask(&mut one, 1, true);
    asked.ask(&mut one, 2, true);
    assert_eq!(asked.jobs.len(), 1);
    assert_eq!(asked.answers(&one), []);
    asked.finish();
    assert_eq!(asked.answers(&one), [(2, Answer::Everything, 3)]);
    // And then anew.
    asked.ask(&mut one, 3, true);
    asked.finish();
    assert_eq!(asked.answers(&one), [(3, Answer::Everything, 3)]);
    assert_eq!(asked.core.stats().counts.snapshots_given, 2);
}

#[test]
fn who_asks_for_changes_meanwhile_is_told_those_and_not_everything() {
    let mut asked = Asked::new();
    let mut one = asked.asker(2);
    asked.ask(&mut one, 1, true);
    asked.ask(&mut one, 2, false);
    assert_eq!(asked.answers(&one), [(2, Answer::Changes, 0)]);
    asked.finish();
    assert_eq!(asked.answers(&one), []);
}

#[test]
fn all_who_ask_for_everything_by_the_time_it_is_there_are_told_of_one_gathering() {
    let mut asked = Asked::new();
    let (mut one, mut other, mut gone) = (asked.asker(2), asked.asker(3), asked.asker(4));
    asked.ask(&mut one, 1, true);
    asked.ask(&mut gone, 1, true);
    asked.ask(&mut other, 7, true);
    asked.core.link_down(gone.link, Why::Closed, NOW);
    assert_eq!(asked.jobs.len(), 1);
    asked.finish();
    assert_eq!(asked.answers(&one), [(1, Answer::Everything, 3)]);
    assert_eq!(asked.answers(&other), [(7, Answer::Everything, 3)]);
    assert_eq!(asked.answers(&gone), []);
}

#[test]
fn one_that_loses_its_watch_before_it_gathers_says_that_it_knows_too_little() {
    let mut asked = Asked::new();
    let mut one = asked.asker(2);
    asked.ask(&mut one, 1, true);
    asked.table.distrust();
    asked.finish();
    assert_eq!(asked.answers(&one), [(1, Answer::Unsynced, 0)]);
}

#[test]
fn a_gathering_that_is_given_up_is_answered_and_can_be_asked_for_again() {
    let mut asked = Asked::new();
    let mut one = asked.asker(2);
    asked.ask(&mut one, 1, true);
    let job = asked.jobs.pop().unwrap();
    asked.core.done(job.given_up());
    asked.look();
    assert_eq!(asked.answers(&one), [(1, Answer::Unsynced, 0)]);
    asked.ask(&mut one, 2, true);
    asked.finish();
    assert_eq!(asked.answers(&one), [(2, Answer::Everything, 3)]);
}

/// A world in which the last process knows nothing, all are linked, and jobs are held.
fn with_one_that_joins() -> World {
    let mut world = World::new(1 << 10);
    world.rounds(2);
    world.write(0, 1, false);
    world.calm();
    world.restart(PROCESSES - 1);
    world.are_jobs_held = true;
    world.rounds(2);
    assert_eq!(world.jobs.len(), 1, "somebody gathers for it");
    world
}

#[test]
fn a_write_is_heard_by_those_who_gather_and_adopt_meanwhile() {
    let mut world = with_one_that_joins();
    let is_heard = |world: &mut World, key| {
        let before = world.said;
        world.write(0, key, key == 2);
        world.calm();
        assert_eq!(world.said, before + 1, "all have heard of {key}");
    };
    is_heard(&mut world, 0);
    world.run_job();
    is_heard(&mut world, 1);
    world.hear_of_job();
    world.calm();
    let (who, job) = world.jobs.front().unwrap();
    assert_eq!(*who, PROCESSES - 1);
    assert!(matches!(job, Job::Adopt(_)));
    is_heard(&mut world, 2);
    world.run_job();
    is_heard(&mut world, 3);
    assert!(world.processes[PROCESSES - 1].table.synced());
    world.are_jobs_held = false;
    world.calm();
    for n in 0..PROCESSES {
        assert_eq!(world.content(n), world.truth(), "{n}");
    }
}

#[test]
fn everything_that_came_is_adopted_whatever_becomes_of_its_link_and_not_asked_for_meanwhile() {
    let mut world = with_one_that_joins();
    let late = PROCESSES - 1;
    world.run_job();
    world.hear_of_job();
    world.calm();
    for end in world.links.keys().copied().collect::<Vec<_>>() {
        world.cut(end);
    }
    world.rounds(8);
    let jobs: Vec<usize> = world.jobs.iter().map(|(n, _)| *n).collect();
    assert_eq!(jobs, [late], "nobody gathers for it again");
    world.are_jobs_held = false;
    world.calm();
    assert!(world.processes[late].table.synced());
    let counts = world.processes[late].core.stats().counts;
    assert_eq!(counts.snapshots_taken, 1);
    world.rounds(2);
    assert_eq!(world.content(late), world.truth());
}
