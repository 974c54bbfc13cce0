//! Steps 4 and 5: scores stretched to `[0, 1]`, and the gap between their extremes.

use crate::nestedkv::plan::{FLAT_SPAN, group_size};
use crate::primitives::cpu::select::threshold;
use crate::primitives::math::{min_max, sum_by};
use crate::primitives::order::order_key;

/// Step 4: stretches the scores of a row to `[0, 1]`; a span up to [`FLAT_SPAN`] gives all zeros.
pub fn normalise(scores: &mut [f32]) {
    let (low, high) = min_max(scores);
    let span = high - low;
    if span <= FLAT_SPAN {
        scores.fill(0.0);
        return;
    }
    for score in scores {
        let stretched = (*score - low) / span;
        *score = if stretched > 1.0 { 1.0 } else { stretched };
    }
}

/// Step 5: mean of the highest tenth less mean of the lowest tenth; 0 for no scores.
pub fn gap(scores: &[f32]) -> f32 {
    if scores.is_empty() {
        return 0.0;
    }
    let count = group_size(scores.len());
    let rising: Vec<u32> = scores.iter().map(|&s| order_key(s)).collect();
    let falling: Vec<u32> = rising.iter().map(|&k| !k).collect();
    (extreme_sum(scores, &rising, count, order_key)
        - extreme_sum(scores, &falling, count, |s| !order_key(s)))
        / count as f32
}

/// Sum of the `count` scores with the highest keys: those above the threshold, and the threshold
/// itself as often as it is needed.
fn extreme_sum(scores: &[f32], keys: &[u32], count: usize, key: impl Fn(f32) -> u32) -> f32 {
    let at = threshold(keys, count);
    let border = scores.iter().zip(keys).find(|(_, k)| **k == at.key).map_or(0.0, |(s, _)| *s);
    sum_by(scores, |s| if key(s) > at.key { s } else { 0.0 }) + at.ties as f32 * border
}
