//! A server that is told to stop while another one is about to take over, or could not: it stops, nobody
//! serves after it, and who is inside has the time that a stop gives. They need root; without it these
//! tests fail and say so.

use rustix::process::Signal;

use crate::{
    sandboxes::until,
    server::Server,
    upgrades::{Open, PATIENT, start},
};

/// Ends the sandbox of a server that has stopped.
fn end_after(mut server: Server, id: &str) {
    let home = std::mem::replace(&mut server.home, tempfile::tempdir().unwrap());
    let server = Server::start_with(home, &PATIENT);
    server.run(&format!("sandbox kill {id}")).ok();
    until("it is gone", || {
        server.run("get sandboxes -A").ok().is_empty().then_some(())
    });
}

#[test]
fn who_was_about_to_take_over_is_refused_by_a_server_that_is_told_to_stop() {
    let mut server = start();
    let id = server.echoing("");
    let mut open = Open::into(&server, &id);
    let mut other = server.would_be();
    other.is_offered();
    server.signal(Signal::TERM);
    // Long before it ends: who is inside is waited for.
    assert!(other.hears("refused").contains("about to end"));
    open.echoes();
    assert!(server.child.try_wait().unwrap().is_none());
    drop(open);
    assert!(server.wait().success(), "{}", server.log());
    end_after(server, &id);
}

#[test]
fn who_is_ready_in_the_very_moment_in_which_a_server_is_told_to_stop_is_refused() {
    // It is chance what is looked at first.
    for _ in 0..4 {
        let mut server = Server::start_in(tempfile::tempdir().unwrap(), &[], &[]);
        let mut other = server.would_be();
        other.is_offered();
        server.signal(Signal::STOP);
        other.say(r#"{"say":"ready"}"#);
        server.signal(Signal::TERM);
        server.signal(Signal::CONT);
        other.hears("refused");
        assert!(server.wait().success(), "{}", server.log());
    }
}

#[test]
fn who_was_inside_when_a_take_over_failed_may_finish_when_the_server_stops() {
    let mut server = start();
    let id = server.echoing("");
    let mut open = Open::into(&server, &id);
    server.is_not_replaced();
    let mut since = Open::into(&server, &id);
    server.signal(Signal::TERM);
    server.has_said("stopping", 1);
    since.echoes();
    drop(since);
    // Nobody else is inside any more.
    for _ in 0..5 {
        open.echoes();
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert!(server.child.try_wait().unwrap().is_none());
    drop(open);
    assert!(server.wait().success(), "{}", server.log());
    end_after(server, &id);
}
