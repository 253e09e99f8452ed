//! Who waits for which flight.
//!
//! Seats are bounded, for one sandbox and in all. When all are taken, a team that has few may still
//! have one: the team that has most gives up its newest, in the sandbox that has most of them. So
//! one team that is stormed cannot shut out the others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::{Epoch, Uid, Version};
use parking_lot::Mutex;
use routes::{Route, WakeError};
use tokio::sync::oneshot;

use crate::{Options, news::News, turns::Team};

/// How a flight ended.
pub(crate) type Outcome = Result<Arc<Route>, WakeError>;

/// Which delivery is woken.
pub(crate) type Delivery = (Uid, Epoch);

type Seats = BTreeMap<u64, oneshot::Sender<Outcome>>;

/// When to come again where too many wait: flights end in moments.
const RETRY: Duration = Duration::from_secs(1);

pub(crate) const TOO_MANY: WakeError = WakeError::Overloaded { retry_after: RETRY };

#[derive(Debug, Default)]
pub(crate) struct Board {
    flights: BTreeMap<Delivery, Flight>,
    teams: BTreeMap<Team, usize>,
    parked: usize,
    next_seat: u64,
}

#[derive(Debug)]
struct Flight {
    team: Team,
    seats: Seats,
    news: Arc<News>,
    /// The newest version at which anybody who came saw it asleep.
    asleep: Version,
}

/// A seat that was taken.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) number: u64,
    pub(crate) answer: oneshot::Receiver<Outcome>,
    /// If there was no flight yet: what it hears.
    pub(crate) begins: Option<Arc<News>>,
}

impl Board {
    pub(crate) const fn parked(&self) -> usize {
        self.parked
    }

    /// Takes a seat for who saw it asleep at a version, or says why there is none.
    pub(crate) fn seat(
        &mut self,
        delivery: Delivery,
        team: &Team,
        asleep: Version,
        options: &Options,
    ) -> Result<Seated, WakeError> {
        let flight = self.flights.get(&delivery);
        let is_first = flight.is_none();
        if flight.map_or(0, |flight| flight.seats.len()) >= options.max_parked_per_sandbox {
            return Err(TOO_MANY);
        }
        if self.parked >= options.max_parked && !self.make_room(team) {
            return Err(TOO_MANY);
        }
        self.parked += 1;
        self.next_seat += 1;
        *self.teams.entry(team.clone()).or_default() += 1;
        let (sender, answer) = oneshot::channel();
        let flight = self.flights.entry(delivery).or_insert_with(|| Flight {
            team: team.clone(),
            seats: Seats::new(),
            news: Arc::default(),
            asleep,
        });
        flight.asleep = flight.asleep.max(asleep);
        flight.seats.insert(self.next_seat, sender);
        Ok(Seated {
            number: self.next_seat,
            answer,
            begins: is_first.then(|| Arc::clone(&flight.news)),
        })
    }

    /// What the flight of a delivery hears, if there is one.
    pub(crate) fn news(&self, delivery: Delivery) -> Option<Arc<News>> {
        let flight = self.flights.get(&delivery)?;
        Some(Arc::clone(&flight.news))
    }

    /// A delivery as it ran later than anybody who came for it saw it asleep, if that was told and nobody
    /// waits any more: who still does wants it awake.
    pub(crate) fn ran_since(&self, delivery: Delivery) -> Option<Arc<Route>> {
        let flight = self.flights.get(&delivery)?;
        let told = flight.news.newest()?;
        (flight.seats.is_empty() && told.version > flight.asleep).then_some(told)
    }

    /// Takes a seat from the team that has most, if that leaves it with no fewer than this one.
    fn make_room(&mut self, team: &Team) -> bool {
        let own = self.teams.get(team).copied().unwrap_or(0);
        let most = self.teams.iter().max_by_key(|(_, seats)| **seats);
        let Some((most, _)) = most.filter(|(_, seats)| **seats > own + 1) else {
            return false;
        };
        let most = most.clone();
        let of_it = self.flights.iter_mut().filter(|(_, f)| f.team == most);
        let Some((_, flight)) = of_it.max_by_key(|(_, flight)| flight.seats.len()) else {
            return false;
        };
        let Some((_, answer)) = flight.seats.pop_last() else {
            return false;
        };
        self.left(&most, 1);
        let _ = answer.send(Err(TOO_MANY));
        true
    }

    /// Gives up one seat. A flight that has landed took its seats with it.
    fn leave(&mut self, delivery: Delivery, number: u64) {
        let Some(flight) = self.flights.get_mut(&delivery) else {
            return;
        };
        if flight.seats.remove(&number).is_some() {
            let team = flight.team.clone();
            self.left(&team, 1);
        }
    }

    /// Ends a flight. Answers those who wait for it.
    pub(crate) fn clear(&mut self, delivery: Delivery) -> Seats {
        let Some(flight) = self.flights.remove(&delivery) else {
            return Seats::new();
        };
        self.left(&flight.team, flight.seats.len());
        flight.seats
    }

    fn left(&mut self, team: &Team, seats: usize) {
        self.parked -= seats;
        if let Some(has) = self.teams.get_mut(team) {
            *has -= seats;
            if *has == 0 {
                self.teams.remove(team);
            }
        }
    }
}

/// Gives a request's seat back when it leaves.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    pub(crate) board: &'a Mutex<Board>,
    pub(crate) delivery: Delivery,
    pub(crate) number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.board.lock().leave(self.delivery, self.number);
    }
}

#[cfg(test)]
mod tests {
    use model::Namespace;

    use super::*;

    fn delivery(number: u128) -> Delivery {
        (Uid::from_random(number), Epoch(1))
    }

    #[test]
    fn who_has_few_takes_a_place_from_who_has_most_and_never_the_other_way() {
        let team = |name: &str| Some(Namespace::new(name).unwrap());
        let (stormed, calm) = (team("stormed"), team("calm"));
        let options = Options {
            max_parked: 4,
            ..Options::default()
        };
        let mut board = Board::default();
        let seat = |board: &mut Board, sandbox, team: &Team| {
            board.seat(delivery(sandbox), team, Version::from_u64(1), &options)
        };
        let mut seats = Vec::new();
        for sandbox in [1, 1, 1, 2] {
            seats.push(seat(&mut board, sandbox, &stormed).unwrap());
        }
        assert_eq!(seat(&mut board, 3, &stormed).unwrap_err(), TOO_MANY);
        for _ in 0..2 {
            seat(&mut board, 9, &calm).unwrap();
        }
        // The newest of its fullest sandbox went.
        let told = |at: usize, seats: &mut Vec<Seated>| seats[at].answer.try_recv().ok();
        assert_eq!(told(2, &mut seats), Some(Err(TOO_MANY)));
        assert_eq!(told(1, &mut seats), Some(Err(TOO_MANY)));
        assert!(told(0, &mut seats).is_none() && told(3, &mut seats).is_none());
        assert_eq!(seat(&mut board, 9, &calm).unwrap_err(), TOO_MANY);
        assert_eq!(board.parked(), 4);
        board.clear(delivery(1));
        board.clear(delivery(2));
        board.clear(delivery(9));
        assert_eq!((board.parked(), board.teams.len()), (0, 0));
    }
}
