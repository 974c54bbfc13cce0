//! Caches as engines use them. [`gpu::PagedCache`] and its twin [`cpu::PagedCache`] hold many
//! sequences and layers in pages; [`gpu::LayerCache`] and [`cpu::LayerCache`] hold one layer of
//! sequences of one length.
//!
//! A row (one KV head of one sequence) is `sinks` raw tokens, whole packed chunks, and a raw tail
//! ([`plan`]). A chunk is a page: packed once, never changed, shared by forks, freed with its last
//! owner. Raw rows keep the bits that came in.
//!
//! [`pool`] is the account of a paged cache: who holds which page, and what an operation does.

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
pub use paged::{Exported, FILL_ROWS, FetchRows, ScaleRow};
pub use plan::Frontier;
