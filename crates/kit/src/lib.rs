//! What every process needs and no product word belongs in: time, randomness, backoff, owned
//! tasks, durable files, names of temporary ones, buckets of histograms.

pub mod backoff;
pub mod buckets;
pub mod clock;
pub mod durable;
pub mod entropy;
pub mod tasks;
pub mod unique;

pub use backoff::Backoff;
pub use clock::{Clock, ManualClock, SystemClock};
pub use entropy::Entropy;
pub use tasks::Tasks;
