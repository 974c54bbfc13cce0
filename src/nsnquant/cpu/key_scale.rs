//! Fixes key scales.

use half::f16;

use super::squares::squares;
use crate::error::{Error, Result};
use crate::nsnquant::key_scale::KEY_SCALE_CHUNKS;
use crate::shape::{Elements, check_head_dim};

/// Tokens that the average of all channels counts as, against which a few tokens say little.
const PRIOR: f32 = 8.0;
/// Smallest mean square of a chunk that is not all mean.
const NOTHING: f32 = 1e-12;

/// The key scale of one KV head, fixed from the first token rows `[tokens, head_dim]` of it that get
/// packed: the square root of each channel's root mean square over the first 8 chunks, after every
/// token is brought to norm sqrt(head_dim) and its chunk's mean is taken off (steps 1 and 2 of
/// [`crate::nsnquant`]). Such scales are this library's; arXiv 2505.18231 has none.
///
/// With fewer tokens it is fixed from those that there are, the last chunk being what is left over.
/// The mean square of a channel counts together with 8 tokens of the average channel, so a few
/// tokens move the scale little and a channel of zeros keeps a factor above 0; no tokens, or tokens
/// that are all mean, give factors of 1.
///
/// # Errors
/// [`Error::HeadDim`]; [`Error::Length`] when `rows` is no whole number of rows; [`Error::Empty`] for
/// a chunk of 0 tokens.
pub fn key_scale(rows: Elements<'_>, head_dim: usize, chunk: usize) -> Result<Vec<f16>> {
    check_head_dim("head_dim", head_dim)?;
    if chunk == 0 {
        return Err(Error::Empty { argument: "chunk" });
    }
    let tokens = (rows.len() / head_dim).min(KEY_SCALE_CHUNKS * chunk);
    let chunks = (0..tokens)
        .step_by(chunk)
        .map(|first| [first, chunk.min(tokens - first)].map(|n| n as u32))
        .collect::<Vec<_>>();
    Ok(fix(&squares(rows, head_dim, &chunks)?, head_dim, tokens))
}

/// The key scale of one KV head from the squares of its chunks `[chunks, head_dim]`, which hold so
/// many tokens together.
pub fn fix(squares: &[f32], head_dim: usize, tokens: usize) -> Vec<f16> {
    let mut sums = vec![0.0f32; head_dim];
    for chunk in squares.chunks_exact(head_dim) {
        sums.iter_mut().zip(chunk).for_each(|(sum, square)| *sum += square);
    }
    let total = sums.iter().fold(0.0, |total, sum| total + sum);
    let average = total / (head_dim * tokens.max(1)) as f32;
    let factor = |square: &f32| {
        let share = (square + PRIOR * average) / ((tokens as f32 + PRIOR) * average);
        f16::from_f32(share.sqrt().sqrt())
    };
    if average > NOTHING { sums.iter().map(factor).collect() } else { vec![f16::ONE; head_dim] }
}
