use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use auth::{
    Denied,
    key::{self, NewKey},
    manage::{KeysError, MAX_KEYS, ensure_first_key},
};
use kit::Entropy;
use model::{
    Key, Name, Spec as _,
    api_key::ApiKeySpec,
    team::{Limits, Quotas, TeamSpec},
};
use serde_json::json;
use store::{Precondition, Query, Store as _, StoreError, StoreExt as _};

use crate::world::{World, team};

fn unlimited() -> Quotas {
    Quotas::default()
}

fn team_key(name: &str) -> Key {
    Key {
        kind: TeamSpec::KIND,
        namespace: None,
        name: Name::new(name).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_says_whose_it_is_and_what_may_be_had_with_it() {
    let world = World::new().await;
    let quotas = Quotas {
        sandboxes: Some(9),
        ..unlimited()
    };
    let mut blue = world.put_team("blue", quotas).await;
    blue.spec.limits = Limits {
        max_timeout_seconds: Some(60),
    };
    world.keys.store().update_spec(&blue).await.unwrap();
    let own = Quotas {
        running_sandboxes: Some(2),
        ..unlimited()
    };
    let wish = NewKey {
        display_name: "ci".into(),
        user: Some("ada".into()),
        quotas: own,
    };
    let created = world.keys.create(&team("blue"), wish).await.unwrap();
    let caller = world.keys.authenticate(created.key.reveal()).unwrap();
    assert_eq!(caller.team, team("blue"));
    assert_eq!(caller.key.as_ref(), Some(&created.info.id));
    assert_eq!(caller.user.as_deref(), Some("ada"));
    assert_eq!((caller.team_quotas, caller.key_quotas), (quotas, own));
    assert_eq!(caller.limits.max_timeout_seconds, Some(60));

    assert!(!caller.may_manage_keys(), "a new key would have no limits");
    let free = world.caller("blue", unlimited()).await;
    assert!(free.may_manage_keys());

    let owner = caller.owner();
    assert_eq!(owner.key, caller.key);
    assert_eq!(world.keys.find_account(&owner), Some(caller.account()));
}

#[tokio::test(start_paused = true)]
async fn an_administrator_acts_for_a_team_without_a_key_of_it() {
    let world = World::new().await;
    world.caller("blue", unlimited()).await;
    let admin = world.keys.on_behalf_of(&team("blue")).unwrap();
    assert_eq!((&admin.team, &admin.key), (&team("blue"), &None));
    assert_eq!(admin.owner().key, None);
    assert_eq!(
        world.keys.find_account(&admin.owner()),
        Some(admin.account())
    );
    let stranger = world.keys.on_behalf_of(&team("green"));
    assert_eq!(stranger.unwrap_err(), Denied::NoTeam);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_is_let_in() {
    let world = World::new().await;
    let key = world.key("blue", unlimited()).await;
    let good = key.reveal();
    let (_, unknown) = key::mint(&Entropy::seeded(5), team("blue"), NewKey::named("x"));
    let hash = key::hash(good);
    let table = [
        (String::new(), Denied::Malformed),
        ("e2b_".into(), Denied::Malformed),
        (good[4..].into(), Denied::Malformed),
        (good.to_uppercase(), Denied::Malformed),
        (format!("{good} "), Denied::Malformed),
        (format!(" {good}"), Denied::Malformed),
        (format!("{good}\0"), Denied::Malformed),
        // What a leaked record would give.
        (hash.as_str().into(), Denied::Malformed),
        (format!("e2b_{}", &hash.as_str()[..40]), Denied::Unknown),
        (unknown.reveal().into(), Denied::Unknown),
    ];
    for (shown, denied) in table {
        assert_eq!(world.keys.authenticate(&shown).err(), Some(denied));
        assert_eq!(denied.public(), "Invalid API key");
        assert!(!denied.is_retryable());
    }
    assert!(world.keys.authenticate(good).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_revoked_key_is_refused_at_once() {
    let world = World::new().await;
    for _ in 0..100 {
        let created = world
            .keys
            .create(&team("blue"), NewKey::named("short"))
            .await
            .unwrap();
        let text = created.key.reveal();
        // No pause in between: the call returns when the key is in force.
        assert!(world.keys.authenticate(text).is_ok());
        world
            .keys
            .revoke(&team("blue"), created.info.id.as_str())
            .await
            .unwrap();
        assert_eq!(world.keys.authenticate(text).err(), Some(Denied::Unknown));
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_deleted_by_an_administrator_is_a_key_refused_at_once() {
    let world = World::new().await;
    let store = world.keys.store();
    for finalizer in [false, true] {
        let (mut record, secret) =
            key::mint(&world.entropy, team("blue"), NewKey::named("by hand"));
        if finalizer {
            record.metadata.finalizers.push("example.com/later".into());
        }
        store.create_object(&record).await.unwrap();
        assert!(world.keys.authenticate(secret.reveal()).is_ok());
        store
            .delete(&record.key(), Precondition::default())
            .await
            .unwrap();
        let refused = world.keys.authenticate(secret.reveal()).err();
        assert_eq!(refused, Some(Denied::Unknown), "{finalizer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_team_that_goes_shuts_its_keys_out() {
    let world = World::new().await;
    let key = world.key("blue", unlimited()).await;
    let other = world.key("red", unlimited()).await;
    let store = world.keys.store();
    store
        .delete(&team_key("blue"), Precondition::default())
        .await
        .unwrap();
    let refused = world.keys.authenticate(key.reveal()).err();
    assert_eq!(refused, Some(Denied::NoTeam));
    assert_eq!(Denied::NoTeam.public(), Denied::Unknown.public());
    assert!(world.keys.authenticate(other.reveal()).is_ok());
    let refused = world
        .keys
        .create(&team("blue"), NewKey::named("x"))
        .await
        .unwrap_err();
    assert!(matches!(refused, KeysError::NoTeam(_)), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn two_records_of_one_hash_let_nobody_in() {
    let world = World::new().await;
    let (mut record, secret) = key::mint(&world.entropy, team("blue"), NewKey::named("x"));
    let store = world.keys.store();
    store.create_object(&record).await.unwrap();
    record.metadata.namespace = Some(team("red"));
    store.create_object(&record).await.unwrap();
    let refused = world.keys.authenticate(secret.reveal()).err();
    assert_eq!(refused, Some(Denied::Unknown));
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_stopped_lets_nobody_in() {
    let world = World::new().await;
    let key = world.key("blue", unlimited()).await;
    world.tasks.drain(Duration::from_secs(5)).await.unwrap();
    let refused = world.keys.authenticate(key.reveal()).unwrap_err();
    assert_eq!(refused, Denied::NotReady);
    assert!(refused.is_retryable());
    // And a revocation that cannot be put in force says so.
    let (record, _) = key::mint(&world.entropy, team("blue"), NewKey::named("x"));
    let error = world.keys.store().create_object(&record).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_team_sees_and_changes_its_own_keys_only() {
    let world = World::new().await;
    let create = async |of: &str, name: &str| {
        let created = world.keys.create(&team(of), NewKey::named(name)).await;
        created.unwrap()
    };
    let one = create("blue", "one").await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let two = create("blue", "two").await;
    let foreign = create("red", "three").await;
    let names = |of: &str| {
        let all = world.keys.list(&team(of));
        all.iter().map(|k| k.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names("blue"), ["one", "two"]);
    assert_eq!(world.keys.list(&team("blue")), [one.info.clone(), two.info]);

    let foreign_id = foreign.info.id.as_str();
    for id in [foreign_id, "nothing", "", "../x", "NO"] {
        let refused = world.keys.rename(&team("blue"), id, "mine").await;
        assert!(matches!(refused, Err(KeysError::NotFound(_))), "{id}");
        let refused = world.keys.revoke(&team("blue"), id).await;
        assert!(matches!(refused, Err(KeysError::NotFound(_))), "{id}");
    }
    assert!(world.keys.authenticate(foreign.key.reveal()).is_ok());

    let id = one.info.id.as_str();
    let renamed = world.keys.rename(&team("blue"), id, "uno").await.unwrap();
    assert_eq!(&*renamed.name, "uno");
    assert_eq!(names("blue"), ["uno", "two"]);
    assert!(world.keys.authenticate(one.key.reveal()).is_ok());
    for bad in ["", " ", "a\nb", &"x".repeat(129)] {
        let refused = world.keys.rename(&team("blue"), id, bad).await;
        assert!(matches!(refused, Err(KeysError::Invalid(_))), "{bad:?}");
        let refused = world.keys.create(&team("blue"), NewKey::named(bad)).await;
        assert!(matches!(refused, Err(KeysError::Invalid(_))), "{bad:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_team_cannot_fill_the_store_with_keys() {
    let world = World::new().await;
    for _ in 0..MAX_KEYS {
        let (record, _) = key::mint(&world.entropy, team("blue"), NewKey::named("x"));
        world.memory.create_object(&record).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = world.keys.create(&team("blue"), NewKey::named("x")).await;
    assert!(matches!(refused, Err(KeysError::TooMany)));
    assert!(
        world
            .keys
            .create(&team("red"), NewKey::named("x"))
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn the_reply_has_the_shape_that_clients_read() {
    let world = World::new().await;
    let created = world
        .keys
        .create(&team("blue"), NewKey::named("ci"))
        .await
        .unwrap();
    let text = created.key.reveal();
    let reply = serde_json::to_value(&created).unwrap();
    let expected = json!({
        "id": created.info.id,
        "key": text,
        "name": "ci",
        "mask": {
            "prefix": "e2b_",
            "valueLength": 40,
            "maskedValuePrefix": &text[4..6],
            "maskedValueSuffix": &text[40..],
        },
        "createdAt": created.info.created_at.unwrap().to_string(),
    });
    assert_eq!(reply, expected);
    let listed = serde_json::to_value(world.keys.list(&team("blue"))).unwrap();
    let mut hidden = expected;
    hidden.as_object_mut().unwrap().remove("key");
    assert_eq!(listed, json!([hidden]));
}

#[tokio::test(start_paused = true)]
async fn the_first_start_makes_one_key_and_no_later_one_does() {
    let world = World::new().await;
    let store = world.keys.store();
    let first = async || ensure_first_key(&*store, &world.entropy).await.unwrap();
    let secret = first().await.unwrap();
    let caller = world.keys.authenticate(secret.reveal()).unwrap();
    assert_eq!(caller.team, team("default"));
    assert_eq!(first().await, None);
    // Revoking every key is meant: no later start opens the door again.
    world
        .keys
        .revoke(&team("default"), caller.key.unwrap().as_str())
        .await
        .unwrap();
    assert_eq!(first().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_ended_half_way_is_made_again() {
    let world = World::new().await;
    let store = world.keys.store();
    let unseen = ensure_first_key(&*store, &world.entropy).await.unwrap();
    store
        .delete(&team_key("default"), Precondition::default())
        .await
        .unwrap();
    let again = ensure_first_key(&*store, &world.entropy).await.unwrap();
    assert!(world.keys.authenticate(again.unwrap().reveal()).is_ok());
    assert!(world.keys.authenticate(unseen.unwrap().reveal()).is_err());
    let query = Query::kind(ApiKeySpec::KIND);
    assert_eq!(world.memory.list(&query).await.unwrap().records.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_made_keys_otherwise_gets_none_from_us() {
    let world = World::new().await;
    world.key("blue", unlimited()).await;
    let store = world.keys.store();
    let first = ensure_first_key(&*store, &world.entropy).await.unwrap();
    assert_eq!(first, None);
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn no_key_is_in_what_is_logged_or_printed_for_debugging() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let world = World::new().await;
    let created = world
        .keys
        .create(&team("blue"), NewKey::named("ci"))
        .await
        .unwrap();
    let caller = world.keys.authenticate(created.key.reveal()).unwrap();
    let denied = world
        .keys
        .authenticate(&format!("{}0", created.key.reveal()));
    let record = world
        .memory
        .find::<ApiKeySpec>(&Key::namespaced(
            ApiKeySpec::KIND,
            team("blue"),
            created.info.id.clone(),
        ))
        .await
        .unwrap()
        .unwrap();
    let id = created.info.id.as_str();
    world.keys.revoke(&team("blue"), id).await.unwrap();
    let error = world.keys.revoke(&team("blue"), id).await.unwrap_err();
    let mut text = format!(
        "{created:?} {caller:?} {denied:?} {error:?} {error} {record:?} {:?}",
        world.keys
    );
    text.push_str(&String::from_utf8(log.0.lock().unwrap().clone()).unwrap());
    let digits = &created.key.reveal()[4..];
    assert!(!text.contains(digits), "{text}");
    assert!(!text.contains(record.spec.hash.as_str()), "{text}");
    // Of what the mask shows, the rest is still 136 bits away.
    assert!(
        !text.contains(&digits[..7]) && !text.contains(&digits[33..]),
        "{text}"
    );
}
