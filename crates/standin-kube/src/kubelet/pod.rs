//! The life of one Pod: bound, pulled, started, looked after, ended.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use model::{Key, Uid};
use rustix::process::Signal;
use serde_json::{Value, json};
use store::{Change, Half, Precondition};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Blow, Ending, Kubelet, NODE,
    container::{self, Container, Exit, State},
    status,
};
use crate::kinds::PODS;

/// How often processes are looked at.
const LOOK: Duration = Duration::from_millis(25);
/// How long a container that failed rests before it is started again.
const REST: Duration = Duration::from_millis(200);

/// Which Pod, and where.
pub(super) struct Identity {
    pub(super) key: Key,
    pub(super) uid: Uid,
    /// Its address, and the claim to it.
    pub(super) address: (Ipv4Addr, TcpListener),
}

/// Who looks after one Pod.
pub(super) struct Worker {
    kubelet: Arc<Kubelet>,
    key: Key,
    uid: Uid,
    pods: watch::Receiver<Value>,
    blows: mpsc::UnboundedReceiver<Blow>,
    gone: CancellationToken,
    address: Ipv4Addr,
    /// Keeps the address for as long as this lives.
    _claim: TcpListener,
    started: String,
    init: Vec<Value>,
    containers: Vec<Container>,
    /// When containers that ended may start again.
    rested: Instant,
    /// Containers that end as a hook decided, and when.
    endings: Vec<(String, Instant, Ending)>,
    told: Value,
}

impl Worker {
    pub(super) fn new(
        kubelet: Arc<Kubelet>,
        pod: Identity,
        pods: watch::Receiver<Value>,
        blows: mpsc::UnboundedReceiver<Blow>,
        gone: CancellationToken,
    ) -> Self {
        let (address, claim) = pod.address;
        let started = kubelet.world.now();
        Self {
            kubelet,
            key: pod.key,
            uid: pod.uid,
            pods,
            blows,
            gone,
            address,
            _claim: claim,
            started,
            init: Vec::new(),
            containers: Vec::new(),
            rested: Instant::now(),
            endings: Vec::new(),
            told: Value::Null,
        }
    }

    /// Looks after the Pod until it is over. Its processes go with this.
    pub(super) async fn run(mut self) {
        let gone = self.gone.clone();
        let stopping = self.kubelet.world.tasks.stopping().clone();
        tokio::select! {
            () = gone.cancelled() => {}
            () = stopping.cancelled() => {}
            () = self.live() => {}
        }
        // Who made their namespaces is killed when dropped; what is inside goes first.
        for container in &self.containers {
            container.signal(Signal::KILL);
        }
    }

    async fn live(&mut self) {
        self.bind().await;
        let delay = self.kubelet.state.lock().start_delay;
        sleep(delay).await;
        let specs = list(&self.pod()["spec"]["containers"]);
        self.containers = specs.iter().map(Container::new).collect();
        self.publish(false).await;
        let mut begun = false;
        loop {
            let pod = self.pod();
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.end(&pod).await;
                return;
            }
            if self.kubelet.state.lock().lost {
                self.vanish().await;
                continue;
            }
            if !begun {
                begun = self.start_init(&pod).await;
            }
            if begun {
                self.tend(&pod).await;
            }
            let phase = self.publish(begun).await;
            if matches!(phase, "Succeeded" | "Failed") {
                self.wait_for_deletion().await;
                return;
            }
            tokio::select! {
                changed = self.pods.changed() => if changed.is_err() { return },
                () = sleep(LOOK) => {}
                Some(blow) = self.blows.recv() => {
                    if self.suffer(blow).await {
                        self.wait_for_deletion().await;
                        return;
                    }
                }
            }
        }
    }

    /// Puts the Pod on this node, unless it is on one.
    async fn bind(&self) {
        use store::Store as _;
        let store = &self.kubelet.world.store;
        while let Ok(Some(record)) = store.get(&self.key).await {
            let mut body: Value = serde_json::from_str(&record.spec).unwrap_or_default();
            if body["spec"]["nodeName"].is_string() || record.uid() != self.uid {
                return;
            }
            body["spec"]["nodeName"] = NODE.into();
            let mut fields = record.fields.clone();
            fields.insert("spec.nodeName", NODE);
            let change = Change {
                key: self.key.clone(),
                uid: Some(self.uid),
                expected: record.version(),
                half: Half::Spec {
                    meta: Box::new(record.meta.clone()),
                    spec: body.to_string().into(),
                },
                fields,
            };
            // Another writer was first: look again.
            if store.fill_in(change).is_ok() {
                return;
            }
        }
    }

    fn pod(&mut self) -> Value {
        self.pods.borrow_and_update().clone()
    }

    /// The node is lost: nothing runs, and nobody says so.
    async fn vanish(&mut self) {
        for container in &mut self.containers {
            container.kill().await;
            container.state = State::Waiting {
                reason: "ContainerCreating",
            };
        }
        let mut stirred = self.kubelet.stirred.subscribe();
        while self.kubelet.state.lock().lost {
            if stirred.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether an image can be had.
    fn pulls(&self, image: &str) -> bool {
        let state = self.kubelet.state.lock();
        !state.broken_images.iter().any(|part| image.contains(part))
    }

    /// Runs the init containers, all at once; answers whether they are done.
    async fn start_init(&mut self, pod: &Value) -> bool {
        let specs = list(&pod["spec"]["initContainers"]);
        let now = self.kubelet.world.now();
        let mut done = true;
        let mut statuses = Vec::new();
        for spec in &specs {
            let mut container = Container::new(spec);
            if self.pulls(&container.image) {
                let random = self.kubelet.world.entropy.u128();
                container.start(None, &now, random);
                let exit = Exit {
                    code: 0,
                    reason: "Completed",
                    message: "",
                };
                container.ended(&exit, &now);
                container.ready = true;
            } else {
                container.rest("ImagePullBackOff");
                done = false;
            }
            statuses.push(container.status());
        }
        // Those that are done keep their ids.
        if !self.init.is_empty() && done == self.init_done() {
            return done;
        }
        self.init = statuses;
        done
    }

    fn init_done(&self) -> bool {
        self.init
            .iter()
            .all(|status| status["state"]["terminated"].is_object())
    }

    /// Brings the containers to what the Pod wants.
    async fn tend(&mut self, pod: &Value) {
        let policy = pod["spec"]["restartPolicy"].as_str().unwrap_or("Always");
        let specs = list(&pod["spec"]["containers"]);
        let now = self.kubelet.world.now();
        for at in 0..self.containers.len() {
            let Some(spec) = specs.iter().find(|s| s["name"] == self.containers[at].name) else {
                continue;
            };
            let image = spec["image"].as_str().unwrap_or_default();
            if self.containers[at].is_running() && self.containers[at].image != image {
                self.swap(at, &now).await;
            }
            if let Some(code) = self.containers[at].poll() {
                let reason = if code == 0 { "Completed" } else { "Error" };
                self.end_container(at, code, reason, "", &now).await;
            }
            self.end_in_time(at, &now).await;
            let again = match (&self.containers[at].state, policy) {
                (State::Terminated(_), "Always") => true,
                (State::Terminated(ended), "OnFailure") => ended["terminated"]["exitCode"] != 0,
                (State::Terminated(_) | State::Waiting { .. } | State::Running { .. }, _) => false,
            };
            if again {
                let first = self.containers[at].restarts == 0;
                let reason = if first {
                    "ContainerCreating"
                } else {
                    "CrashLoopBackOff"
                };
                self.containers[at].rest(reason);
                self.rested = Instant::now() + REST;
            }
            let waits = matches!(self.containers[at].state, State::Waiting { .. });
            if waits && (Instant::now() >= self.rested || self.containers[at].restarts == 0) {
                self.start(at, spec, pod, &now).await;
            }
            self.containers[at].becomes_ready(self.address);
            self.note_pid(at);
        }
    }

    /// Ends a container whose image was changed; it starts with the new one.
    async fn swap(&mut self, at: usize, now: &str) {
        let container = &mut self.containers[at];
        container.kill().await;
        let exit = Exit {
            code: 137,
            reason: "Error",
            message: "",
        };
        container.ended(&exit, now);
        container.rest("ContainerCreating");
        self.rested = Instant::now();
    }

    async fn start(&mut self, at: usize, spec: &Value, pod: &Value, now: &str) {
        let image = spec["image"].as_str().unwrap_or_default().to_owned();
        if !self.pulls(&image) {
            let first = matches!(
                self.containers[at].state,
                State::Waiting { reason } if reason != "ErrImagePull" && reason != "ImagePullBackOff"
            );
            let reason = if first {
                "ErrImagePull"
            } else {
                "ImagePullBackOff"
            };
            self.containers[at].state = State::Waiting { reason };
            if first {
                let why = format!("Failed to pull image {image:?}: not found");
                let world = Arc::clone(&self.kubelet.world);
                world.event(pod, "Warning", "Failed", &why).await;
            }
            return;
        }
        let process = match (&self.kubelet.agent, container::is_agent(spec)) {
            (Some(agent), true) => match container::spawn_agent(agent, spec, self.address) {
                Ok(child) => Some(child),
                Err(error) => {
                    tracing::error!(%error, "the agent does not start");
                    self.containers[at].state = State::Waiting {
                        reason: "RunContainerError",
                    };
                    return;
                }
            },
            (_, _) => None,
        };
        if process.is_none() {
            self.foresee(at, pod);
        }
        let random = self.kubelet.world.entropy.u128();
        self.containers[at].image = image;
        self.containers[at].start(process, now, random);
    }

    /// Asks how a container without a process will end.
    fn foresee(&mut self, at: usize, pod: &Value) {
        let hook = self.kubelet.state.lock().ending.clone();
        let owners = list(&pod["metadata"]["ownerReferences"]);
        let of_job = owners.iter().any(|owner| owner["kind"] == "Job");
        let ending = hook.and_then(|decide| decide(pod)).or_else(|| {
            of_job.then(|| Ending {
                code: 0,
                message: String::new(),
                after: Duration::ZERO,
            })
        });
        if let Some(ending) = ending {
            let due = Instant::now() + ending.after;
            self.endings
                .push((self.containers[at].name.clone(), due, ending));
        }
    }

    async fn end_in_time(&mut self, at: usize, now: &str) {
        let name = self.containers[at].name.clone();
        let due = self
            .endings
            .iter()
            .position(|(of, due, _)| *of == name && *due <= Instant::now());
        if let Some(due) = due {
            let (_, _, ending) = self.endings.remove(due);
            let reason = if ending.code == 0 {
                "Completed"
            } else {
                "Error"
            };
            self.end_container(at, ending.code, reason, &ending.message, now)
                .await;
        }
    }

    async fn end_container(
        &mut self,
        at: usize,
        code: i32,
        reason: &str,
        message: &str,
        now: &str,
    ) {
        let container = &mut self.containers[at];
        container.kill().await;
        let exit = Exit {
            code,
            reason,
            message,
        };
        container.ended(&exit, now);
    }

    fn note_pid(&self, at: usize) {
        let container = &self.containers[at];
        let slot = (self.uid, container.name.clone());
        let mut state = self.kubelet.state.lock();
        match container.pid() {
            Some(pid) => state.pids.insert(slot, pid),
            None => state.pids.remove(&slot),
        };
    }

    /// Something happens to the Pod; answers whether that was its end.
    async fn suffer(&mut self, blow: Blow) -> bool {
        let now = self.kubelet.world.now();
        let pod = self.pod();
        match blow {
            Blow::Oom(name) => {
                if let Some(at) = self.containers.iter().position(|c| c.name == name) {
                    self.end_container(at, 137, "OOMKilled", "", &now).await;
                }
                false
            }
            Blow::Exit(name, code) => {
                if let Some(at) = self.containers.iter().position(|c| c.name == name) {
                    let reason = if code == 0 { "Completed" } else { "Error" };
                    self.end_container(at, code, reason, "", &now).await;
                }
                false
            }
            Blow::Evict(why) => {
                for at in 0..self.containers.len() {
                    self.end_container(at, 137, "Error", "", &now).await;
                }
                let world = Arc::clone(&self.kubelet.world);
                world.event(&pod, "Warning", "Evicted", &why).await;
                let mut status = self.status("Failed", &pod);
                status["reason"] = "Evicted".into();
                status["message"] = why.into();
                let patch = json!({"status": status});
                world.patch(&PODS, &self.key, true, &patch).await;
                true
            }
        }
    }

    fn status(&self, phase: &str, pod: &Value) -> Value {
        status::of(
            phase,
            &self.init,
            &self.containers,
            self.address,
            self.kubelet.world.node,
            &self.started,
            &pod["status"],
        )
    }

    /// Says how the Pod is, if that has changed.
    async fn publish(&mut self, begun: bool) -> &'static str {
        let pod = self.pods.borrow().clone();
        let policy = pod["spec"]["restartPolicy"].as_str().unwrap_or("Always");
        let phase = status::phase(&self.containers, policy, begun);
        let status = self.status(phase, &pod);
        if status != self.told {
            let patch = json!({"status": status});
            let world = Arc::clone(&self.kubelet.world);
            if world
                .patch(&PODS, &self.key, true, &patch)
                .await
                .is_success()
            {
                self.told = status;
            }
        }
        phase
    }

    async fn wait_for_deletion(&mut self) {
        loop {
            let pod = self.pod();
            if pod["metadata"]["deletionTimestamp"].is_string() {
                self.end(&pod).await;
                return;
            }
            if self.pods.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ends what runs, within the time that the Pod has, and confirms that it is gone.
    async fn end(&mut self, pod: &Value) {
        for container in &self.containers {
            container.signal(Signal::TERM);
        }
        let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64();
        let deadline = Instant::now() + Duration::from_secs(grace.unwrap_or(0));
        loop {
            let runs = |c: &mut Container| {
                matches!(
                    &c.state,
                    State::Running {
                        process: Some(_),
                        ..
                    }
                ) && c.poll().is_none()
            };
            if !self.containers.iter_mut().any(runs) || Instant::now() >= deadline {
                break;
            }
            tokio::select! {
                () = sleep_until(deadline) => break,
                () = sleep(LOOK) => {}
            }
        }
        let now = self.kubelet.world.now();
        for at in 0..self.containers.len() {
            if self.containers[at].is_running() {
                let code = self.containers[at].poll().unwrap_or(137);
                self.end_container(at, code, "Completed", "", &now).await;
            }
        }
        let only_if = Precondition {
            uid: Some(self.uid),
            version: None,
        };
        let store = &self.kubelet.world.store;
        // Whoever was first, it is gone; with finalizers it waits for them.
        let _ = store.delete_gracefully(&self.key, only_if, Some(0));
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}
