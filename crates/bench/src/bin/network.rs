//! Connecting a sandbox to the network, and what grows with their number. The baseline is what
//! the kernel asks for an empty network namespace, which every container has.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::{os::fd::OwnedFd, sync::mpsc, thread, time::Instant};

use bench::{Samples, Target, verdict};
use model::{Uid, sandbox::NetworkPolicy};
use network::{Network, Options};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    thread::{UnshareFlags, gettid, unshare_unsafe},
};

const EACH: usize = 500;

/// A namespace with a thread in it that ends when this is dropped.
struct Space {
    tid: i32,
    netlink: Option<OwnedFd>,
    _end: mpsc::Sender<()>,
}

#[expect(unsafe_code, reason = "a thread leaves its network namespace")]
fn leave() {
    // SAFETY: descriptors stay shared; only the network namespace is another.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root can make a network namespace");
}

impl Space {
    fn new(made: &mut Samples) -> Self {
        let (end, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let start = Instant::now();
            leave();
            let took = start.elapsed();
            let kind = SocketType::RAW;
            let netlink = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, None);
            let tid = gettid().as_raw_nonzero().get();
            tell.send((tid, netlink, took))
                .expect("the benchmark waits");
            let _ = wait.recv();
        });
        let (tid, netlink, took) = told.recv().expect("the thread tells");
        made.record(took);
        Self {
            tid,
            netlink: Some(netlink.expect("a netlink socket can be made")),
            _end: end,
        }
    }
}

fn main() {
    // Of its own, so that nothing of this machine's network is touched.
    leave();
    let network = Network::open("benchmark", Options::default()).expect("this host can");
    network.adopt(Vec::new()).expect("this host can");
    let mut baseline = Samples::default();
    let mut spaces = Vec::new();
    let mut medians = Vec::new();
    for round in 0..3 {
        let mut attach = Samples::default();
        let mut change = Samples::default();
        let open = network.compile(None).expect("the default is a policy");
        let listed = NetworkPolicy {
            allow_out: ["1.2.3.0/24", "9.9.9.9"].map(Into::into).into(),
            deny_out: vec!["0.0.0.0/0".into()],
            ..NetworkPolicy::default()
        };
        let listed = network.compile(Some(&listed)).expect("it is a policy");
        for number in 0..EACH {
            let mut space = Space::new(&mut baseline);
            let uid = Uid::from_random((round * EACH + number) as u128 + 1);
            let netlink = space.netlink.take().expect("it is there");
            let start = Instant::now();
            let attached = network.attach(uid, space.tid, netlink, open.clone());
            attach.record(start.elapsed());
            attached.expect("it can be connected");
            for policy in [&listed, &open] {
                let start = Instant::now();
                let changed = network.set_policy(uid, policy.clone());
                change.record(start.elapsed());
                changed.expect("it can be changed");
            }
            spaces.push((uid, space));
        }
        attach.print(&format!("attach, {}th on", round * EACH));
        change.print(&format!("change of policy, {}th on", round * EACH));
        medians.push((attach.quantile(0.5), change.quantile(0.5)));
    }
    baseline.print("an empty network namespace (baseline)");
    let mut detach = Samples::default();
    for (uid, _) in &spaces {
        let start = Instant::now();
        let detached = network.detach(*uid);
        detach.record(start.elapsed());
        detached.expect("it can be forgotten");
    }
    detach.print("detach");
    let ratio = |a: std::time::Duration, b: std::time::Duration| a.as_secs_f64() / b.as_secs_f64();
    let empty = baseline.quantile(0.5);
    verdict(
        "attach / empty namespace",
        ratio(medians[0].0, empty),
        Target::AtMost(4.0),
    );
    verdict(
        "attach, 1000 there / none",
        ratio(medians[2].0, medians[0].0),
        Target::AtMost(1.5),
    );
    verdict(
        "change, 1000 there / none",
        ratio(medians[2].1, medians[0].1),
        Target::AtMost(2.0),
    );
}
