//! The cache of one layer as an engine uses it: append, trim, fork, fetch.
//!
//! A row (one KV head of one sequence) is `sinks` raw tokens, whole packed chunks, and a raw tail
//! ([`plan`]). A chunk is a page: packed once, never changed, shared by forks, freed with its last
//! owner. Raw rows keep the bits that came in.
//!
//! [`pool`] keeps the account of many sequences and layers in one paged memory.

mod config;
mod counters;
pub mod cpu;
pub mod gpu;
mod ledger;
mod paged;
pub mod plan;
pub mod pool;

pub use config::CacheConfig;
pub use counters::Counters;
pub use paged::{Exported, FILL_ROWS, FetchRows};
pub use plan::Frontier;
