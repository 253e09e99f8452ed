//! Who may lead, by what is seen of a lease: pure.
//!
//! ```text
//!  another holds it ──unchanged for its whole duration, or given up──▶ take ──▶ leads
//!        ▲                                                               │ asked + renew_within
//!        └────────────────── another has written it ◀── renew ◀──────────┘ not renewed: leads no more
//! ```
//!
//! No two clocks are compared. Who waits measures by its own clock how long the record has not
//! changed, from when the answer that showed it arrived. Who leads measures by its own clock from
//! before it asked for the write. The write lies between the two, so with `renew_within` shorter than
//! `duration` the leader has stopped before anybody takes over, as long as no clock runs faster than
//! the other by more than the ratio of both. Every write names the version it replaces: of two who take
//! over at once, one does.
//!
//! A process whose clock stands still while it does not run (a suspended machine) may believe in its
//! lead for a moment after it wakes. What it does then is refused where it arrives: calls carry numbers
//! of operations, and a new loop has taken new ones.

use std::time::Duration;

/// What a lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Who holds it; nobody if it was given up.
    pub holder: Option<Box<str>>,
    /// How long it is not to be taken from its holder.
    pub duration: Duration,
    /// How often it has changed hands.
    pub transitions: i32,
    /// Names this state of it.
    pub version: Box<str>,
}

/// How long a lease lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nobody takes it over before it has not changed for this long.
    pub duration: Duration,
    /// Its holder has stopped when it was not renewed for this long.
    pub renew_within: Duration,
    /// How often it is renewed or looked at.
    pub every: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            every: Duration::from_secs(2),
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Write oneself as the holder, in the place of this version; of none to make the lease.
    Take {
        /// What is replaced.
        over: Option<Box<str>>,
        /// How often it will have changed hands.
        transitions: i32,
    },
    /// Look again after this long.
    Wait(Duration),
}

/// One who wants to lead.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: Box<str>,
    rules: Rules,
    /// The last state that was seen, and since when it has not changed.
    seen: Option<(Term, Duration)>,
    /// Until when it leads.
    until: Option<Duration>,
}

impl Candidate {
    /// One of this name, which no other process has or had.
    #[must_use]
    pub fn new(me: &str, rules: Rules) -> Self {
        Self {
            me: me.into(),
            rules,
            seen: None,
            until: None,
        }
    }

    /// Its name.
    #[must_use]
    pub fn me(&self) -> &str {
        &self.me
    }

    /// Whether it may act at this moment of its own clock.
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Until when it leads, if nothing more is heard.
    #[must_use]
    pub const fn leads_until(&self) -> Option<Duration> {
        self.until
    }

    /// The state that was seen last.
    #[must_use]
    pub fn seen(&self) -> Option<&Term> {
        self.seen.as_ref().map(|(term, _)| term)
    }

    /// The lease was read; `now` is when the answer arrived.
    pub fn read(&mut self, term: Option<Term>, now: Duration) -> Next {
        let Some(term) = term else {
            self.seen = None;
            return Next::Take {
                over: None,
                transitions: 0,
            };
        };
        let unchanged = self.seen().is_some_and(|seen| seen.version == term.version);
        if !unchanged {
            self.seen = Some((term, now));
        }
        self.next(now)
    }

    /// What to do by what was seen last.
    #[must_use]
    pub fn next(&self, now: Duration) -> Next {
        let Some((term, since)) = &self.seen else {
            return Next::Wait(Duration::ZERO);
        };
        let over = Some(term.version.clone());
        match &term.holder {
            Some(holder) if *holder == self.me => Next::Take {
                over,
                transitions: term.transitions,
            },
            Some(_) => {
                let left = term.duration.saturating_sub(now.saturating_sub(*since));
                match left.is_zero() {
                    true => Next::Take {
                        over,
                        transitions: term.transitions.saturating_add(1),
                    },
                    false => Next::Wait(left.min(self.rules.every)),
                }
            }
            None => Next::Take {
                over,
                transitions: term.transitions.saturating_add(1),
            },
        }
    }

    /// A write of oneself was made. `asked` is from before it was asked for.
    pub fn wrote(&mut self, term: Term, asked: Duration, now: Duration) {
        self.seen = Some((term, now));
        self.until = Some(asked + self.rules.renew_within);
    }

    /// A write was refused: somebody else was first. Who wrote last is to be read.
    pub fn refused(&mut self) {
        self.seen = None;
        // Whoever wrote has it.
        self.until = None;
    }

    /// It is not known what became of a write. It may be the last one, so that is to be read; a term
    /// that it had goes on.
    pub fn doubted(&mut self) {
        self.seen = None;
    }

    /// It gives up.
    pub const fn resigned(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn term(holder: Option<&str>, version: u64) -> Term {
        Term {
            holder: holder.map(Into::into),
            duration: Rules::default().duration,
            transitions: 3,
            version: version.to_string().into(),
        }
    }

    #[test]
    fn what_another_holds_is_taken_only_after_its_whole_duration_without_a_change() {
        let mut me = Candidate::new("me", Rules::default());
        let at = Duration::from_secs;
        let wait = Next::Wait(Rules::default().every);
        assert_eq!(me.read(Some(term(Some("other"), 1)), at(100)), wait);
        // It is renewed: the wait begins anew.
        assert_eq!(me.read(Some(term(Some("other"), 2)), at(114)), wait);
        assert_eq!(me.read(Some(term(Some("other"), 2)), at(127)), wait);
        let last = Next::Wait(Duration::from_secs(1));
        assert_eq!(me.read(Some(term(Some("other"), 2)), at(128)), last);
        let taken = Next::Take {
            over: Some("2".into()),
            transitions: 4,
        };
        assert_eq!(me.read(Some(term(Some("other"), 2)), at(129)), taken);
        assert!(!me.leads(at(129)));
    }

    #[test]
    fn what_was_given_up_is_taken_at_once_and_what_is_missing_is_made() {
        let mut me = Candidate::new("me", Rules::default());
        let taken = Next::Take {
            over: Some("7".into()),
            transitions: 4,
        };
        assert_eq!(me.read(Some(term(None, 7)), Duration::ZERO), taken);
        let made = Next::Take {
            over: None,
            transitions: 0,
        };
        assert_eq!(me.read(None, Duration::ZERO), made);
    }

    #[test]
    fn a_lead_counts_from_before_it_was_asked_for_and_ends_with_a_refusal() {
        let mut me = Candidate::new("me", Rules::default());
        let at = Duration::from_secs;
        me.wrote(term(Some("me"), 1), at(10), at(15));
        assert!(me.leads(at(19)));
        assert!(!me.leads(at(20)));
        me.wrote(term(Some("me"), 2), at(18), at(19));
        assert!(me.leads(at(27)));
        me.refused();
        assert!(!me.leads(at(20)));
    }

    /// A register as the API server is one: a write names the version it replaces.
    #[derive(Debug, Default)]
    struct Register {
        term: Option<Term>,
        version: u64,
    }

    impl Register {
        fn write(&mut self, over: Option<&str>, holder: &str, transitions: i32) -> Option<Term> {
            if self.term.as_ref().map(|t| &*t.version) != over {
                return None;
            }
            self.version += 1;
            let written = Term {
                transitions,
                ..term(Some(holder), self.version)
            };
            self.term = Some(written.clone());
            Some(written)
        }
    }

    /// What one process is about, with the moment (by the true clock) at which it goes on.
    #[derive(Debug)]
    enum Step {
        Look,
        Arrive(Next, Duration),
        Hear(Option<Term>, Duration),
    }

    #[derive(Debug)]
    struct Process {
        candidate: Candidate,
        /// Its clock runs this much per mille of the true one, from an offset of its own.
        rate: u64,
        offset: u64,
        step: Step,
        due: u64,
    }

    impl Process {
        fn clock(&self, now: u64) -> Duration {
            Duration::from_millis(self.offset + now * self.rate / 1000)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Three processes with clocks of their own, over a network that delays every message by up
        /// to half a minute, loses answers, and lets processes stop for a while.
        #[test]
        fn there_are_never_two_leaders(
            rates in proptest::array::uniform3(900_u64..1100),
            offsets in proptest::array::uniform3(0_u64..1_000_000),
            noise in proptest::collection::vec((0_u64..100, 0_u64..30_000), 600),
        ) {
            let rules = Rules::default();
            let mut register = Register::default();
            let mut noise = noise.into_iter().cycle();
            let mut processes: Vec<Process> = (0..3).map(|n| Process {
                candidate: Candidate::new(&format!("p{n}"), rules),
                rate: rates[n],
                offset: offsets[n],
                step: Step::Look,
                due: n as u64,
            }).collect();
            let mut led = 0;
            for _ in 0..600 {
                let Some(at) = (0..3).min_by_key(|n| processes[*n].due) else { continue };
                let now = processes[at].due;
                let (luck, long) = noise.next().unwrap_or_default();
                // Most messages are quick.
                let delay = if luck < 85 { 1 + long % 50 } else { long };
                let p = &mut processes[at];
                let local = p.clock(now);
                let step = std::mem::replace(&mut p.step, Step::Look);
                p.due = now + delay;
                match step {
                    Step::Look => {
                        let shown = register.term.clone();
                        match p.candidate.read(shown, local) {
                            Next::Wait(wait) => {
                                let wait = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                                p.due = now + wait * 1000 / p.rate + 1;
                            }
                            next => p.step = Step::Arrive(next, local),
                        }
                    }
                    Step::Arrive(Next::Take { over, transitions }, asked) => {
                        let me = p.candidate.me().to_owned();
                        let written = register.write(over.as_deref(), &me, transitions);
                        p.step = Step::Hear(written, asked);
                    }
                    Step::Arrive(Next::Wait(_), _) => {}
                    // The answer is lost.
                    Step::Hear(..) if luck % 10 == 0 => {}
                    Step::Hear(Some(written), asked) => p.candidate.wrote(written, asked, local),
                    Step::Hear(None, _) => p.candidate.refused(),
                }
                let leaders = processes.iter().filter(|p| p.candidate.leads(p.clock(now))).count();
                prop_assert!(leaders <= 1, "{processes:#?}");
                led += leaders;
            }
            prop_assert!(led > 0, "nobody ever led");
        }
    }
}
