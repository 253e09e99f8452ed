//! Servers take each other's place behind a stock Envoy: its clients notice no more of it than those of
//! the gateway. It needs root; without it this fails and says so.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use crate::{
    envoy::Envoy,
    loopback::Own,
    run::agent,
    sandboxes::until,
    server::Server,
    upgrades::{PATIENT, ask},
};

/// A request for a page inside.
fn page(id: &str) -> String {
    format!("GET /hello.txt HTTP/1.1\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 8000")
}

impl Server {
    /// A sandbox with a page.
    fn with_page(&self) -> String {
        let id = self.run("sandbox create --auto-resume --timeout 1h").ok();
        let id = id.trim().to_owned();
        let serve = "echo hello >hello.txt; setsid python3 -m http.server 8000 >log 2>&1 &";
        self.inside(&id, serve);
        until("the page is there", || ask(&self.door(), &page(&id)).ok());
        id
    }
}

#[test]
fn clients_of_an_envoy_are_answered_while_a_server_is_replaced_that_lets_go_slowly() {
    agent();
    let own = Own::new();
    let processor = SocketAddr::from((own.ip, 3001));
    let listen = processor.to_string();
    let envoys = [
        "--gateway-trust-forwarded",
        "on",
        "--ext-proc-listen",
        listen.as_str(),
    ];
    let flags = [&PATIENT[..], &envoys].concat();
    let mut server = Server::start_with(tempfile::tempdir().unwrap(), &flags);
    let door = server.door();
    let port: u16 = door.rsplit_once(':').unwrap().1.parse().unwrap();
    let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let envoy = Envoy::start("envoy.yaml", gateway, processor);
    let (id, asleep) = (server.with_page(), server.with_page());
    let api = format!(
        "GET /v2/sandboxes HTTP/1.1\r\nX-API-Key: {}",
        server.exported("E2B_API_KEY")
    );
    let (to, inside) = (envoy.address.to_string(), page(&id));
    until("it answers by way of Envoy", || ask(&to, &inside).ok());
    server.run(&format!("sandbox pause {asleep}")).ok();
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let more = |than: usize| {
        until("more is asked", || {
            (asked.load(Ordering::Relaxed) > than).then_some(())
        });
    };
    // A request that does not end: for five seconds the server does not let go.
    let slow = server.held_up();
    let log = server.home.path().join("log");
    let (old, failures) = thread::scope(|scope| {
        let asking = [&inside, &inside, &api].map(|head| {
            let (done, asked, to) = (&done, &asked, &to);
            scope.spawn(move || {
                let mut failures = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    failures.extend(ask(to, head).err());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                failures
            })
        });
        more(20);
        let wakes = scope.spawn(|| {
            until("it lets go", || {
                let said = std::fs::read_to_string(&log).unwrap();
                said.contains("another server takes over").then_some(())
            });
            ask(&to, &page(&asleep))
        });
        let old = server.upgrade(&flags);
        more(asked.load(Ordering::Relaxed) + 50);
        done.store(true, Ordering::Relaxed);
        let mut failures = asking.map(|one| one.join().unwrap()).concat();
        failures.extend(wakes.join().unwrap().err());
        (old, failures)
    });
    let mut old = old.unwrap();
    assert_eq!(failures, [""; 0], "of {}", asked.load(Ordering::Relaxed));
    drop(slow);
    let ended = until("the old one ends", || old.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    ask(&to, &inside).unwrap();
    drop(envoy);
    server.end();
}
