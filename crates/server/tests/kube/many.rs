//! Several APIs and gateways, each with a watch of its own that may lag: what one of them did is seen
//! through all of them.

use std::{fs, sync::Arc, time::Duration};

use futures_util::future::join_all;
use http::Method;
use kit::Tasks;
use model::lifecycle::Phase;
use rustix::process::Signal;
use serde_json::{Value, json};
use standin_kube::Standin;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    daemon,
    http::{Answer, send},
    installation::{Installation, LOOK, Made, PATIENCE, Role, User},
    lives::idle_after,
};

/// Where processes are started. Each acts as a user of its own, so that its watches can be held.
struct Base {
    installation: Installation,
    env: Vec<(&'static str, String)>,
    kubeconfigs: TempDir,
    /// Of nodes.
    _tasks: Tasks,
}

impl Base {
    async fn new() -> Self {
        let installation = Installation::new().await;
        let tasks = Tasks::default();
        let standin = installation.cluster.as_standin().unwrap();
        let node = daemon::start(standin, &tasks).await.to_string();
        Self {
            env: vec![
                ("DORMOUSE_KUBERNETES_NODE_DAEMON", "on".into()),
                ("DORMOUSE_KUBERNETES_NODE_PORT", node),
            ],
            kubeconfigs: tempfile::tempdir().unwrap(),
            installation,
            _tasks: tasks,
        }
    }

    /// Starts a process as a user.
    fn run(&self, role: &str, user: &str, seeds: &str) -> Role {
        let text = fs::read_to_string(self.installation.cluster.kubeconfig()).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["users"][0]["user"]["as"] = user.into();
        let path = self.kubeconfigs.path().join(user);
        kit::durable::write_file(&path, config.to_string().as_bytes(), 0o600).unwrap();
        let mut env: Vec<(&str, &str)> = self.env.iter().map(|(n, v)| (*n, v.as_str())).collect();
        env.push(("DORMOUSE_PEER_SEEDS", seeds));
        env.push(("DORMOUSE_KUBERNETES_KUBECONFIG", path.to_str().unwrap()));
        self.installation.start(role, &env)
    }
}

/// Processes of one installation.
struct Many {
    gateways: Vec<Role>,
    apis: Vec<Role>,
    control: Role,
    /// Last: their logs are in it.
    base: Base,
}

impl Many {
    async fn start(gateways: usize, apis: usize) -> Self {
        Self::start_with(gateways, apis, &[]).await
    }

    /// The same, with more in their environment.
    async fn start_with(
        gateways: usize,
        apis: usize,
        env: &[(&'static str, &'static str)],
    ) -> Self {
        let mut base = Base::new().await;
        base.env.extend(env.iter().map(|(n, v)| (*n, (*v).into())));
        let (mut listed, mut started) = (Vec::new(), Vec::new());
        for number in 0..gateways {
            let gateway = base.run("gateway", &format!("gateway-{number}"), &listed.join(","));
            listed.push(gateway.address("serving", "peers").await.to_string());
            started.push(gateway);
        }
        let listed = listed.join(",");
        base.env
            .push(("DORMOUSE_KUBERNETES_GATEWAYS", listed.clone()));
        let many = Self {
            gateways: started,
            control: base.run("control", "control", &listed),
            apis: (0..apis)
                .map(|number| base.run("api", &format!("api-{number}"), &listed))
                .collect(),
            base,
        };
        let all = || {
            many.gateways
                .iter()
                .chain(&many.apis)
                .chain([&many.control])
        };
        for role in all() {
            role.ready().await;
        }
        let others = all().count() - 1;
        for role in all() {
            let linked = format!("dormouse_mesh_links{{made_by=\"us\"}} {others}");
            role.shows(&linked).await;
        }
        many
    }

    fn standin(&self) -> &Arc<Standin> {
        self.base.installation.cluster.as_standin().unwrap()
    }

    async fn user_of(&self, api: usize) -> User {
        User {
            api: self.apis[api].url().await,
            key: self.base.installation.key.clone(),
        }
    }

    /// Asks the agent of a sandbox how it is, through a gateway.
    async fn use_through(&self, gateway: usize, made: &Made) -> Result<Answer, String> {
        visit(self.gateways[gateway].url().await, made, &[]).await
    }
}

async fn visit(gateway: String, made: &Made, more: &[(&str, &str)]) -> Result<Answer, String> {
    let url = format!("{gateway}/-/{}/49983/health", made.id);
    let token = [("x-access-token", made.token.as_str())];
    send(Method::GET, &url, &[&token[..], more].concat(), "").await
}

fn path(made: &Made) -> String {
    format!("/sandboxes/{}", made.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_one_api_did_is_so_at_every_gateway_at_once_although_their_watches_bring_nothing() {
    let many = Many::start(3, 2).await;
    for gateway in 0..3 {
        let user = format!("gateway-{gateway}");
        many.standin().faults().hold_watches_of(&user);
    }
    let user = many.user_of(0).await;
    let made = user
        .create(json!({"secure": true, "autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    for gateway in 0..3 {
        let used = many.use_through(gateway, &made).await.unwrap();
        used.is(204);
    }
    // Asleep: each of them knows, and wakes it.
    for gateway in 0..3 {
        let pause = format!("{}/pause", path(&made));
        user.ask(Method::POST, &pause, json!({})).await.is(204);
        let woken = many.use_through(gateway, &made).await.unwrap();
        woken.is(204);
    }
    user.ask(Method::DELETE, &path(&made), Value::Null)
        .await
        .is(204);
    for gateway in 0..3 {
        let gone = many.use_through(gateway, &made).await.unwrap();
        gone.is(502);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_done_through_one_api_is_read_through_another_whose_watch_is_slow() {
    let many = Many::start(1, 2).await;
    let [one, other] = [many.user_of(0).await, many.user_of(1).await];
    let kept = one.create(json!({})).await;
    let faults = many.standin().faults();
    let mut waited = 0;
    for round in 0..3 {
        faults.hold_watches_of("api-1");
        let made = one.create(json!({})).await;
        let path = path(&made);
        let slow = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            faults.release_watches_of("api-1");
        };
        let read = async || other.ask(Method::GET, &path, Value::Null).await;
        let ((read_back, refused), ()) = tokio::join!(counted(&read), slow);
        assert_eq!(read_back.is(200).json()["state"], "running", "{round}");
        waited += u32::from(refused == 0);
        faults.hold_watches_of("api-1");
        one.ask(Method::DELETE, &path, Value::Null).await.is(204);
        let slow = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            faults.release_watches_of("api-1");
        };
        let (ids, ()) = tokio::join!(listed(&other, &made.id), slow);
        assert_eq!(ids, [kept.id.as_str()], "{round}");
        not_too_early(&read).await.is(404);
    }
    assert!(waited > 0, "everybody was told to come again");
    // One that is stuck says so, instead of what is not so any more.
    faults.hold_watches_of("api-1");
    one.ask(Method::DELETE, &path(&kept), Value::Null)
        .await
        .is(204);
    other
        .ask(Method::GET, &path(&kept), Value::Null)
        .await
        .is(503);
    faults.release_watches_of("api-1");
}

/// Asks again while the answer is to come again.
async fn not_too_early(ask: &impl AsyncFn() -> Answer) -> Answer {
    counted(ask).await.0
}

/// The same, and how often it was.
async fn counted(ask: &impl AsyncFn() -> Answer) -> (Answer, u32) {
    let begun = Instant::now();
    let mut refused = 0;
    loop {
        let answer = ask().await;
        if answer.status != 503 || begun.elapsed() > PATIENCE {
            return (answer, refused);
        }
        refused += 1;
        tokio::time::sleep(LOOK).await;
    }
}

/// Lists sandboxes of which one is gone. A list waits for a second until all is seen and shows then what
/// there is, so only one that has waited may have it yet.
async fn listed(user: &User, gone: &str) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let asked = Instant::now();
        let list = user.ask(Method::GET, "/v2/sandboxes", Value::Null).await;
        let list = list.is(200).json();
        let ids = list.as_array().unwrap().iter();
        let ids: Vec<String> = ids
            .map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect();
        let has_waited = asked.elapsed() >= Duration::from_secs(1);
        if !has_waited || begun.elapsed() > PATIENCE || !ids.iter().any(|id| id == gone) {
            return ids;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_brings_a_version_is_answered_by_that_or_told_to_come_again() {
    let many = Many::start(1, 2).await;
    let [one, other] = [many.user_of(0).await, many.user_of(1).await];
    let made = one.create(json!({"secure": true})).await;
    let gateway = many.gateways[0].url().await;
    let with = |version: &str| {
        let (gateway, version) = (gateway.clone(), version.to_owned());
        let made = &made;
        async move { visit(gateway, made, &[("dormouse-version", &version)]).await }
    };
    let deadline = format!("{}/timeout", path(&made));
    let moved = one
        .ask(Method::POST, &deadline, json!({"timeout": 900}))
        .await;
    let version = moved.is(204).header("dormouse-version").unwrap();
    let used = not_too_early(&async || with(&version).await.unwrap()).await;
    used.is(204);
    with("soon").await.unwrap().is(400);
    let never = (version.parse::<u64>().unwrap() + 1_000_000).to_string();
    with(&never).await.unwrap().is(503);
    let headers = [
        ("x-api-key", other.key.reveal()),
        ("dormouse-version", version.as_str()),
    ];
    let url = format!("{}{}", other.api, path(&made));
    let read = async || send(Method::GET, &url, &headers, "").await.unwrap();
    not_too_early(&read).await.is(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_that_starts_while_the_api_server_is_away_serves_what_another_one_knows() {
    let mut many = Many::start(1, 1).await;
    let user = many.user_of(0).await;
    let made = user.create(json!({"secure": true})).await;
    many.standin().stop().await;
    let first = many.gateways[0].address("serving", "peers").await;
    let late = many.base.run("gateway", "late", &first.to_string());
    late.ready().await;
    many.gateways.push(late);
    many.use_through(1, &made).await.unwrap().is(204);
    let nobody = Made {
        id: "inobody".into(),
        token: String::new(),
    };
    many.use_through(1, &nobody).await.unwrap().is(502);
    many.standin().resume().await.unwrap();
    // One that could not renew its lease in time ends, and would be started again.
    let seeds = first.to_string();
    let control = many.base.run("control", "next", &seeds);
    control.ready().await;
    // By its own watch from then on.
    let made = user.create(json!({"secure": true})).await;
    many.use_through(1, &made).await.unwrap().is(204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_that_stands_still_is_not_waited_for_by_every_call_and_caught_up_with_later() {
    let ack = ("DORMOUSE_PEER_ACK_TIMEOUT", "1s");
    let many = Many::start_with(2, 1, &[ack]).await;
    let user = many.user_of(0).await;
    let late = "dormouse_mesh_late_total";
    let before = many.apis[0].count(late).await;
    many.gateways[1].signal(Signal::STOP);
    let mut made = Vec::new();
    for _ in 0..5 {
        let next = user.create(json!({"secure": true})).await;
        many.use_through(0, &next).await.unwrap().is(204);
        made.push(next);
    }
    let begun = Instant::now();
    let mut times = many.apis[0].count(late).await - before;
    while times == 0 && begun.elapsed() < PATIENCE {
        tokio::time::sleep(LOOK).await;
        times = many.apis[0].count(late).await - before;
    }
    // Once, and on a busy machine for another one too.
    assert!((1..3).contains(&times), "waited for {times} times");
    many.gateways[1].signal(Signal::CONT);
    many.apis[0]
        .shows("dormouse_mesh_listeners{standing=\"late\"} 0")
        .await;
    many.standin().faults().hold_watches_of("gateway-1");
    made.push(user.create(json!({"secure": true})).await);
    for made in &made {
        many.use_through(1, made).await.unwrap().is(204);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sleeper_that_is_asked_for_at_three_gateways_at_once_is_woken_once() {
    let many = Many::start(3, 1).await;
    let user = many.user_of(0).await;
    let made = user
        .create(json!({"secure": true, "autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    let pause = format!("{}/pause", path(&made));
    user.ask(Method::POST, &pause, json!({})).await.is(204);
    let asleep = many
        .base
        .installation
        .until(&made.id, |s| s.status.phase == Phase::Paused)
        .await;
    let asking = (0..3).flat_map(|gateway| (0..4).map(move |_| gateway));
    let answers = join_all(asking.map(|gateway| many.use_through(gateway, &made))).await;
    for answer in answers {
        answer.unwrap().is(204);
    }
    let awake = many
        .base
        .installation
        .until(&made.id, |s| s.status.phase == Phase::Running)
        .await;
    assert_eq!(awake.status.sleeps.woken, asleep.status.sleeps.woken + 1);
    let asked = awake.metadata.generation.0 - asleep.metadata.generation.0;
    assert_eq!(asked, 1, "writes of what is wanted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_wait_at_a_gateway_that_is_killed_are_cut_off_and_others_are_served() {
    let mut many = Many::start(2, 1).await;
    let user = many.user_of(0).await;
    let made = user
        .create(json!({"secure": true, "autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    let pause = format!("{}/pause", path(&made));
    user.ask(Method::POST, &pause, json!({})).await.is(204);
    many.control.signal(Signal::STOP);
    let [kept, killed] = [many.gateways[0].url().await, many.gateways[1].url().await];
    let doomed = many.gateways.remove(1);
    let killing = async {
        for gateway in [&many.gateways[0], &doomed] {
            gateway.shows("dormouse_wake_parked_requests 1").await;
        }
        doomed.kill();
        many.control.signal(Signal::CONT);
    };
    let (one, other, ()) = tokio::join!(
        visit(kept.clone(), &made, &[]),
        visit(killed, &made, &[]),
        killing
    );
    one.unwrap().is(204);
    assert!(other.is_err(), "{other:?}");
    visit(kept, &made, &[]).await.unwrap().is(204);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_control_loop_that_stands_still_as_it_puts_somebody_to_sleep_wakes_them_afterwards() {
    let many = Many::start(1, 1).await;
    let user = many.user_of(0).await;
    let made = user
        .create(json!({"secure": true, "autoPause": true, "autoResume": {"enabled": true}}))
        .await;
    for _ in 0..5 {
        let installation = &many.base.installation;
        idle_after(installation, &made.id, 1).await;
        installation
            .until(&made.id, |s| s.status.phase == Phase::Paused)
            .await;
        many.control.signal(Signal::STOP);
        let going_on = async {
            many.gateways[0]
                .shows("dormouse_wake_parked_requests 1")
                .await;
            many.control.signal(Signal::CONT);
        };
        let (woken, ()) = tokio::join!(many.use_through(0, &made), going_on);
        woken.unwrap().is(204);
    }
}
