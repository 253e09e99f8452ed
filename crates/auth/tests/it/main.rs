//! Keys and quotas over a store and its caches.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod keys;
mod quotas;
mod world;
