//! Steps 2 and 3: how far each key stands from the means of the three scales, not yet normalised.

use super::anchor::{Sum, Window};
use super::mean::{BLOCKS_PER_TASK, mean};
use super::norm::{self, FLOOR_FACTOR};
use crate::nestedkv::plan::{GRID, SHORT_SUM};
use crate::primitives::math::dot;
use crate::primitives::parallel;
use crate::shape::{Dtype, Elements};

/// Token rows whose keys are to be scored.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// Elements `[tokens, dim]`.
    pub data: Elements<'a>,
    /// Channels.
    pub dim: usize,
    /// Whether the rows already have norm 1.
    pub normalised: bool,
}

impl Keys<'_> {
    /// Reads the key of `token` as it is stored; returns its factor with the sign set when the row
    /// holds NaN or Inf.
    fn read(&self, token: usize, out: &mut [f32]) -> f32 {
        let bad = self.data.read(token * self.dim, out);
        let factor = if self.normalised {
            norm::LIFT
        } else if self.data.dtype() == Dtype::F16 {
            norm::factor_moderate(out)
        } else {
            norm::factor(out)
        };
        if bad { -factor } else { factor }
    }
}

/// Raw scores of one row, to be filled.
#[derive(Debug)]
pub struct Raw<'a> {
    /// The keys as they came.
    pub keys: Keys<'a>,
    /// Stable, episodic and current scores, `[tokens]` each.
    pub scores: [&'a mut [f32]; 3],
    /// Factors of the rows; negative where the row holds NaN or Inf.
    pub factors: &'a mut [f32],
}

struct Task<'a> {
    keys: Keys<'a>,
    start: usize,
    episodic: &'a mut [f32],
    current: &'a mut [f32],
    factors: &'a mut [f32],
}

/// Fills the raw scores of all rows, which have equally many tokens.
pub fn anomaly(rows: Vec<Raw<'_>>, block: usize, window: usize) {
    let Some(first) = rows.first() else { return };
    let (tokens, dim) = (first.factors.len(), first.keys.dim);
    let window = window.min(tokens);
    // A long window would be normalised again for every task, so such a row is one task.
    let short = window.max(block) <= SHORT_SUM;
    let span = if short { block * BLOCKS_PER_TASK } else { tokens };
    let per_row = tokens.div_ceil(span);
    let mut tasks = Vec::with_capacity(rows.len() * per_row);
    let mut stable = Vec::with_capacity(rows.len());
    for raw in rows {
        let [s, e, c] = raw.scores;
        stable.push((raw.keys, s));
        let parts = e.chunks_mut(span).zip(c.chunks_mut(span)).zip(raw.factors.chunks_mut(span));
        for (index, ((episodic, current), factors)) in parts.enumerate() {
            let start = index * span;
            tasks.push(Task { keys: raw.keys, start, episodic, current, factors });
        }
    }
    // What each task found, in order: the row's sum adds up the same way every time.
    let sums = parallel::map(tasks, |task| {
        if short {
            run::<i32>(task, dim, block, window)
        } else {
            run::<i64>(task, dim, block, window)
        }
    });
    let means: Vec<Vec<f32>> = sums
        .chunks(per_row)
        .map(|row| mean(row.iter().map(|(sum, _)| sum.as_slice()), dim, tokens))
        .collect();
    let mut tasks = Vec::with_capacity(sums.len());
    for (row, (keys, scores)) in stable.into_iter().enumerate() {
        let mean = means[row].as_slice();
        for (index, part) in scores.chunks_mut(span).enumerate() {
            tasks.push((keys, index * span, mean, sums[row * per_row + index].1, part));
        }
    }
    parallel::for_each(tasks, |(keys, start, mean, factors, out)| {
        let mut key = vec![0.0; dim];
        for ((token, score), factor) in out.iter_mut().enumerate().zip(factors) {
            keys.data.read((start + token) * dim, &mut key);
            let factor = factor.abs();
            if factor < SMALL_FACTOR {
                norm::apply(&mut key, factor);
                *score = -dot(&key, mean);
            } else {
                *score = -((dot(&key, mean) * (1.0 / norm::LIFT)) * factor);
            }
        }
    });
}

/// Factors from here on belong to keys whose products with a mean cannot leave f32's range.
const SMALL_FACTOR: f32 = 1e-15;

/// Episodic and current scores of some blocks; returns the sum of the normalised keys and the factors.
fn run<S: Sum>(task: Task<'_>, dim: usize, block: usize, window: usize) -> (Vec<f32>, &[f32]) {
    let Task { keys, start, episodic, current, factors } = task;
    let end = start + factors.len();
    let mut recent = Window::<S>::new(dim, window, block);
    let mut units = vec![0.0; block * dim];
    // From as far back that the first window is whole and has its oldest token to leave behind.
    for token in start.saturating_sub(window)..start {
        let factor = keys.read(token, &mut units[..dim]);
        recent.enter(token, &mut units[..dim], factor.abs());
    }
    let mut total = vec![0.0; dim];
    let mut sum = vec![S::default(); dim];
    let mut mean = vec![0.0; dim];
    for first in (start..end).step_by(block) {
        let last = (first + block).min(end);
        sum.fill(S::default());
        for (token, unit) in (first..last).zip(units.chunks_exact_mut(dim)) {
            let factor = keys.read(token, unit);
            factors[token - start] = factor;
            recent.push(token, unit, factor.abs(), &mut sum);
        }
        let count = (last - first) as f32;
        for ((mean, total), sum) in mean.iter_mut().zip(&mut total).zip(&sum) {
            let sum = sum.to_f32() * (1.0 / GRID);
            *total += sum;
            *mean = sum / count;
        }
        for (token, unit) in (first..last).zip(units.chunks_exact(dim)) {
            let [e, c, own] = recent.advance(token, unit, &mean);
            let count = (token + 1).min(window) as f32;
            episodic[token - start] = -e;
            // A key's product with itself on the grid stands for its norm of 1, so what the grid cuts
            // off along the key cancels: keys that equal their window are at exactly 1.
            let whole = factors[token - start].abs() < FLOOR_FACTOR && !keys.normalised;
            let unit_product = if whole { own } else { GRID };
            current[token - start] = -(c / unit_product / count);
        }
    }
    (total, factors)
}
