//! Elections on virtual time, over a register in memory.

use kit::ManualClock;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;

/// The API server, as far as a lease goes.
#[derive(Debug, Default)]
struct Memory {
    term: Mutex<Option<Term>>,
    away: Mutex<bool>,
}

impl Memory {
    fn holder(&self) -> Option<String> {
        let term = self.term.lock();
        term.as_ref()?.holder.as_deref().map(str::to_owned)
    }
}

#[async_trait]
impl Register for Memory {
    async fn read(&self) -> Result<Option<Term>, LeaseError> {
        match *self.away.lock() {
            true => Err(LeaseError::Silent),
            false => Ok(self.term.lock().clone()),
        }
    }

    async fn write(&self, write: Write<'_>) -> Result<Option<Term>, LeaseError> {
        if *self.away.lock() {
            return Err(LeaseError::Silent);
        }
        let mut term = self.term.lock();
        if term.as_ref().map(|term| &*term.version) != write.over {
            return Ok(None);
        }
        let number: u64 = write.over.map_or(0, |over| over.parse().unwrap_or(0));
        *term = Some(Term {
            holder: write.holder.map(Into::into),
            duration: write.duration,
            transitions: write.transitions,
            version: (number + 1).to_string().into(),
        });
        Ok(term.clone())
    }
}

fn candidate(register: &Arc<Memory>, me: &str) -> Election {
    let clock = Arc::new(ManualClock::starting_at(0));
    Election::over(register.clone(), me, Rules::default(), clock)
}

fn quiet(_: Standing<'_>) {}

#[tokio::test(start_paused = true)]
async fn the_next_one_leads_at_once_when_the_first_gives_up() {
    let (register, tasks) = (Arc::new(Memory::default()), Tasks::default());
    let first = candidate(&register, "a").win(&tasks, quiet).await;
    let waiting = tasks.spawn({
        let (second, tasks) = (candidate(&register, "b"), tasks.clone());
        async move { second.win(&tasks, quiet).await }
    });
    sleep(Duration::from_secs(60)).await;
    assert_eq!(register.holder().as_deref(), Some("a"));
    assert!(!waiting.is_finished());
    let before = Instant::now();
    first.release().await;
    let second = waiting.await.unwrap_or_else(|e| panic!("{e}"));
    assert!(before.elapsed() <= Rules::default().every);
    assert_eq!(register.holder().as_deref(), Some("b"));
    second.release().await;
    assert_eq!(register.holder(), None);
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_is_followed_when_its_lease_has_run_out_and_not_before() {
    let (register, tasks) = (Arc::new(Memory::default()), Tasks::default());
    let first = candidate(&register, "a").win(&tasks, quiet).await;
    sleep(Duration::from_secs(5)).await;
    drop(first);
    let before = Instant::now();
    let second = candidate(&register, "b").win(&tasks, quiet).await;
    assert!(before.elapsed() >= Rules::default().duration);
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_renew_has_stopped_before_another_may_lead() {
    let (register, tasks) = (Arc::new(Memory::default()), Tasks::default());
    let first = candidate(&register, "a").win(&tasks, quiet).await;
    sleep(Duration::from_secs(7)).await;
    *register.away.lock() = true;
    let before = Instant::now();
    first.lost().await;
    let (rules, took) = (Rules::default(), before.elapsed());
    assert!(took <= rules.renew_within, "{took:?}");
    *register.away.lock() = false;
    // It does not lead again by itself, and the other one waits for its whole time.
    let second = candidate(&register, "b").win(&tasks, quiet).await;
    assert_eq!(register.holder().as_deref(), Some("b"));
    drop(first);
    second.release().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_of_the_api_server_costs_nobody_the_lead() {
    let (register, tasks) = (Arc::new(Memory::default()), Tasks::default());
    let first = candidate(&register, "a").win(&tasks, quiet).await;
    *register.away.lock() = true;
    sleep(Duration::from_secs(6)).await;
    *register.away.lock() = false;
    let lost = timeout(Duration::from_secs(60), first.lost()).await;
    assert!(lost.is_err());
    first.release().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_finds_another_in_its_place_has_lost_at_once() {
    let (register, tasks) = (Arc::new(Memory::default()), Tasks::default());
    let first = candidate(&register, "a").win(&tasks, quiet).await;
    if let Some(term) = register.term.lock().as_mut() {
        *term = Term {
            holder: Some("b".into()),
            version: "99".into(),
            ..term.clone()
        };
    }
    let before = Instant::now();
    first.lost().await;
    assert!(before.elapsed() <= Rules::default().every);
    assert_eq!(register.holder().as_deref(), Some("b"));
}
