//! NestedKV from its definition (arXiv 2605.26678, section 2 and appendix A).

use super::tame;

/// Constants of the score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Rows of the trailing window.
    pub window: usize,
    /// Sharpness of the blend.
    pub beta: f64,
    /// Centre of the gate.
    pub tau: f64,
    /// Sharpness of the gate.
    pub kappa: f64,
    /// Prior weights of the scales.
    pub prior: [f64; 3],
    /// Whether the centred surprise is cut at 0 (the paper's choice).
    pub rectify: bool,
    /// Largest span of raw anomalies that counts as none.
    pub flat: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            window: 64,
            beta: 3.0,
            tau: 0.6,
            kappa: 10.0,
            prior: [0.4, 0.4, 0.2],
            rectify: false,
            flat: 1e-12,
        }
    }
}

/// Everything that the score of one row goes through.
#[derive(Clone, Debug)]
pub struct Scored {
    /// Anomalies before the stretch, `[3][n]`: stable, episodic, current.
    pub raw: [Vec<f64>; 3],
    /// Anomalies stretched to 0..1, `[3][n]`.
    pub scales: [Vec<f64>; 3],
    /// Largest less smallest raw anomaly of each scale.
    pub span: [f64; 3],
    /// Weights of the scales.
    pub weights: [f64; 3],
    /// Weighted sum of the scales, `[n]`.
    pub blend: Vec<f64>,
    /// The score, `[n]`; -1 for a token with a non-finite element.
    pub score: Vec<f64>,
}

/// Tokens in an episodic block.
pub fn block_size(tokens: usize) -> usize {
    tokens.min((tokens / 32).clamp(128, 256))
}

fn mean_of(rows: &[Vec<f64>], head_dim: usize) -> Vec<f64> {
    (0..head_dim).map(|c| rows.iter().map(|r| r[c]).sum::<f64>() / rows.len() as f64).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn stretch(values: &[f64], flat: f64) -> (Vec<f64>, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let span = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) - low;
    if values.is_empty() || span <= flat {
        (vec![0.0; values.len()], if values.is_empty() { 0.0 } else { span })
    } else {
        (values.iter().map(|v| (v - low) / span).collect(), span)
    }
}

/// Scores the keys `[n, head_dim]` of one row.
///
/// # Panics
/// For keys that are no whole rows.
pub fn score(keys: &[f64], head_dim: usize, constants: &Constants) -> Scored {
    let n = keys.len() / head_dim;
    assert_eq!(n * head_dim, keys.len());
    let unit: Vec<Vec<f64>> = keys
        .chunks(head_dim)
        .map(|row| {
            let row: Vec<f64> = row.iter().map(|x| tame(*x)).collect();
            // Taken out of the squares, so that neither huge nor tiny rows leave the range.
            let top = row.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
            let scaled: Vec<f64> =
                row.iter().map(|x| if top > 0.0 { x / top } else { 0.0 }).collect();
            let norm = dot(&scaled, &scaled).sqrt() * top;
            row.iter().map(|x| x / norm.max(1e-12)).collect()
        })
        .collect();
    let block = block_size(n);
    let stable = if n > 0 { mean_of(&unit, head_dim) } else { vec![0.0; head_dim] };
    let blocks: Vec<Vec<f64>> =
        unit.chunks(block.max(1)).map(|rows| mean_of(rows, head_dim)).collect();
    let mut raw = [const { Vec::new() }; 3];
    for i in 0..n {
        let trailing = mean_of(&unit[(i + 1).saturating_sub(constants.window)..=i], head_dim);
        raw[0].push(-dot(&unit[i], &stable));
        raw[1].push(-dot(&unit[i], &blocks[i / block]));
        raw[2].push(-dot(&unit[i], &trailing));
    }
    let mut span = [0.0; 3];
    let scales: [Vec<f64>; 3] = core::array::from_fn(|k| {
        let (scale, width) = stretch(&raw[k], constants.flat);
        span[k] = width;
        scale
    });
    let weights = weights(&scales, constants);
    let blend: Vec<f64> = (0..n).map(|i| (0..3).map(|k| weights[k] * scales[k][i]).sum()).collect();
    let spread: Vec<f64> = (0..n)
        .map(|i| {
            let mean = (scales[0][i] + scales[1][i] + scales[2][i]) / 3.0;
            ((0..3).map(|k| (scales[k][i] - mean).powi(2)).sum::<f64>() / 3.0).sqrt()
        })
        .collect();
    let (spread, _) = stretch(&spread, 1e-12);
    let mean = spread.iter().sum::<f64>() / n.max(1) as f64;
    let score = (0..n)
        .map(|i| {
            if keys[i * head_dim..(i + 1) * head_dim].iter().any(|x| !x.is_finite()) {
                return -1.0;
            }
            let mut surprise = spread[i] - mean;
            if constants.rectify {
                surprise = surprise.max(0.0);
            }
            let alpha = 1.0 / (1.0 + (-constants.kappa * (surprise - constants.tau)).exp());
            let strongest = scales[0][i].max(scales[1][i]).max(scales[2][i]);
            (1.0 - alpha) * blend[i] + alpha * strongest
        })
        .collect();
    Scored { raw, scales, span, weights, blend, score }
}

/// Weights of the scales of one row.
pub fn weights(scales: &[Vec<f64>; 3], constants: &Constants) -> [f64; 3] {
    let n = scales[0].len();
    if n <= 1 {
        return constants.prior;
    }
    let count = ((n as f64 * 0.10).round_ties_even() as usize).max(1);
    let power: [f64; 3] = core::array::from_fn(|k| {
        let mut sorted = scales[k].clone();
        sorted.sort_by(f64::total_cmp);
        let bottom = sorted[..count].iter().sum::<f64>() / count as f64;
        let top = sorted[n - count..].iter().sum::<f64>() / count as f64;
        constants.prior[k].ln() + constants.beta * (top - bottom)
    });
    let top = power[0].max(power[1]).max(power[2]);
    let parts = power.map(|p| (p - top).exp());
    let total: f64 = parts.iter().sum();
    parts.map(|p| p / total)
}

/// Order of preference: sinks, then higher scores, then lower positions; NaN last.
fn preference(scores: &[f64], sinks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| {
        let rank = |i: usize| {
            if i < sinks {
                f64::INFINITY
            } else if scores[i].is_nan() {
                f64::NEG_INFINITY
            } else {
                // Signed zeros are one score.
                scores[i] + 0.0
            }
        };
        rank(b).total_cmp(&rank(a)).then(a.cmp(&b))
    });
    order
}

/// Positions kept of one row, ascending: the sinks, then the best up to `budget`.
pub fn keep(scores: &[f64], sinks: usize, budget: usize) -> Vec<u32> {
    let n = scores.len();
    let count = sinks.min(n).max(budget.min(n));
    let mut kept: Vec<u32> = preference(scores, sinks)[..count].iter().map(|&i| i as u32).collect();
    kept.sort_unstable();
    kept
}

/// How a total is shared out over heads by their scores (appendix A, head-wise safeguard).
///
/// Sinks are to be given as scores of infinity.
pub fn budgets(heads: &[Vec<f64>], total: usize, safeguard: f64) -> Vec<usize> {
    let all: usize = heads.iter().map(Vec::len).sum();
    let total = total.min(all);
    if all == 0 {
        return vec![0; heads.len()];
    }
    let evicted = (1.0 - total as f64 / all as f64).clamp(0.0, 1.0);
    let mut floors: Vec<usize> = heads
        .iter()
        .map(|h| {
            let floor = (safeguard * (1.0 - evicted) * h.len() as f64).trunc();
            (floor.max(0.0) as usize).min(h.len())
        })
        .collect();
    let sum: usize = floors.iter().sum();
    if sum > total {
        for floor in &mut floors {
            *floor = (*floor as f64 * (total as f64 / sum as f64)).trunc() as usize;
        }
    }
    let mut rest: Vec<(f64, usize, usize)> = Vec::new();
    for (head, scores) in heads.iter().enumerate() {
        for position in preference(scores, 0).into_iter().skip(floors[head]) {
            let score = scores[position];
            let rank = if score.is_nan() { f64::NEG_INFINITY } else { score + 0.0 };
            rest.push((rank, head, position));
        }
    }
    rest.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let left = total - floors.iter().sum::<usize>();
    for (_, head, _) in rest.into_iter().take(left) {
        floors[head] += 1;
    }
    floors
}
