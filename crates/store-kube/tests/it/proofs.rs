//! What others write into objects of ours, and what becomes of it.

use std::sync::Arc;

use model::{
    Key, Metadata, Name, Namespace, Object, Sandbox, SandboxId, Spec as _,
    lifecycle::Phase,
    sandbox::{Access, Owner, SandboxSpec},
};
use store::{Query, Scope, Standing, Store as _, StoreExt as _, WatchEvent};
use store_kube::{
    KubeStore,
    proof::{Vouch, standing},
};

use crate::cluster::Lab;

/// Signs with something that only it knows.
#[derive(Debug)]
struct Secret(&'static str);

impl Vouch for Secret {
    fn sign(&self, text: &str) -> Box<str> {
        control::events::fingerprint(&[self.0, text])
            .to_string()
            .into()
    }

    fn knows(&self, text: &str, signature: &str) -> bool {
        *self.sign(text) == *signature
    }
}

pub(crate) fn ours(lab: &Lab) -> KubeStore {
    lab.store().vouched(Arc::new(Secret("ours")))
}

fn owner(team: &str) -> Owner {
    Owner {
        team: Namespace::new(team).unwrap(),
        user: None,
        key: None,
    }
}

fn named(team: &str, name: &str) -> Sandbox {
    let namespace = Namespace::new(team).unwrap();
    let metadata = Metadata::new(Some(namespace), Name::new(name).unwrap());
    Object::new(metadata, SandboxSpec::default())
}

fn delivered(team: &str, name: &str, id: u128) -> Sandbox {
    let mut sandbox = named(team, name);
    sandbox.spec.owner = Some(owner(team));
    sandbox.spec.sandbox_id = Some(SandboxId::from_random(id));
    sandbox.spec.access = Some(Box::new(Access {
        agent_token: Some("11".repeat(32).into()),
        ..Access::default()
    }));
    sandbox.spec.epoch = model::Epoch(1);
    sandbox
}

async fn read(store: &KubeStore, key: &Key) -> Sandbox {
    store.find(key).await.unwrap().unwrap()
}

fn fields(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn what_we_write_is_read_as_it_was_written() {
    let lab = Lab::new().await;
    let store = ours(&lab);
    let mut made = store
        .create_object(&delivered("team", "box", 1))
        .await
        .unwrap();
    assert_eq!(made.spec, delivered("team", "box", 1).spec);
    assert_eq!(standing(&made.metadata), Standing::Made);
    made.spec.sandbox_id = Some(SandboxId::from_random(2));
    let written = store.update_spec(&made).await.unwrap();
    assert_eq!(written.spec, made.spec);
    assert!(written.metadata.annotations.is_empty());
    assert_eq!(read(&store, &made.key()).await, written);
    let mut seen = written.clone();
    seen.status.phase = Phase::Running;
    let seen = store.update_status(&seen).await.unwrap();
    assert_eq!(standing(&seen.metadata), Standing::Ours);
    assert_eq!(seen.spec, made.spec);
}

#[tokio::test]
async fn an_id_an_owner_and_a_pool_that_others_write_are_in_no_record() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let victim = delivered("victims", "box", 1);
    store.create_object(&victim).await.unwrap();
    let mut forged = delivered("thieves", "box", 1);
    forged.spec.pool = Some(Name::new("warm").unwrap());
    let listed = store.list(&Query::kind(SandboxSpec::KIND)).await.unwrap();
    let scope = Scope::kind(SandboxSpec::KIND);
    let mut watch = store.watch(scope, listed.version).await.unwrap();
    others.create_object(&forged).await.unwrap();
    let told = loop {
        match watch.next().await.unwrap() {
            WatchEvent::Put { record, .. } => break record.decode::<SandboxSpec>().unwrap(),
            WatchEvent::Bookmark(_) | WatchEvent::Removed { .. } => {}
        }
    };
    let found = read(&store, &forged.key()).await;
    assert_eq!(found, told);
    let bare = SandboxSpec {
        epoch: found.spec.epoch,
        ..SandboxSpec::default()
    };
    assert_eq!(found.spec, bare);
    let had = ["spec.access", "spec.owner", "spec.pool", "spec.sandboxId"];
    assert_eq!(standing(&found.metadata), Standing::Unproven(fields(&had)));
    // Nor is it found by what it claims to be.
    let mut query = Query::kind(SandboxSpec::KIND);
    let id = victim.spec.sandbox_id.as_ref().unwrap();
    query.fields = vec![("spec.sandboxId".into(), id.as_str().into())];
    let found = store.list_objects::<SandboxSpec>(&query).await.unwrap().0;
    let places: Vec<_> = found.iter().map(Sandbox::key).collect();
    assert_eq!(places, [victim.key()]);
}

#[tokio::test]
async fn a_proof_counts_for_no_other_object() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let made = delivered("team", "box", 1);
    let mut made = store.create_object(&made).await.unwrap();
    made.spec.sandbox_id = Some(SandboxId::from_random(2));
    store.update_spec(&made).await.unwrap();
    // As it stands in the cluster, with its proof.
    let raw = read(&others, &made.key()).await;
    assert!(!raw.metadata.annotations.is_empty());
    let mut copy = raw.clone();
    copy.metadata.name = Name::new("copy").unwrap();
    let mut elsewhere = raw.clone();
    elsewhere.metadata.namespace = Some(Namespace::new("another").unwrap());
    for stolen in [&copy, &elsewhere] {
        others.create_object(stolen).await.unwrap();
        let found = read(&store, &stolen.key()).await;
        assert_eq!(found.spec.sandbox_id, None);
        assert_eq!(found.spec.owner, None);
    }
    // Nor for the next object of its name, once it was written with its uid.
    others.delete_object(&raw).await.unwrap();
    others.create_object(&raw).await.unwrap();
    assert_eq!(read(&store, &raw.key()).await.spec.sandbox_id, None);
}

#[tokio::test]
async fn a_proof_of_an_earlier_delivery_cannot_be_put_back_over_a_later_one() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let made = delivered("team", "box", 1);
    let mut made = store.create_object(&made).await.unwrap();
    made.spec.claimed_at = Some(model::Timestamp::from_micros(1));
    let first = store.update_spec(&made).await.unwrap();
    let with_first_proof = read(&others, &made.key()).await;
    let mut claimed = first.clone();
    claimed.spec = delivered("team", "box", 2).spec;
    claimed.spec.epoch = model::Epoch(2);
    store.update_spec(&claimed).await.unwrap();
    let mut replayed = read(&others, &made.key()).await;
    replayed.metadata.annotations = with_first_proof.metadata.annotations.clone();
    replayed.spec = with_first_proof.spec.clone();
    replayed.spec.epoch = model::Epoch(2);
    others.update_spec(&replayed).await.unwrap();
    let found = read(&store, &made.key()).await;
    assert_eq!(found.spec.sandbox_id, None);
    assert_eq!(found.spec.owner, None);
    let standing = standing(&found.metadata);
    assert!(matches!(standing, Standing::Unproven(_)), "{standing:?}");
}

#[tokio::test]
async fn a_proof_of_another_installation_is_none() {
    let lab = Lab::new().await;
    let theirs = lab.store().vouched(Arc::new(Secret("theirs")));
    let made = delivered("team", "box", 1);
    theirs.create_object(&made).await.unwrap();
    assert_eq!(read(&ours(&lab), &made.key()).await.spec.sandbox_id, None);
}

#[tokio::test]
async fn what_others_change_is_as_it_was_and_written_back_with_the_next_write() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let made = delivered("team", "box", 1);
    let made = store.create_object(&made).await.unwrap();
    let mut edited = read(&others, &made.key()).await;
    edited.spec.owner = Some(owner("another"));
    edited.spec.access = None;
    edited.spec.env.insert("A", "1");
    others.update_spec(&edited).await.unwrap();
    let found = read(&store, &made.key()).await;
    assert_eq!(found.spec.owner, made.spec.owner);
    assert_eq!(found.spec.access, made.spec.access);
    // What is anybody's to change is changed.
    assert_eq!(found.spec.env.get("A"), Some("1"));
    let changed = ["spec.access", "spec.owner"];
    assert_eq!(
        standing(&found.metadata),
        Standing::Altered(fields(&changed))
    );
    let written = store.update_spec(&found).await.unwrap();
    assert_eq!(standing(&written.metadata), Standing::Made);
    let raw = read(&others, &made.key()).await;
    assert_eq!(raw.spec.owner, made.spec.owner);
    assert_eq!(
        raw.metadata.annotations.len(),
        1,
        "the note is in no object"
    );
}

#[tokio::test]
async fn what_runs_without_a_proof_is_its_namespaces() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let mut made = store
        .create_object(&delivered("team", "box", 1))
        .await
        .unwrap();
    made.status.phase = Phase::Running;
    store.update_status(&made).await.unwrap();
    let mut raw = read(&others, &made.key()).await;
    raw.metadata.annotations = model::StringMap::new();
    raw.spec.owner = Some(owner("another"));
    others.update_spec(&raw).await.unwrap();
    let found = read(&store, &made.key()).await;
    assert_eq!(found.spec.owner, Some(owner("team")));
    assert_eq!(found.spec.sandbox_id, None);
    assert!(matches!(standing(&found.metadata), Standing::Unproven(_)));
}

#[tokio::test]
async fn a_pool_that_nobody_believes_stays_where_an_api_server_keeps_it() {
    let lab = Lab::new().await;
    let (store, others) = (ours(&lab), lab.store());
    let mut forged = named("team", "box");
    forged.spec.pool = Some(Name::new("warm").unwrap());
    others.create_object(&forged).await.unwrap();
    let found = read(&store, &forged.key()).await;
    assert_eq!(found.spec.pool, None);
    let written = store.update_spec(&found).await.unwrap();
    assert_eq!(written.spec.pool, None);
    let raw = read(&others, &forged.key()).await;
    assert_eq!(raw.spec.pool, forged.spec.pool);
    store.delete_object(&written).await.unwrap();
}
