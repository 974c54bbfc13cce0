//! Partial states over the raw tokens of a row.

use super::math::{dot_tile, weigh_tile};
use super::merge::Partial;
use super::rotate::Block;
use super::{BLOCK, SPLIT, TILE, splits};
use crate::attention::plan::Plan;
use crate::attention::view::CacheView;
use crate::primitives::parallel::map;
use crate::shape::Elements;

/// One partial state for each split of the raw tokens of a row.
pub(super) fn partials(
    plan: &Plan,
    view: &CacheView<'_>,
    row: usize,
    block: &Block<'_>,
) -> Vec<Partial> {
    let range = view.raw_offsets[row] as usize..view.raw_offsets[row + 1] as usize;
    map(splits(range, SPLIT), |split| {
        let mut worker = Worker::new(plan, block);
        let [keys, values] =
            [plan.head_dim_k, plan.head_dim_v].map(|dim| split.start * dim..split.end * dim);
        let positions = if plan.causal() { &view.raw_positions[split] } else { &[] };
        worker.tokens(view.raw_keys.slice(keys), view.raw_values.slice(values), positions);
        worker.partial
    })
}

/// Takes in raw tokens, tile after tile.
pub(super) struct Worker<'a> {
    plan: &'a Plan,
    block: &'a Block<'a>,
    pub(super) partial: Partial,
    rows: Vec<f32>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(plan: &'a Plan, block: &'a Block<'a>) -> Self {
        Self {
            plan,
            block,
            partial: Partial::new(block.scales.len(), plan.head_dim_v, false),
            rows: vec![0.0; TILE * plan.head_dim_k.max(plan.head_dim_v)],
        }
    }

    /// Takes in tokens that lie one after the other; positions are not read where attention is not
    /// causal.
    pub(super) fn tokens(&mut self, keys: Elements<'_>, values: Elements<'_>, positions: &[u32]) {
        let (dim_k, dim_v) = (self.plan.head_dim_k, self.plan.head_dim_v);
        let count = self.block.scales.len();
        let mut logits = [[0.0; TILE]; BLOCK];
        for tile in splits(0..keys.len() / dim_k, TILE) {
            let tokens = tile.len();
            keys.read(tile.start * dim_k, &mut self.rows[..tokens * dim_k]);
            let rows = &self.rows[..tokens * dim_k];
            dot_tile(self.block.plain, count, rows, dim_k, &mut logits);
            let positions = positions.get(tile.clone()).unwrap_or(&[]);
            self.block.logits(self.plan, &mut logits, positions, tokens);
            if self.partial.weigh(&mut logits, tokens) {
                values.read(tile.start * dim_v, &mut self.rows[..tokens * dim_v]);
                let values = &self.rows[..tokens * dim_v];
                weigh_tile(&mut self.partial.plain, &logits, count, values, dim_v);
            }
        }
    }
}
