//! Partial states over the raw tokens of a row.

use super::math::{dot_tile, weigh_tile};
use super::merge::Partial;
use super::rotate::Block;
use super::{BLOCK, SPLIT, TILE, splits};
use crate::attention::plan::{Plan, UNSEEN};
use crate::attention::view::CacheView;
use crate::primitives::parallel::map;

/// One partial state for each split of the raw tokens of a row.
pub(super) fn partials(
    plan: &Plan,
    view: &CacheView<'_>,
    row: usize,
    block: &Block<'_>,
) -> Vec<Partial> {
    let range = view.raw_offsets[row] as usize..view.raw_offsets[row + 1] as usize;
    map(splits(range, SPLIT), |split| {
        let (dim_k, dim_v) = (plan.head_dim_k, plan.head_dim_v);
        let count = block.scales.len();
        let mut partial = Partial::new(count, dim_v, false);
        let mut rows = vec![0.0; TILE * dim_k.max(dim_v)];
        let mut logits = [[0.0; TILE]; BLOCK];
        for tile in splits(split, TILE) {
            let tokens = tile.len();
            view.raw_keys.read(tile.start * dim_k, &mut rows[..tokens * dim_k]);
            dot_tile(block.plain, count, &rows[..tokens * dim_k], dim_k, &mut logits);
            for (query, logits) in logits[..count].iter_mut().enumerate() {
                let limit = plan.limit_of(block.queries.start + query);
                for (token, logit) in logits[..tokens].iter_mut().enumerate() {
                    let seen =
                        limit.is_none_or(|limit| view.raw_positions[tile.start + token] <= limit);
                    *logit = if seen { block.scales[query].logit(*logit) } else { UNSEEN };
                }
            }
            if partial.weigh(&mut logits, tokens) {
                view.raw_values.read(tile.start * dim_v, &mut rows[..tokens * dim_v]);
                let values = &rows[..tokens * dim_v];
                weigh_tile(&mut partial.plain, &logits, count, values, dim_v);
            }
        }
        partial
    })
}
