//! Attention on the CPU: what the GPU path is held to.
//!
//! Threads share out blocks of queries and splits of tokens; both are of fixed size, so results do
//! not depend on the number of threads.

mod math;
mod merge;
mod packed;
mod paged;
mod paged_packed;
mod paged_raw;
mod raw;
mod rotate;

pub use paged::{PagedView, attend_paged};

use super::config::AttendConfig;
use super::plan::{Plan, QueryShape};
use super::view::{CacheView, Queries};
use crate::error::Result;
use crate::nsnquant::Codec;
use crate::primitives::parallel::map;
use merge::Partial;
use rotate::{Block, Prepared};

/// Queries that go through a row's tokens together.
pub(crate) const BLOCK: usize = 8;
/// Tokens of a tile: what is decoded at a time.
pub(crate) const TILE: usize = 32;
/// Tokens of a split: what one partial state covers.
pub(crate) const SPLIT: usize = 512;

/// Outputs of attention, and what merges them with further parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Attended {
    /// Outputs `[batch, heads, tokens, head_dim_v]`; 0 where a query sees no key.
    pub out: Vec<f32>,
    /// Natural log of the sum of `exp(logit)`, `[batch, heads, tokens]`;
    /// [`NO_KEY`](super::NO_KEY) where a query sees no key.
    pub lse: Vec<f32>,
}

/// Attention of queries over the rows of a cache.
///
/// # Errors
/// Those of the shapes: [`crate::Error::QueryHeads`] where the query heads do not divide among the
/// KV heads, [`crate::Error::Mismatch`], [`crate::Error::Length`], [`crate::Error::Offsets`],
/// [`crate::Error::HeadDim`], [`crate::Error::Empty`]; [`crate::Error::Parameter`] for a bad scale.
pub fn attend(
    view: &CacheView<'_>,
    queries: &Queries<'_>,
    config: &AttendConfig,
) -> Result<Attended> {
    let Queries { data, batch, heads, tokens, head_dim } = *queries;
    view.check(config.causal.is_some())?;
    let shape = QueryShape { batch, heads, tokens, head_dim };
    let dims = [view.head_dim_k, view.head_dim_v];
    let plan = Plan::new(view.kv_rows, dims, shape, data.len(), config.into())?;
    let scales = view.packed.and_then(|packed| packed.key_scales);
    let prepared = rotate::prepare(&plan, data, view.packed.map(|packed| packed.keys), scales);
    let codecs = view.packed.map(|packed| packed::Codecs::new(packed.keys, packed.values));
    let values = view.packed.map(|packed| packed.values);
    Ok(answer(&plan, &prepared, values, |block| {
        let mut partials = raw::partials(&plan, view, block.row, block);
        if let (Some(packed), Some(codecs)) = (&view.packed, &codecs) {
            partials.extend(packed::partials(&plan, packed, codecs, block.row, block));
        }
        partials
    }))
}

/// The outputs of all queries, given what makes the partial states of a block of them.
fn answer(
    plan: &Plan,
    prepared: &Prepared,
    values: Option<&Codec>,
    partials: impl Fn(&Block<'_>) -> Vec<Partial> + Sync + Send,
) -> Attended {
    let mut tasks = Vec::new();
    for row in 0..plan.kv_rows {
        for start in (0..plan.per_row).step_by(BLOCK) {
            tasks.push((row, start..plan.per_row.min(start + BLOCK)));
        }
    }
    let blocks = map(tasks, |(row, queries)| {
        let block = prepared.block(plan, row, queries);
        merge::merge(plan, &block, &partials(&block), values)
    });
    let mut attended = Attended {
        out: Vec::with_capacity(plan.queries() * plan.head_dim_v),
        lse: Vec::with_capacity(plan.queries()),
    };
    for (out, lse) in blocks {
        attended.out.extend(out);
        attended.lse.extend(lse);
    }
    attended
}

/// Ranges of at most `length` that cover `range`.
fn splits(range: core::ops::Range<usize>, length: usize) -> Vec<core::ops::Range<usize>> {
    let end = range.end;
    range.step_by(length).map(|start| start..end.min(start + length)).collect()
}
