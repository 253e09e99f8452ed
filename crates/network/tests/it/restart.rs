//! A server that dies, and the next one.

use crate::world::{ECHO, OTHER, SERVER, World, echoes, is_cut, policy};

#[test]
fn the_next_server_keeps_what_lives_and_removes_what_does_not() {
    let mut world = World::new();
    let rules = policy(None, &[SERVER], &["203.0.113.0/24"]);
    let kept = world.sandbox(&rules);
    let lost = world.sandbox(&policy(None, &[], &[]));
    let mut stream = kept.space.connect(SERVER, ECHO).unwrap();
    assert!(echoes(&mut stream));
    let before = world.table();

    // Nobody is there: the policy stays in force.
    world.network = None;
    assert!(echoes(&mut stream));
    assert!(kept.space.misses(OTHER, ECHO));
    assert!(lost.space.reaches(OTHER, ECHO));

    // The record of one of them is gone.
    world.open(vec![(kept.uid, kept.address, rules)]);
    assert!(echoes(&mut stream), "{before}\n{}", world.table());
    assert!(kept.space.reaches(SERVER, ECHO));
    assert!(kept.space.misses(OTHER, ECHO));
    assert!(lost.space.misses(SERVER, ECHO));
    assert_eq!(world.links().len(), 1);

    // It is under control again.
    world.set(&kept, &policy(Some(false), &[], &[]));
    assert!(is_cut(&mut stream));
    world.network().detach(kept.uid).unwrap();
    drop((kept, lost, stream));
    world.wait_for_no_links();
}

#[test]
fn a_server_that_fails_before_it_adopts_leaves_the_policy_as_it_was() {
    let mut world = World::new();
    let sandbox = world.sandbox(&policy(None, &[SERVER], &["203.0.113.0/24"]));
    world.network = None;
    world.open_and_fail();
    assert!(sandbox.space.reaches(SERVER, ECHO));
    assert!(sandbox.space.misses(OTHER, ECHO));
}

#[test]
fn somebody_who_flushes_the_rules_of_the_host_opens_nothing() {
    let world = World::new();
    let sandbox = world.sandbox(&policy(None, &[SERVER], &["0.0.0.0/0"]));
    world.host.shell("nft flush ruleset");
    assert!(world.table().contains("dormouse-"));
    assert!(sandbox.space.reaches(SERVER, ECHO));
    assert!(sandbox.space.misses(OTHER, ECHO));
}
