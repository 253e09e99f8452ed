//! A gateway's side.

use std::{collections::HashMap, fmt::Debug, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json, Router,
    body::Body,
    extract::{Query, Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use futures_util::stream;
use model::{Epoch, Name, Namespace, Uid, Version};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    frame::{DrainedQuery, Frame, Seen, SeenQuery, Used},
    kin::{Kin, Stranger},
};

/// How often use is told.
pub(crate) const EVERY: Duration = Duration::from_secs(1);
/// The most of one frame.
const FRAME: usize = 4096;

/// What is noted at a gateway at one moment.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// What its clock shows.
    pub now: Duration,
    /// For how long it has noted use.
    pub watched: Duration,
    /// All that was used.
    pub used: Vec<Used>,
}

/// A gateway.
#[async_trait]
pub trait Front: Send + Sync + Debug {
    /// What it has noted.
    fn noted(&self) -> Noted;

    /// Waits until it goes by this version of a sandbox's record or a newer one, for a second at most.
    /// Answers whether it does, and the use of that sandbox as of after that.
    async fn seen(&self, namespace: &Namespace, name: &Name, version: Version) -> Seen;

    /// Waits until nothing is inside a delivery.
    async fn drained(&self, uid: Uid, epoch: Epoch);
}

/// What a gateway answers its peers.
#[derive(Clone, Debug)]
pub struct Desk {
    front: Arc<dyn Front>,
    kin: Kin,
    process: u64,
    stop: CancellationToken,
    followers: Arc<watch::Sender<usize>>,
}

impl Desk {
    /// For a gateway, which answers its kin. `process` is a number that no other process has; streams end
    /// with `stop`.
    #[must_use]
    pub fn new(front: Arc<dyn Front>, kin: Kin, process: u64, stop: CancellationToken) -> Self {
        Self {
            front,
            kin,
            process,
            stop,
            followers: Arc::new(watch::channel(0).0),
        }
    }

    /// How many follow its use now.
    #[must_use]
    pub fn followers(&self) -> watch::Receiver<usize> {
        self.followers.subscribe()
    }

    /// What it serves. Who holds the key is settled before: by the connection.
    pub fn router(self) -> Router {
        Router::new()
            .route("/v1/activity", get(activity))
            .route("/v1/seen", get(seen))
            .route("/v1/drained", post(drained))
            .layer(from_fn_with_state(self.clone(), among_kin))
            .with_state(self)
    }
}

/// Answers nobody else's, and says whose the answer is.
async fn among_kin(State(desk): State<Desk>, request: Request, next: Next) -> Response {
    let mut answer = match desk.kin.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(stranger) => {
            if desk.kin.meet(stranger) {
                tracing::warn!(why = %stranger, "who asks for use is refused; this is said once");
            }
            let status = match stranger {
                Stranger::Format => StatusCode::BAD_REQUEST,
                Stranger::Installation => StatusCode::MISDIRECTED_REQUEST,
            };
            status.into_response()
        }
    };
    desk.kin.sign(answer.headers_mut());
    answer
}

/// Counts one who follows.
struct Follower(Arc<watch::Sender<usize>>);

impl Follower {
    fn new(of: &Arc<watch::Sender<usize>>) -> Self {
        of.send_modify(|count| *count += 1);
        Self(Arc::clone(of))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

async fn activity(State(desk): State<Desk>) -> Response {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let teller = Teller {
        follower: Follower::new(&desk.followers),
        told: HashMap::new(),
        desk,
    };
    let frames = stream::unfold((teller, ticks), async |(mut teller, mut ticks)| {
        tokio::select! {
            biased;
            () = teller.desk.stop.cancelled() => return None,
            _ = ticks.tick() => {}
        }
        let text = teller.step();
        Some((Ok::<_, io::Error>(text), (teller, ticks)))
    });
    Body::from_stream(frames).into_response()
}

/// What one follower was told.
struct Teller {
    desk: Desk,
    told: HashMap<Uid, Used>,
    #[expect(dead_code, reason = "counts while it is held")]
    follower: Follower,
}

impl Teller {
    /// What has changed since it was last told.
    fn step(&mut self) -> Bytes {
        let noted = self.desk.front.noted();
        let mut there = HashMap::with_capacity(noted.used.len());
        let mut changed = Vec::new();
        for used in noted.used {
            if self.told.get(&used.uid) != Some(&used) {
                changed.push(used);
            }
            there.insert(used.uid, used);
        }
        let gone = self.told.keys().filter(|uid| !there.contains_key(uid));
        let gone: Vec<Uid> = gone.copied().collect();
        self.told = there;
        let frame = |used: &[Used], gone: Vec<Uid>, more| Frame {
            process: self.desk.process,
            now: micros(noted.now),
            watched: micros(noted.watched),
            used: used.to_vec(),
            gone,
            more,
        };
        let mut text = Vec::new();
        let mut parts = changed.chunks(FRAME).peekable();
        let mut gone = gone.chunks(FRAME).peekable();
        loop {
            let (part, left) = (
                parts.next().unwrap_or_default(),
                gone.next().unwrap_or_default(),
            );
            let more = parts.peek().is_some() || gone.peek().is_some();
            // Numbers and ids: they can be written.
            if serde_json::to_writer(&mut text, &frame(part, left.to_vec(), more)).is_ok() {
                text.push(b'\n');
            }
            if !more {
                return text.into();
            }
        }
    }
}

async fn seen(State(desk): State<Desk>, Query(of): Query<SeenQuery>) -> Response {
    let (Ok(namespace), Ok(name)) = (Namespace::new(of.namespace), Name::new(of.name)) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let version = Version::from_u64(of.version);
    Json(desk.front.seen(&namespace, &name, version).await).into_response()
}

async fn drained(State(desk): State<Desk>, Json(of): Json<DrainedQuery>) -> StatusCode {
    desk.front.drained(of.uid, of.epoch).await;
    StatusCode::NO_CONTENT
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
