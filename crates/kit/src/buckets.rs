//! Buckets of times, for histograms: up to 16 microseconds, up to twice that, and so on. Of `N` the last
//! one holds the rest.

use std::time::Duration;

/// The upper bounds of the buckets; none for the last.
#[must_use]
pub fn bounds<const N: usize>() -> [Option<Duration>; N] {
    std::array::from_fn(|at| (at + 1 < N).then(|| Duration::from_micros(16 << at)))
}

/// The first bucket that holds so many microseconds.
#[must_use]
pub fn bucket<const N: usize>(micros: u64) -> usize {
    let above = micros.saturating_sub(1) >> 4;
    let bucket = (u64::BITS - above.leading_zeros()) as usize;
    bucket.min(N - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_whose_bound_it_stays_within() {
        let bounds = bounds::<22>();
        assert_eq!(bounds[0], Some(Duration::from_micros(16)));
        assert_eq!(bounds[21], None);
        for micros in [0, 1, 16, 17, 32, 33, 1_000, 60_000_000, u64::MAX] {
            let took = Duration::from_micros(micros);
            let holds = |bound: &Option<Duration>| bound.is_none_or(|bound| took <= bound);
            let first = bounds.iter().position(holds);
            assert_eq!(Some(bucket::<22>(micros)), first, "{micros}");
        }
    }
}
