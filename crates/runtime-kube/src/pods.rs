//! The Pods that there are, by the uid of their workload: followed by a watch, and brought up to date
//! with every answer to a write of ours.
//!
//! Labels are anybody's who may make Pods, in any namespace. So a Pod is taken for a workload's only if
//! it carries the mark of who made it, for its own namespace and name, or is known as one already; and
//! what an image led to counts in the namespace where it was seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kit::Tasks;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{Config, Event, watcher},
    },
};
use model::{Digest, Uid};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use crate::{create::named, look, names, options::Keys};

/// More images than these are not remembered.
const IMAGES: usize = 10_000;

/// A Pod, as it was last seen.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) pod: Arc<Pod>,
    /// The cluster has forgotten it, and nobody here asked for that: what is known of it stays until
    /// somebody has heard of its end.
    pub(crate) is_gone: bool,
    /// Its removal was asked for here.
    pub(crate) is_removed: bool,
}

#[derive(Debug, Default)]
struct All {
    by_uid: BTreeMap<Uid, Found>,
    /// Those whose removal was asked for, by their own identity.
    removed: BTreeSet<String>,
    /// What a list under way has shown so far.
    listing: Option<BTreeMap<Uid, Arc<Pod>>>,
    /// What was written since that list began: it need not show it.
    written: BTreeSet<Uid>,
    /// Images that were seen to run, so nodes have them, and what each led to when it last was.
    /// By image and namespace.
    images: BTreeMap<(Box<str>, Box<str>), Option<Digest>>,
}

/// The Pods of one cluster. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Pods {
    keys: Arc<dyn Keys>,
    all: Arc<Mutex<All>>,
    /// Counts changes.
    changed: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

impl Pods {
    /// None are known yet, but by whose mark they are.
    pub(crate) fn new(keys: Arc<dyn Keys>) -> Self {
        Self {
            keys,
            all: Arc::default(),
            changed: watch::Sender::new(0),
            synced: watch::Sender::new(false),
        }
    }

    /// Begins to follow, for as long as `tasks` runs.
    pub(crate) fn follow(client: Client, keys: Arc<dyn Keys>, tasks: &Tasks) -> Self {
        let pods = Self::new(keys);
        let (mine, stop) = (pods.clone(), tasks.stopping().clone());
        let labels = format!("{}={},{}", names::MANAGED_BY, names::DORMOUSE, names::UID);
        tasks.spawn(async move {
            let of_ours = Config::default().labels(&labels);
            let mut events = pin!(watcher(Api::<Pod>::all(client), of_ours).default_backoff());
            loop {
                let event = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    event = events.next() => event,
                };
                match event {
                    Some(Ok(event)) => mine.heard(event),
                    Some(Err(error)) => tracing::warn!(%error, "Pods cannot be followed now"),
                    None => return,
                }
            }
        });
        pods
    }

    /// Waits until all are known.
    pub(crate) async fn synced(&self, within: Duration) -> bool {
        let mut synced = self.synced.subscribe();
        let waited = tokio::time::timeout(within, synced.wait_for(|synced| *synced)).await;
        matches!(waited, Ok(Ok(_)))
    }

    fn heard(&self, event: Event<Pod>) {
        let mut all = self.all.lock();
        match event {
            Event::Init => {
                all.listing = Some(BTreeMap::new());
                all.written.clear();
                return;
            }
            Event::InitApply(mut pod) => {
                pod.metadata.managed_fields = None;
                let uid = self.workload(&all, &pod);
                if let (Some(uid), Some(listing)) = (uid, all.listing.as_mut()) {
                    listing.insert(uid, Arc::new(pod));
                }
                return;
            }
            Event::InitDone => {
                let listed = all.listing.take().unwrap_or_default();
                let missing: Vec<Uid> = all
                    .by_uid
                    .keys()
                    .filter(|uid| !listed.contains_key(uid) && !all.written.contains(uid))
                    .copied()
                    .collect();
                for uid in missing {
                    all.forgotten(uid);
                }
                for (uid, pod) in listed {
                    all.put(uid, pod);
                }
                self.synced.send_replace(true);
            }
            Event::Apply(mut pod) => {
                pod.metadata.managed_fields = None;
                if let Some(uid) = self.workload(&all, &pod) {
                    all.put(uid, Arc::new(pod));
                }
            }
            Event::Delete(pod) => {
                let Some(uid) = uid_of(&pod) else { return };
                let known = all.by_uid.get(&uid);
                if known.is_some_and(|known| known.pod.metadata.uid == pod.metadata.uid) {
                    all.put(uid, Arc::new(pod));
                    all.forgotten(uid);
                }
            }
        }
        drop(all);
        self.changed.send_modify(|count| *count += 1);
    }

    /// The workload that a Pod is, if that is to be believed: who marked it, or a Pod that was.
    fn workload(&self, all: &All, pod: &Pod) -> Option<Uid> {
        let uid = uid_of(pod)?;
        let known = all.by_uid.get(&uid);
        let is_known = known.is_some_and(|known| known.pod.metadata.uid == pod.metadata.uid);
        (is_known || self.is_marked(uid, pod)).then_some(uid)
    }

    /// Whether a Pod was made for a workload, by who holds the seal.
    pub(crate) fn is_marked(&self, uid: Uid, pod: &Pod) -> bool {
        let (namespace, name) = named(pod);
        let mark = look::annotation(pod, names::MARK);
        uid_of(pod) == Some(uid)
            && mark.is_some_and(|mark| self.keys.has_marked(uid, namespace, name, mark))
    }

    /// Takes the answer to a write.
    pub(crate) fn wrote(&self, mut pod: Pod) -> Arc<Pod> {
        // Nobody here asks who wrote what, and there are many.
        pod.metadata.managed_fields = None;
        let pod = Arc::new(pod);
        if let Some(uid) = uid_of(&pod) {
            let mut all = self.all.lock();
            all.written.insert(uid);
            all.put(uid, Arc::clone(&pod));
        }
        self.changed.send_modify(|count| *count += 1);
        pod
    }

    /// Notes that a removal is asked for here.
    pub(crate) fn removing(&self, uid: Uid, identity: &str) {
        let mut all = self.all.lock();
        all.removed.insert(identity.to_owned());
        if let Some(found) = all.by_uid.get_mut(&uid) {
            found.is_removed = found.pod.metadata.uid.as_deref() == Some(identity);
        }
    }

    /// Takes that back: the cluster did not take it.
    pub(crate) fn stays(&self, uid: Uid, identity: &str) {
        let mut all = self.all.lock();
        all.removed.remove(identity);
        let found = all.by_uid.get_mut(&uid);
        if let Some(found) = found.filter(|it| it.pod.metadata.uid.as_deref() == Some(identity)) {
            found.is_removed = false;
        }
    }

    /// Takes the cluster's word that a Pod is not there.
    pub(crate) fn vanished(&self, uid: Uid, identity: &str) {
        let mut all = self.all.lock();
        let is_it = |found: &Found| found.pod.metadata.uid.as_deref() == Some(identity);
        if all.by_uid.get(&uid).is_some_and(is_it) {
            all.by_uid.remove(&uid);
        }
        all.removed.remove(identity);
    }

    /// Forgets what is known of one that is gone.
    pub(crate) fn forget(&self, uid: Uid) {
        let mut all = self.all.lock();
        if all.by_uid.get(&uid).is_some_and(|found| found.is_gone) {
            all.by_uid.remove(&uid);
        }
    }

    /// Whether an image was seen to run, wherever.
    pub(crate) fn has_run(&self, image: &str) -> bool {
        let all = self.all.lock();
        let mut from = all.images.range((image.into(), Box::default())..);
        from.next().is_some_and(|((of, _), _)| **of == *image)
    }

    /// What an image led to when it was last seen to run in a namespace.
    pub(crate) fn digest_of(&self, namespace: &str, image: &str) -> Option<Digest> {
        let place = (image.into(), namespace.into());
        self.all.lock().images.get(&place).cloned().flatten()
    }

    pub(crate) fn find(&self, uid: Uid) -> Option<Found> {
        self.all.lock().by_uid.get(&uid).cloned()
    }

    pub(crate) fn list(&self) -> Vec<(Uid, Found)> {
        let all = self.all.lock();
        all.by_uid
            .iter()
            .map(|(uid, found)| (*uid, found.clone()))
            .collect()
    }

    /// Waits until something is true of a Pod. None if it does not become so in time.
    pub(crate) async fn wait<T>(
        &self,
        uid: Uid,
        until: Instant,
        mut is_so: impl FnMut(Option<&Found>) -> Option<T>,
    ) -> Option<T> {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(it) = is_so(self.find(uid).as_ref()) {
                return Some(it);
            }
            // The sender is part of what is borrowed here.
            if !matches!(timeout_at(until, changed.changed()).await, Ok(Ok(()))) {
                return None;
            }
        }
    }
}

impl All {
    /// Takes a Pod, unless something newer is known.
    fn put(&mut self, uid: Uid, pod: Arc<Pod>) {
        if let Some(known) = self.by_uid.get(&uid) {
            let is_same = known.pod.metadata.uid == pod.metadata.uid;
            let is_older = match is_same {
                true => known.is_gone || version(&pod) < version(&known.pod),
                // Names and labels are given again; what was there before is not.
                false => pod.metadata.creation_timestamp < known.pod.metadata.creation_timestamp,
            };
            if is_older {
                return;
            }
        }
        if look::container(&pod).is_some_and(|one| one.started == Some(true)) {
            if self.images.len() >= IMAGES {
                self.images.clear();
            }
            let (images, mut digests) = (look::images(&pod), look::digests(&pod));
            let (namespace, _) = named(&pod);
            for (name, image) in images.iter() {
                let place = (image.into(), namespace.into());
                let known = self.images.entry(place).or_default();
                if let Some(digest) = digests.remove(name) {
                    *known = Some(digest);
                }
            }
        }
        let identity = pod.metadata.uid.as_deref().unwrap_or_default();
        let found = Found {
            is_removed: self.removed.contains(identity),
            is_gone: false,
            pod,
        };
        self.by_uid.insert(uid, found);
    }

    /// A Pod is not there any more.
    fn forgotten(&mut self, uid: Uid) {
        let Some(found) = self.by_uid.get_mut(&uid) else {
            return;
        };
        let identity = found.pod.metadata.uid.clone().unwrap_or_default();
        if self.removed.remove(&identity) || found.is_removed {
            self.by_uid.remove(&uid);
        } else {
            found.is_gone = true;
        }
    }
}

/// The uid of the workload that a Pod is.
fn uid_of(pod: &Pod) -> Option<Uid> {
    pod.metadata.labels.as_ref()?.get(names::UID)?.parse().ok()
}

/// A version is a number to whoever compares those of one object.
fn version(pod: &Pod) -> u64 {
    let text = pod.metadata.resource_version.as_deref();
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use auth::Seal;
    use serde_json::json;

    use super::*;

    fn seal() -> Seal {
        Seal::new([7; 32])
    }

    fn pods() -> Pods {
        Pods::new(Arc::new(seal()))
    }

    fn uid() -> Uid {
        Uid::from_random(1)
    }

    fn pod(identity: &str, version: u64) -> Pod {
        let pod = json!({"metadata": {
            "name": "box", "namespace": "team", "uid": identity,
            "resourceVersion": version.to_string(),
            "labels": {names::UID: uid().to_string()},
        }});
        serde_json::from_value(pod).unwrap()
    }

    fn at(pods: &Pods) -> Option<(u64, bool)> {
        let found = pods.find(uid())?;
        Some((version(&found.pod), found.is_gone))
    }

    fn marked(mut pod: Pod, mark: Box<str>) -> Pod {
        pod.metadata.annotations = Some([(names::MARK.to_owned(), mark.into())].into());
        pod
    }

    #[test]
    fn a_pod_that_only_its_labels_say_to_be_a_workloads_is_not() {
        let pods = pods();
        let mark = seal().mark(uid(), "team", "box");
        pods.heard(Event::Apply(marked(pod("a", 5), mark.clone())));
        assert_eq!(at(&pods), Some((5, false)));
        // Newer, with its label: without a mark, with one for another place, of another seal.
        let mut elsewhere = marked(pod("b", 9), mark.clone());
        elsewhere.metadata.namespace = Some("thieves".to_owned());
        let other = Seal::new([8; 32]).mark(uid(), "team", "box");
        for forged in [pod("b", 9), elsewhere, marked(pod("b", 9), other)] {
            pods.heard(Event::Apply(forged.clone()));
            assert_eq!(at(&pods), Some((5, false)));
            pods.heard(Event::Init);
            pods.heard(Event::InitApply(marked(pod("a", 5), mark.clone())));
            pods.heard(Event::InitApply(forged));
            pods.heard(Event::InitDone);
            assert_eq!(at(&pods), Some((5, false)));
        }
        // One that is known stays what it is, whatever becomes of its annotations.
        pods.heard(Event::Apply(pod("a", 10)));
        assert_eq!(at(&pods), Some((10, false)));
    }

    #[test]
    fn what_is_older_than_what_is_known_changes_nothing() {
        let pods = pods();
        pods.wrote(pod("a", 5));
        pods.heard(Event::Apply(pod("a", 4)));
        assert_eq!(at(&pods), Some((5, false)));
        pods.heard(Event::Apply(pod("a", 6)));
        assert_eq!(at(&pods), Some((6, false)));
        // The end of another that had its name.
        pods.heard(Event::Delete(pod("b", 7)));
        assert_eq!(at(&pods), Some((6, false)));
    }

    #[test]
    fn what_vanishes_is_remembered_until_somebody_has_heard_of_it() {
        let pods = pods();
        pods.wrote(pod("a", 5));
        pods.heard(Event::Delete(pod("a", 6)));
        assert_eq!(at(&pods), Some((6, true)));
        pods.heard(Event::Apply(pod("a", 5)));
        assert_eq!(at(&pods), Some((6, true)), "what is gone is gone");
        pods.forget(uid());
        assert_eq!(at(&pods), None);
    }

    #[test]
    fn what_was_removed_here_is_not() {
        let pods = pods();
        pods.wrote(pod("a", 5));
        pods.removing(uid(), "a");
        assert!(pods.find(uid()).is_some_and(|found| found.is_removed));
        pods.heard(Event::Delete(pod("a", 6)));
        assert_eq!(at(&pods), None);
    }

    #[test]
    fn what_could_not_be_removed_stays() {
        let pods = pods();
        pods.wrote(pod("a", 5));
        pods.removing(uid(), "a");
        pods.stays(uid(), "a");
        assert!(pods.find(uid()).is_some_and(|found| !found.is_removed));
        // Who removes it then is somebody else.
        pods.heard(Event::Delete(pod("a", 6)));
        assert_eq!(at(&pods), Some((6, true)));
    }

    #[test]
    fn a_list_shows_what_has_vanished_meanwhile_but_not_what_was_made_meanwhile() {
        let pods = pods();
        pods.wrote(pod("a", 5));
        pods.heard(Event::Init);
        pods.heard(Event::InitDone);
        assert_eq!(at(&pods), Some((5, true)));
        pods.heard(Event::Init);
        pods.forget(uid());
        pods.wrote(pod("b", 9));
        pods.heard(Event::InitDone);
        assert_eq!(at(&pods), Some((9, false)));
    }

    #[test]
    fn an_image_is_known_once_it_was_seen_to_run() {
        let pods = pods();
        let digest = format!("sha256:{:064x}", 7);
        let with = |started: bool| {
            let mut pod = pod("a", 5 + u64::from(started));
            let images = json!({"main": "app:1"}).to_string();
            pod.metadata.annotations = Some([(names::IMAGES.to_owned(), images)].into());
            let status = json!({"containerStatuses": [{
                "name": names::SANDBOX, "started": started, "image": "x",
                "imageID": format!("r.example/app@{digest}"), "ready": true, "restartCount": 0,
            }]});
            pod.status = serde_json::from_value(status).unwrap();
            pod
        };
        pods.wrote(with(false));
        assert!(!pods.has_run("app:1"));
        pods.heard(Event::Apply(with(true)));
        assert!(pods.has_run("app:1") && !pods.has_run("app:2"));
        assert_eq!(pods.digest_of("team", "app:1").unwrap().as_str(), digest);
        assert_eq!(pods.digest_of("team", "app:2"), None);
        assert_eq!(pods.digest_of("others", "app:1"), None);
    }
}
