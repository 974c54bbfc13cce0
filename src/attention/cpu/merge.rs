//! Partial states, and outputs made of them.

use super::math::{exp2, ln};
use super::rotate::Block;
use super::{BLOCK, TILE};
use crate::attention::config::NO_KEY;
use crate::attention::plan::{Plan, UNSEEN, WEIGHT_SHIFT};
use crate::nsnquant::Codec;

/// State of a softmax over some of the tokens, for the queries of a block.
pub(super) struct Partial {
    count: usize,
    dim: usize,
    /// Largest logit to base 2.
    top: [f32; BLOCK],
    /// Sum of the weights `2^(logit - top - 20)`; 0 where no key was seen.
    sum: [f32; BLOCK],
    /// Weighted sum of the values `[queries, head_dim_v]`.
    pub(super) plain: Vec<f32>,
    /// The same of the values in the Hadamard domain; empty for raw tokens.
    pub(super) rotated: Vec<f32>,
}

impl Partial {
    pub(super) fn new(count: usize, dim: usize, packed: bool) -> Self {
        Self {
            count,
            dim,
            top: [UNSEEN; BLOCK],
            sum: [0.0; BLOCK],
            plain: vec![0.0; count * dim],
            rotated: if packed { vec![0.0; count * dim] } else { Vec::new() },
        }
    }

    /// Takes in the logits of a tile, `[queries][tokens]`, and leaves the weights of its tokens in
    /// their place. Returns whether any key was seen.
    pub(super) fn weigh(&mut self, logits: &mut [[f32; TILE]; BLOCK], tokens: usize) -> bool {
        let mut seen = false;
        let dim = self.dim;
        for query in 0..self.count {
            let logits = &mut logits[query][..tokens];
            let top = logits.iter().fold(UNSEEN, |top, x| if *x > top { *x } else { top });
            if top == UNSEEN {
                logits.fill(0.0);
                continue;
            }
            seen = true;
            if top > self.top[query] {
                let shrink = exp2(self.top[query] - top);
                self.top[query] = top;
                self.sum[query] *= shrink;
                for sums in [&mut self.plain, &mut self.rotated] {
                    if let Some(sums) = sums.get_mut(query * dim..(query + 1) * dim) {
                        sums.iter_mut().for_each(|sum| *sum *= shrink);
                    }
                }
            }
            let top = self.top[query];
            let mut sum = 0.0;
            for logit in logits.iter_mut() {
                let weight = exp2(*logit - top - WEIGHT_SHIFT);
                *logit = if *logit == UNSEEN { 0.0 } else { weight };
            }
            for weight in logits.iter() {
                sum += weight;
            }
            self.sum[query] += sum;
        }
        seen
    }
}

/// Merges the partial states of a block in their order: outputs `[queries, head_dim_v]` and logs
/// `[queries]`.
pub(super) fn merge(
    plan: &Plan,
    block: &Block<'_>,
    partials: &[Partial],
    values: Option<&Codec>,
) -> (Vec<f32>, Vec<f32>) {
    let dim = plan.head_dim_v;
    let count = block.scales.len();
    let mut out = vec![0.0; count * dim];
    let mut lse = vec![NO_KEY; count];
    let mut rotated = vec![0.0f32; dim];
    for query in 0..count {
        let top = partials.iter().map(|p| p.top[query]).fold(UNSEEN, f32::max);
        if top == UNSEEN {
            continue;
        }
        let range = query * dim..(query + 1) * dim;
        let out = &mut out[range.clone()];
        rotated.fill(0.0);
        let mut sum = 0.0;
        for partial in partials {
            let share = exp2(partial.top[query] - top);
            sum += share * partial.sum[query];
            add(out, share, partial.plain.get(range.clone()));
            add(&mut rotated, share, partial.rotated.get(range.clone()));
        }
        if let Some(codec) = values {
            codec.hadamard().inverse(&mut rotated);
            add(out, 1.0, Some(&rotated));
        }
        for value in out.iter_mut() {
            *value = (*value / sum).clamp(f32::MIN, f32::MAX);
        }
        let bits = f64::from(top) + f64::from(WEIGHT_SHIFT);
        lse[query] = (bits * core::f64::consts::LN_2 + ln(f64::from(sum))) as f32;
    }
    (out, lse)
}

fn add(sums: &mut [f32], share: f32, parts: Option<&[f32]>) {
    for (sum, part) in sums.iter_mut().zip(parts.unwrap_or(&[])) {
        *sum += share * part;
    }
}
