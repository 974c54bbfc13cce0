//! How the tokens of a layer are shared out over its heads.

use crate::error::Result;
use crate::nestedkv::config::check_safeguard;
use crate::nestedkv::plan::head_floors;
use crate::primitives::cpu::select::threshold;
use crate::primitives::order::order_key;

/// Shares `total` tokens out over heads by their scores (arXiv 2605.26678, appendix A): each head is sure of
/// its own best `trunc(safeguard * (1 - r) * n)`, the rest goes to the highest scores of all heads.
/// Equal scores: the lower head, then the lower position; NaN loses to every number. The budgets
/// add up to `total`, or to all tokens where there are fewer. Heads may differ in length or be
/// empty.
///
/// # Errors
/// [`crate::Error::Parameter`] for a safeguard outside 0 to 1.
pub fn allocate_head_budgets(
    head_scores: &[&[f32]],
    total: u64,
    safeguard: f64,
) -> Result<Vec<u32>> {
    check_safeguard(safeguard)?;
    let keys: Vec<Vec<u32>> =
        head_scores.iter().map(|scores| scores.iter().map(|&s| order_key(s)).collect()).collect();
    Ok(share(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), total, safeguard))
}

/// [`allocate_head_budgets`] by keys.
pub(super) fn share(heads: &[&[u32]], total: u64, safeguard: f64) -> Vec<u32> {
    let lengths: Vec<usize> = heads.iter().map(|keys| keys.len()).collect();
    let all = lengths.iter().map(|&n| n as u64).sum::<u64>();
    let total = total.min(all);
    let floors = head_floors(&lengths, 1, total, safeguard);
    let rest = total - floors.iter().map(|&f| u64::from(f)).sum::<u64>();
    // All that compete for the rest, head after head, position after position.
    let mut pool = Vec::with_capacity(all as usize);
    let mut starts = Vec::with_capacity(heads.len() + 1);
    for (keys, &floor) in heads.iter().zip(&floors) {
        starts.push(pool.len());
        let sure = threshold(keys, floor as usize);
        let mut ties = if floor == 0 { 0 } else { sure.ties };
        pool.extend(keys.iter().copied().filter(|&key| {
            let tie = key == sure.key && ties > 0;
            ties -= u32::from(tie);
            !(tie || floor > 0 && key > sure.key)
        }));
    }
    starts.push(pool.len());
    let border = threshold(&pool, rest as usize);
    let mut ties = if rest == 0 { 0 } else { border.ties };
    let mut budgets = floors;
    for (head, budget) in budgets.iter_mut().enumerate() {
        for &key in &pool[starts[head]..starts[head + 1]] {
            let tie = key == border.key && ties > 0;
            ties -= u32::from(tie);
            *budget += u32::from(tie || rest > 0 && key > border.key);
        }
    }
    budgets
}
