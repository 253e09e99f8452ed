//! What every backend of the Store port must pass, one sentence each.
//!
//! A backend runs it with [`conformance_tests!`](crate::conformance_tests), giving a function that
//! makes an empty store and whatever must live as long as it (a temporary directory):
//!
//! ```ignore
//! mod conformance {
//!     async fn make() -> (std::sync::Arc<dyn store::Store>, impl Sized) { … }
//!     store::conformance_tests!(make);
//! }
//! ```
//!
//! A backend that remembers more changes than a test can make (an API server of Kubernetes remembers
//! those of more than a minute, whatever their number) cannot show that it forgets. It says so, and
//! shows it in tests of its own:
//!
//! ```ignore
//!     store::conformance_tests!(make, of a backend that remembers very much);
//! ```
//!
//! The cases use objects of real kinds, so that a backend with schemas can run them too, and ask
//! only what the port promises: where it says "where the store knows", so do they.

#![expect(
    clippy::unwrap_used,
    reason = "tests that live in a library, so that every backend can run them: the names say it all"
)]

pub mod deletes;
pub mod lists;
pub mod races;
pub mod random;
pub mod watches;
pub mod writes;

use std::time::Duration;

use model::{
    Key, Metadata, Name, Namespace, Object, Sandbox, SandboxPool, Spec as _, lifecycle::Phase,
    pool::PoolSpec, sandbox::SandboxSpec,
};

use crate::{Scope, Store, StoreExt as _, Watch, WatchEvent};

/// The kind most cases use.
const KIND: model::KindName = SandboxSpec::KIND;

/// Makes each case a test of one backend. See [`mod@crate::conformance`].
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_tests!($make, of a backend that remembers very much);
        $crate::conformance_tests! { $make =>
            watches: a_watch_from_before_what_is_remembered_is_told_to_list_again
            watches: a_watch_that_falls_behind_is_told_to_list_again
        }
    };
    ($make:expr, of a backend that remembers very much) => {
        $crate::conformance_tests! { $make =>
            writes: a_created_record_gets_uid_version_generation_and_creation_time
            writes: a_draft_cannot_choose_what_the_store_assigns
            writes: creating_over_a_record_is_refused_and_changes_nothing
            writes: a_name_is_its_own_in_each_kind_and_namespace
            writes: versions_increase_across_kinds
            writes: an_update_of_an_old_version_is_refused_and_names_both
            writes: an_update_of_another_of_the_same_name_is_refused
            writes: an_update_of_what_is_not_there_is_not_found
            writes: the_generation_counts_changes_of_the_spec_only
            writes: a_status_update_leaves_the_spec_half_alone
            writes: a_spec_update_leaves_the_status_alone
            writes: an_update_that_changes_nothing_keeps_the_version_and_is_not_watched
            writes: what_the_store_owns_in_metadata_cannot_be_changed
            writes: fields_of_a_newer_version_are_kept
            writes: a_record_over_the_limit_is_refused
            writes: an_acknowledged_write_is_read_at_once
            deletes: a_record_without_finalizers_is_removed_at_once
            deletes: deleting_what_is_not_there_is_not_found
            deletes: a_deletion_happens_only_under_its_precondition
            deletes: a_record_with_finalizers_is_marked_and_stays
            deletes: a_second_deletion_of_a_marked_record_changes_nothing
            deletes: removing_the_last_finalizer_of_a_marked_record_removes_it
            deletes: a_deletion_is_neither_called_off_nor_extended
            deletes: a_status_can_be_updated_while_its_record_waits_for_finalizers
            deletes: a_freed_name_is_taken_by_a_new_identity
            lists: a_listing_is_of_one_kind_in_the_order_of_namespace_and_name
            lists: a_listing_can_be_narrowed_to_a_namespace
            lists: label_terms_select_as_they_say
            lists: a_field_lists_by_its_present_value
            lists: a_label_lists_by_its_present_value
            lists: every_term_of_a_query_narrows
            lists: a_limit_cuts_and_says_so
            lists: pages_neither_skip_nor_repeat_while_others_come_and_go
            watches: a_watch_sees_every_change_in_order_with_what_was_before
            watches: a_removal_is_seen_with_its_last_content
            watches: a_watch_is_of_its_kind_and_namespace_only
            watches: changes_of_no_interest_move_a_watch_on_by_bookmarks
            watches: a_listing_and_a_watch_from_it_leave_no_gap
            watches: cancelling_a_wait_loses_nothing
            watches: a_watch_from_another_incarnation_is_told_to_list_again
            races: of_many_creators_of_one_name_one_succeeds
            races: of_many_writers_of_one_version_one_succeeds
            races: no_acknowledged_change_of_64_writers_is_lost
            random: a_random_history_agrees_with_a_simple_model
        }
    };
    ($make:expr => $($group:ident: $case:ident)*) => {
        $(
            #[::tokio::test]
            async fn $case() {
                let (store, keep) = ($make)().await;
                $crate::conformance::$group::$case(store).await;
                drop(keep);
            }
        )*
    };
}

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).unwrap()
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// A sandbox to be created.
fn sandbox(in_namespace: &str, called: &str) -> Sandbox {
    let metadata = Metadata::new(Some(namespace(in_namespace)), name(called));
    Object::new(metadata, SandboxSpec::default())
}

/// A pool to be created.
fn pool(in_namespace: &str, called: &str) -> SandboxPool {
    let metadata = Metadata::new(Some(namespace(in_namespace)), name(called));
    let spec = PoolSpec::new(name("base"), 1, 2, 3);
    Object::new(metadata, spec)
}

/// A sandbox, created.
async fn created(store: &dyn Store, in_namespace: &str, called: &str) -> Sandbox {
    store
        .create_object(&sandbox(in_namespace, called))
        .await
        .unwrap()
}

async fn find(store: &dyn Store, key: &Key) -> Option<Sandbox> {
    store.find::<SandboxSpec>(key).await.unwrap()
}

/// Sets a variable of the environment: the spec changes.
fn set_env(sandbox: &mut Sandbox, value: usize) {
    sandbox.spec.env.insert("N", value.to_string());
}

async fn set_phase(store: &dyn Store, sandbox: &mut Sandbox, phase: Phase) {
    sandbox.status.phase = phase;
    *sandbox = store.update_status(sandbox).await.unwrap();
}

/// What a watch says next. A watch that says nothing fails the test instead of hanging it.
async fn next(watch: &mut dyn Watch) -> WatchEvent {
    let patience = Duration::from_secs(30);
    let next = tokio::time::timeout(patience, watch.next()).await;
    next.expect("a change was not seen").unwrap()
}

/// What a watch says next, bookmarks aside.
async fn next_change(watch: &mut dyn Watch) -> WatchEvent {
    loop {
        match next(watch).await {
            WatchEvent::Bookmark(_) => {}
            change @ (WatchEvent::Put { .. } | WatchEvent::Removed { .. }) => return change,
        }
    }
}

/// A watch on all sandboxes from now on.
async fn watch_from_now(store: &dyn Store) -> Box<dyn Watch> {
    let version = store.list(&crate::Query::kind(KIND)).await.unwrap().version;
    store.watch(Scope::kind(KIND), version).await.unwrap()
}
