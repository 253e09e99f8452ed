//! The backend as a whole: what every backend must pass, and what only one with a file can fail.

mod conformance;
