//! The GPU path of the shared stages.
