//! Archives there and back, without a sandbox.
