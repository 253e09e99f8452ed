//! Randomness as an input: the machine's in production, a seed's in tests and simulations.

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

/// A shared source of randomness.
#[derive(Debug)]
pub struct Entropy(Mutex<StdRng>);

impl Entropy {
    /// Seeded by the operating system. Good enough for ids and secrets: the generator is ChaCha.
    #[must_use]
    pub fn from_os() -> Self {
        Self(Mutex::new(StdRng::from_os_rng()))
    }

    /// The same numbers for the same seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// 128 random bits.
    pub fn u128(&self) -> u128 {
        self.0.lock().random()
    }

    /// 64 random bits.
    pub fn u64(&self) -> u64 {
        self.0.lock().random()
    }

    /// A number from 0 up to, not including, `end`; 0 if there is none.
    pub fn below(&self, end: usize) -> usize {
        if end == 0 {
            0
        } else {
            self.0.lock().random_range(0..end)
        }
    }

    /// Whether something of this probability (0 to 1) happens now.
    pub fn chance(&self, probability: f64) -> bool {
        self.0.lock().random_bool(probability.clamp(0.0, 1.0))
    }

    /// Fills a buffer, as for a secret.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().fill(bytes);
    }
}
