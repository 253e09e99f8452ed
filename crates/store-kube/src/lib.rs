//! The Store port on custom resources.
