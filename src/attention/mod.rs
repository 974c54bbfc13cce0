//! Attention over a KV cache whose rows are raw, packed, or both, of any length.
//!
//! Each query is a split softmax: parts of its row's tokens give partial states (largest logit, sum
//! of weights, weighted sum of values), which are merged in a fixed order (FlashAttention-2,
//! arXiv 2307.08691, section 3.1). Packed pages are read as they are (arXiv 2505.18231):
//! with `H q` made once a query, the logit of a token is `s1 (s2 gain <H q, c> + <q, o>)`, and
//! the output is `H^T` of the weighted centroids, plus the page means weighted with `s1`.
//!
//! Stages, the same on both paths: `rotate` prepares the queries, `raw` and `packed` give partial
//! states, `merge` makes outputs of them.
//!
//! # Accuracy
//! With u = 2^-23 (16 + |q| |k| scale), k being the longest key of the row: an output is within u
//! times the row's largest value of f64 attention on the decoded row, and its log within u or 1e-6
//! of it. The CPU path gives the same bits on every host and with any number of threads.
//!
//! # Range
//! A query is scaled by a power of two to a largest element of 2^-12 to 2^-11, so a dot product
//! with any finite key is finite; logits (to base 2) are limited to ±2^126; weights carry a factor
//! 2^-20, so a million tokens of the largest f32 value have a finite sum. Non-finite elements read
//! as 0. A weight below 2^-106 of the largest counts as 0, and values below 2^-100 may be lost, as
//! may digits of keys below 2^-100 under queries that are as large as those are small.

mod config;
pub mod cpu;
pub mod gpu;
mod params;
mod plan;
mod tables;
mod view;

pub use config::{AttendConfig, Causal, NO_KEY, PagedAttend};
pub use view::{CacheView, PackedView, Queries};
