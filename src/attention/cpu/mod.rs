//! Attention on the CPU: what the GPU path is held to.
//!
//! Threads share out blocks of queries and splits of tokens; both are of fixed size, so results do
//! not depend on the number of threads.

mod math;
mod merge;
mod packed;
mod raw;
mod rotate;

use super::config::AttendConfig;
use super::plan::{Plan, QueryShape};
use super::view::{CacheView, Queries};
use crate::error::Result;
use crate::primitives::parallel::map;

/// Queries that go through a row's tokens together.
pub(crate) const BLOCK: usize = 8;
/// Tokens of a tile: what is decoded at a time.
pub(crate) const TILE: usize = 32;
/// Tokens of a split: what one partial state covers.
pub(crate) const SPLIT: usize = 512;

/// Outputs of attention.
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
    let (dim_k, dim_v) = (view.head_dim_k, view.head_dim_v);
    let plan = Plan::new(view.kv_rows, dim_k, dim_v, shape, data.len(), config)?;
    let prepared = rotate::prepare(&plan, data, view.packed.map(|packed| packed.keys));
    let mut tasks = Vec::new();
    for row in 0..plan.kv_rows {
        for start in (0..plan.per_row).step_by(BLOCK) {
            tasks.push((row, start..plan.per_row.min(start + BLOCK)));
        }
    }
    let tables = view.packed.as_ref().map(packed::Tables::new);
    let blocks = map(tasks, |(row, queries)| {
        let block = prepared.block(&plan, row, queries);
        let mut partials = raw::partials(&plan, view, row, &block);
        if let (Some(packed), Some(tables)) = (&view.packed, &tables) {
            partials.extend(packed::partials(&plan, packed, tables, row, &block));
        }
        merge::merge(&plan, &block, &partials, view.packed.map(|packed| packed.values))
    });
    let mut attended = Attended {
        out: Vec::with_capacity(plan.queries() * dim_v),
        lse: Vec::with_capacity(plan.queries()),
    };
    for (out, lse) in blocks {
        attended.out.extend(out);
        attended.lse.extend(lse);
    }
    Ok(attended)
}

/// Ranges of at most `length` that cover `range`.
fn splits(range: core::ops::Range<usize>, length: usize) -> Vec<core::ops::Range<usize>> {
    let end = range.end;
    range.step_by(length).map(|start| start..end.min(start + length)).collect()
}
