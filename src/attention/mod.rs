//! Attention over a KV cache whose rows are raw, packed, or both, of any length.
//!
//! Each query is a split softmax: parts of its row's tokens give partial states (largest logit, sum
//! of weights, weighted sum of values), which are merged in a fixed order (FlashAttention-2,
//! arXiv 2307.08691, section 3.1). Packed pages are read as they are (arXiv 2505.18231):
//! with `H q` made once a query, the logit of a token is `s1 (s2 gain <H q, c> + <q, o>)`, and
//! the output is `H^T` of the weighted centroids, plus the page means weighted with `s1`.
//!
//! Where the codec of the keys takes off a rotary embedding, `<q, o>` is `<q, R_t o>` with the mean turned
//! to the token's position: for each pair of channels two coefficients a query and page, and a cosine and
//! a sine a token.
//!
//! Stages, the same on both paths: `rotate` prepares the queries, `raw` and `packed` give partial
//! states of rows that lie side by side, `paged_raw` and `paged_packed` those of rows that lie in the
//! pages of a pool ([`cpu::attend_paged`], [`gpu::attend_paged`]), `merge` makes outputs of them.
//! Results come with the log of the sum of weights, so that a caller can merge partial attentions.
//!
//! # Pages
//! A row of pages is cut into units of 16 pages, sinks by themselves, and tiles end with their page:
//! so no bit depends on the rest of the batch or on where pages lie, be it in more slabs than one
//! dispatch binds. A batch takes five dispatches on the device: queries, sinks, packed pages, tails,
//! merging. Only the dispatches over pages grow in number, with the slabs of a class beyond four,
//! and all but the first with partial results beyond 256 MiB.
//!
//! What is uploaded ([`gpu::DeviceTables`]): 8 bytes a row and 4 a member at each step; when a page
//! was added or left, 4 bytes a page, 24 for each unit and 44 a row. 1,000 sequences of 131,072
//! tokens in pages of 64 with 8 KV heads have lists of 91 MB, which layers of equal tables share. A
//! slot of a query takes `4 * (2 head_dim_v + 2)` bytes of partial results.
//!
//! # Accuracy
//! With u = 2^-23 (16 + |q| |k| scale), k being the longest key of the row: an output is within u
//! times the row's largest value of f64 attention on the decoded row, and its log within u or 1e-6
//! of it; a soft cap, which bends logits towards 0, adds nothing. The CPU path gives the same bits
//! on every host and with any number of threads.
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
