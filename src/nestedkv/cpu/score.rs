//! Scores of whole tensors, and the parts of the score as functions of their own.

use super::anomaly::{Keys, Raw, anomaly};
use super::{blend, gate, spread, surprise};
use crate::error::{Error, Result};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::plan::{NONFINITE_SCORE, block_size_for};
use crate::primitives::parallel;
use crate::shape::{Elements, Tensor, check_head_dim};

/// Scores of `rows` rows of `tokens` tokens, with the parts that they are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// Rows: sequences times KV heads.
    pub rows: usize,
    /// Tokens of each row.
    pub tokens: usize,
    /// `[rows, tokens]`, in `[0, 1]`, or -1 for a key row that holds NaN or Inf. Higher stays.
    pub score: Vec<f32>,
    /// Stable, episodic and current scores, `[rows, tokens]` each, in `[0, 1]`.
    pub scales: [Vec<f32>; 3],
    /// Weighted sums of the three, `[rows, tokens]`.
    pub blend: Vec<f32>,
    /// Weights of the three scales in each row.
    pub weights: Vec<[f32; 3]>,
    /// Key rows that hold NaN or Inf.
    pub nonfinite: usize,
}

/// Scores of keys `[rows, tokens, head_dim]`; every row on its own: all steps of [`crate::nestedkv`]
/// (arXiv 2605.26678).
///
/// # Errors
/// As [`ScoreConfig::validate`].
pub fn score_batched(keys: &Tensor<'_>, cfg: &ScoreConfig) -> Result<Scores> {
    let per_row = keys.tokens() * keys.head_dim();
    let rows: Vec<_> =
        (0..keys.rows()).map(|row| keys.data().slice(row * per_row..(row + 1) * per_row)).collect();
    score_rows(&rows, keys.tokens(), keys.head_dim(), cfg)
}

/// Scores of the keys `[tokens, head_dim]` of one head: [`score_batched`] with one row.
///
/// # Errors
/// As [`score_batched`], and as [`Tensor::new`] for the shape.
pub fn score(keys: Elements<'_>, head_dim: usize, cfg: &ScoreConfig) -> Result<Vec<f32>> {
    check_head_dim("keys", head_dim)?;
    let keys = Tensor::new("keys", keys, 1, keys.len() / head_dim, head_dim)?;
    Ok(score_batched(&keys, cfg)?.score)
}

/// Scores of rows that lie apart; each holds `tokens * head_dim` elements.
pub(super) fn score_rows(
    rows: &[Elements<'_>],
    tokens: usize,
    head_dim: usize,
    cfg: &ScoreConfig,
) -> Result<Scores> {
    cfg.validate()?;
    let keys: Vec<_> =
        rows.iter().map(|&data| Keys { data, dim: head_dim, normalised: false }).collect();
    let (mut scales, factors) =
        raw_scales(&keys, tokens, block_size_for(tokens), cfg.window as usize);
    let mut blended = vec![0.0; rows.len() * tokens];
    let mut score = vec![0.0; rows.len() * tokens];
    let mut weights = vec![[0.0; 3]; rows.len()];
    let mut tasks = Vec::with_capacity(rows.len());
    let [s, e, c] = &mut scales;
    let parts = s
        .chunks_mut(tokens)
        .zip(e.chunks_mut(tokens))
        .zip(c.chunks_mut(tokens))
        .zip(blended.chunks_mut(tokens))
        .zip(score.chunks_mut(tokens))
        .zip(factors.chunks(tokens))
        .zip(&mut weights);
    for ((((((s, e), c), blended), score), factors), weights) in parts {
        tasks.push(([s, e, c], blended, score, factors, weights));
    }
    parallel::for_each(tasks, |(mut scales, blended, score, factors, weights)| {
        for scale in &mut scales {
            spread::normalise(scale);
        }
        let scales = scales.map(|s| &*s);
        *weights = blend::weights(scales.map(spread::gap), cfg.beta, cfg.prior, tokens);
        blend::blend(scales, *weights, blended);
        surprise::deviation(scales, score);
        surprise::centre(score, cfg.rectify);
        gate::gate(scales, blended, cfg.tau, cfg.kappa, score);
        for (score, factor) in score.iter_mut().zip(factors) {
            *score = if *factor < 0.0 { NONFINITE_SCORE } else { *score };
        }
    });
    let nonfinite = factors.iter().filter(|&&f| f < 0.0).count();
    Ok(Scores { rows: rows.len(), tokens, score, scales, blend: blended, weights, nonfinite })
}

fn raw_scales(
    keys: &[Keys<'_>],
    tokens: usize,
    block: usize,
    window: usize,
) -> ([Vec<f32>; 3], Vec<f32>) {
    let len = keys.len() * tokens;
    let mut scales = [vec![0.0; len], vec![0.0; len], vec![0.0; len]];
    let mut factors = vec![0.0; len];
    let [s, e, c] = &mut scales;
    let rows = keys
        .iter()
        .zip(s.chunks_mut(tokens))
        .zip(e.chunks_mut(tokens))
        .zip(c.chunks_mut(tokens))
        .zip(factors.chunks_mut(tokens))
        .map(|((((&keys, s), e), c), factors)| Raw { keys, scores: [s, e, c], factors })
        .collect();
    anomaly(rows, block, window);
    (scales, factors)
}

/// Stable, episodic and current scores in `[0, 1]` of keys `[tokens, head_dim]` that already have
/// norm 1 (NaN and Inf read as 0), with blocks of `block_size` tokens and a trailing window of
/// `window`: steps 2 to 4 of [`crate::nestedkv`] (arXiv 2605.26678, section 2.2).
///
/// # Errors
/// As [`per_scale_anomaly_scores_batched`].
pub fn per_scale_anomaly_scores(
    k_hat: &[f32],
    head_dim: usize,
    block_size: usize,
    window: usize,
) -> Result<[Vec<f32>; 3]> {
    per_scale_anomaly_scores_batched(k_hat, 1, head_dim, block_size, window)
}

/// [`per_scale_anomaly_scores`] of `rows` rows, `[rows, tokens, head_dim]`; answers are
/// `[rows, tokens]`, each row stretched to `[0, 1]` on its own.
///
/// # Errors
/// [`Error::Empty`] for no rows, tokens, block or window; [`Error::Length`] for elements that do not
/// fill whole rows; [`Error::HeadDim`]; [`Error::Parameter`] for keys of a norm above 1.
pub fn per_scale_anomaly_scores_batched(
    k_hat: &[f32],
    rows: usize,
    head_dim: usize,
    block_size: usize,
    window: usize,
) -> Result<[Vec<f32>; 3]> {
    check_head_dim("k_hat", head_dim)?;
    for (argument, value) in [("rows", rows), ("block_size", block_size), ("window", window)] {
        if value == 0 {
            return Err(Error::Empty { argument });
        }
    }
    let tokens = k_hat.len() / rows / head_dim;
    let keys = Tensor::new("k_hat", Elements::F32(k_hat), rows, tokens, head_dim)?;
    if let Some(x) = k_hat.iter().find(|x| x.is_finite() && x.abs() > 1.001) {
        let (got, expected) = (f64::from(*x), "channels of keys of norm 1");
        return Err(Error::Parameter { argument: "k_hat", got, expected });
    }
    let keys: Vec<_> = (0..rows)
        .map(|row| {
            let per_row = tokens * head_dim;
            let data = keys.data().slice(row * per_row..(row + 1) * per_row);
            Keys { data, dim: head_dim, normalised: true }
        })
        .collect();
    let (mut scales, _) = raw_scales(&keys, tokens, block_size.min(tokens), window);
    for scale in &mut scales {
        scale.chunks_mut(tokens).for_each(spread::normalise);
    }
    Ok(scales)
}

/// Blend of the scores of one head: [`head_adaptive_blend_batched`] with one row.
///
/// # Errors
/// As [`head_adaptive_blend_batched`].
pub fn head_adaptive_blend(scales: [&[f32]; 3], beta: f32, prior: [f32; 3]) -> Result<Vec<f32>> {
    head_adaptive_blend_batched(scales, 1, beta, prior)
}

/// Weighted sums of three scores `[rows, tokens]` in `[0, 1]`, weighed in each row by the gap
/// between the means of its highest and lowest tenth: steps 5 and 6 of [`crate::nestedkv`] (arXiv
/// 2605.26678; constants from its appendix A).
///
/// # Errors
/// [`Error::Empty`] for no rows; [`Error::Length`] for scores of different or uneven lengths;
/// [`Error::Parameter`] as [`ScoreConfig::validate`].
pub fn head_adaptive_blend_batched(
    scales: [&[f32]; 3],
    rows: usize,
    beta: f32,
    prior: [f32; 3],
) -> Result<Vec<f32>> {
    ScoreConfig { beta, prior, ..Default::default() }.validate()?;
    let tokens = check_rows(rows, scales[0].len(), &scales)?;
    let mut out = vec![0.0; scales[0].len()];
    for row in 0..rows {
        let range = row * tokens..(row + 1) * tokens;
        let part = scales.map(|s| &s[range.clone()]);
        let weights = blend::weights(part.map(spread::gap), beta, prior, tokens);
        blend::blend(part, weights, &mut out[range]);
    }
    Ok(out)
}

/// Score of one head from its parts: [`surprise_gated_score_batched`] with one row.
///
/// # Errors
/// As [`surprise_gated_score_batched`].
pub fn surprise_gated_score(
    scales: [&[f32]; 3],
    blend: &[f32],
    tau: f32,
    kappa: f32,
    rectify: bool,
) -> Result<Vec<f32>> {
    surprise_gated_score_batched(scales, blend, 1, tau, kappa, rectify)
}

/// Scores `[rows, tokens]` from the three scores and their blend: the blend where the scales agree,
/// the highest of the three where they do not: steps 7 and 8 of [`crate::nestedkv`] (arXiv 2605.26678,
/// appendix A).
///
/// # Errors
/// As [`head_adaptive_blend_batched`].
pub fn surprise_gated_score_batched(
    scales: [&[f32]; 3],
    blend: &[f32],
    rows: usize,
    tau: f32,
    kappa: f32,
    rectify: bool,
) -> Result<Vec<f32>> {
    ScoreConfig { tau, kappa, ..Default::default() }.validate()?;
    let tokens = check_rows(rows, blend.len(), &scales)?;
    let mut out = vec![0.0; blend.len()];
    for row in 0..rows {
        let range = row * tokens..(row + 1) * tokens;
        let part = scales.map(|s| &s[range.clone()]);
        let out = &mut out[range.clone()];
        surprise::deviation(part, out);
        surprise::centre(out, rectify);
        gate::gate(part, &blend[range], tau, kappa, out);
    }
    Ok(out)
}

/// Tokens of a row, when everything has the same length and divides into rows.
fn check_rows(rows: usize, expected: usize, scales: &[&[f32]; 3]) -> Result<usize> {
    if rows == 0 {
        return Err(Error::Empty { argument: "rows" });
    }
    if let Some(scale) = scales.iter().find(|s| s.len() != expected) {
        return Err(Error::Length { argument: "scales", got: scale.len(), expected });
    }
    if !expected.is_multiple_of(rows) {
        let expected = expected.next_multiple_of(rows);
        return Err(Error::Length { argument: "scales", got: scales[0].len(), expected });
    }
    Ok(expected / rows)
}
