//! Caches that an engine keeps: rows of keys and values over the life of a sequence.

pub mod pool;
