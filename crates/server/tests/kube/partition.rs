//! An installation whose processes are on machines of their own, on a network that is cut, heals and is
//! slow.

use std::{net::SocketAddr, time::Duration};

use http::Method;
use kit::Tasks;
use model::lifecycle::Phase;
use rustix::process::Signal;
use serde_json::{Value, json};
use standin_kube::Options;

use crate::{
    daemon,
    http::send,
    installation::{Installation, Role, User},
    lan::{API_SERVER, Lan},
    lives::idle_after,
};

const GATEWAYS: [u8; 3] = [11, 12, 13];
const APIS: [u8; 2] = [21, 22];
const CONTROL: u8 = 31;
/// The one that is cut off, and from whom.
const ALONE: u8 = 13;
const OTHERS: [u8; 6] = [API_SERVER, 11, 12, 21, 22, CONTROL];

/// What every process is told besides where it is.
struct Company {
    lan: Lan,
    installation: Installation,
    gateways: String,
    node: String,
    _tasks: Tasks,
}

impl Company {
    async fn new() -> Self {
        let lan = Lan::new();
        let options = Options {
            address: SocketAddr::new(lan.address(API_SERVER), 0),
            pods: lan.pods(),
            ..Options::default()
        };
        let installation = Installation::at(options).await;
        let tasks = Tasks::default();
        let standin = installation.cluster.as_standin().unwrap();
        let node = daemon::start(standin, &tasks).await.to_string();
        let gateways = GATEWAYS.map(|host| format!("{}:7945", lan.address(host)));
        Self {
            gateways: gateways.join(","),
            lan,
            installation,
            node,
            _tasks: tasks,
        }
    }

    /// Starts a process on a machine.
    fn start(&self, role: &str, host: u8, namespace: &str) -> Role {
        let at = |port: u16| SocketAddr::new(self.lan.address(host), port).to_string();
        let env = [
            ("DORMOUSE_E2B_LISTEN", at(3000)),
            ("DORMOUSE_PEER_LISTEN", at(7945)),
            ("DORMOUSE_METRICS_LISTEN", at(9090)),
            ("DORMOUSE_KUBERNETES_GATEWAYS", self.gateways.clone()),
            ("DORMOUSE_PEER_SEEDS", self.gateways.clone()),
            ("DORMOUSE_KUBERNETES_NODE_DAEMON", "on".into()),
            ("DORMOUSE_KUBERNETES_NODE_PORT", self.node.clone()),
            ("DORMOUSE_WAKE_TIMEOUT", "20s".into()),
        ];
        let env: Vec<_> = env.iter().map(|(n, v)| (*n, v.as_str())).collect();
        self.installation.start_in(namespace, role, &env)
    }

    fn user(&self, host: u8) -> User {
        User {
            api: format!("http://{}:3000", self.lan.address(host)),
            key: self.installation.key.clone(),
        }
    }

    /// Asks something of the agent in a sandbox, by way of a gateway.
    async fn ask(&self, gateway: u8, id: &str) -> Result<u16, String> {
        let at = self.lan.address(gateway);
        let url = format!("http://{at}:3000/-/{id}/49983/health");
        let answer = send(Method::GET, &url, &[], "").await?;
        Ok(answer.status)
    }

    /// Waits until a gateway answers so.
    async fn until(&self, gateway: u8, id: &str, status: u16) {
        let mut last = Err("it was not asked".to_owned());
        for _ in 0..300 {
            last = self.ask(gateway, id).await;
            if last == Ok(status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("gateway {gateway} never answers {status}, last {last:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_network_that_is_cut_heals_and_is_slow_loses_no_wake_and_delivers_nothing_wrong() {
    let company = Company::new().await;
    let start = |role: &str, host: u8| {
        let namespace = company.lan.machine(host);
        company.start(role, host, &namespace)
    };
    let mut gateways = GATEWAYS.map(|host| start("gateway", host));
    let control = start("control", CONTROL);
    let apis = APIS.map(|host| start("api", host));
    for role in gateways.iter().chain(&apis).chain([&control]) {
        role.ready().await;
    }
    let [one, other] = APIS.map(|host| company.user(host));
    let sleeper = json!({"autoPause": true, "autoResume": {"enabled": true}});
    let kept = one.create(json!({})).await.id;
    let sleeps = other.create(sleeper).await.id;
    // What one has told its client, every gateway knows.
    for gateway in GATEWAYS {
        assert_eq!(company.ask(gateway, &kept).await, Ok(204));
    }
    let pause = format!("/sandboxes/{sleeps}/pause");
    one.ask(Method::POST, &pause, json!({})).await.is(204);

    company.lan.cut(ALONE, &OTHERS);
    // It serves what it knows, and the others go on without it.
    assert_eq!(company.ask(ALONE, &kept).await, Ok(204));
    let made = one.create(json!({})).await.id;
    for gateway in [11, 12] {
        assert_eq!(company.ask(gateway, &made).await, Ok(204), "{gateway}");
    }
    assert_eq!(company.ask(ALONE, &made).await, Ok(502));
    // Two wake it at once, and it wakes once; the third cannot, and says so.
    let (first, second, third) = tokio::join!(
        company.ask(11, &sleeps),
        company.ask(12, &sleeps),
        company.ask(ALONE, &sleeps)
    );
    assert_eq!((first, second, third), (Ok(204), Ok(204), Ok(503)));
    let is_awake = |s: &model::Sandbox| s.status.phase == Phase::Running;
    let woken = company.installation.until(&sleeps, is_awake).await;
    assert_eq!(woken.status.sleeps.woken, 1);
    // Nobody can ask it who is in use, so nobody is put to sleep.
    idle_after(&company.installation, &kept, 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(one.state(&kept).await, "running");
    // What is gone is reached by nobody, also where that is not known.
    let path = format!("/sandboxes/{kept}");
    one.ask(Method::DELETE, &path, Value::Null).await.is(204);
    assert_eq!(company.ask(11, &kept).await, Ok(502));
    company.until(ALONE, &kept, 502).await;

    company.lan.heal(ALONE);
    company.until(ALONE, &made, 204).await;
    assert_eq!(company.ask(ALONE, &kept).await, Ok(502));
    // Now all can be asked.
    idle_after(&company.installation, &sleeps, 2).await;
    let is_asleep = |s: &model::Sandbox| s.status.phase == Phase::Paused;
    company.installation.until(&sleeps, is_asleep).await;

    // A gateway dies with somebody waiting: its client hears of it, and those of others are served.
    control.signal(Signal::STOP);
    let dying = async {
        let asked = company.ask(12, &sleeps);
        let dies = async {
            gateways[1].shows("dormouse_wake_parked_requests 1").await;
            gateways[1].signal(Signal::KILL);
            gateways[1].end().await;
            control.signal(Signal::CONT);
        };
        tokio::join!(asked, dies).0
    };
    let (lost, served) = tokio::join!(dying, company.ask(11, &sleeps));
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(served, Ok(204));
    gateways[1] = company.start("gateway", 12, &company.lan.name(12));
    gateways[1].ready().await;
    company.until(12, &sleeps, 204).await;

    // A thin wire slows nobody else down, and all that goes over it arrives.
    company.lan.slow(ALONE);
    let slow = other.create(json!({})).await.id;
    for gateway in [11, 12] {
        assert_eq!(company.ask(gateway, &slow).await, Ok(204), "{gateway}");
    }
    company.until(ALONE, &slow, 204).await;
    for id in [&made, &sleeps, &slow] {
        let path = format!("/sandboxes/{id}");
        one.ask(Method::DELETE, &path, Value::Null).await.is(204);
    }
}
