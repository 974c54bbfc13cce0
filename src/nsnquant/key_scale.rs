//! The key scale: a factor for each channel of the keys of one KV head of one sequence.
//!
//! It is fixed from the first tokens and then belongs to the sequence: a page packed under one scale
//! must be read under the same. Keys are divided by it once their mean is gone; attention multiplies
//! the queries by it instead.

use half::f16;

use crate::error::{Error, Result};
use crate::shape::{Elements, MAX_HEAD_DIM, check_head_dim};

/// Chunks that the scale is fixed from, at most.
const CHUNKS: usize = 8;
/// Tokens that the average of all channels counts as, against which a few tokens say little.
const PRIOR: f32 = 8.0;
/// Smallest mean square of a chunk that is not all mean.
const NOTHING: f32 = 1e-12;

/// Key scales of a list of pages.
#[derive(Clone, Copy, Debug)]
pub struct KeyScales<'a> {
    /// The scales `[scales, head_dim]`.
    pub values: &'a [f16],
    /// Which of them each page is packed under `[pages]`.
    pub of_page: &'a [u32],
}

impl<'a> KeyScales<'a> {
    /// Checks the scales for `pages` pages of `head_dim` channels.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Offsets`] for a page whose scale is not there;
    /// [`Error::Parameter`] for a factor that is not from 2^-10 to 2^10.
    pub fn check(&self, head_dim: usize, pages: usize) -> Result<()> {
        if !self.values.len().is_multiple_of(head_dim) {
            let expected = crate::shape::next_multiple(self.values.len(), head_dim);
            return Err(Error::Length { argument: "key scale", got: self.values.len(), expected });
        }
        if self.of_page.len() != pages {
            let got = self.of_page.len();
            return Err(Error::Length { argument: "key scale pages", got, expected: pages });
        }
        let scales = self.values.len() / head_dim;
        if let Some(index) = self.of_page.iter().position(|which| *which as usize >= scales) {
            return Err(Error::Offsets {
                argument: "key scale pages",
                index,
                got: u64::from(self.of_page[index]),
                expected: "the number of a scale",
            });
        }
        let range = 1.0 / 1024.0..=1024.0;
        match self.values.iter().find(|value| !range.contains(&value.to_f32())) {
            None => Ok(()),
            Some(value) => Err(Error::Parameter {
                argument: "key scale",
                got: f64::from(value.to_f32()),
                expected: "a number from 2^-10 to 2^10",
            }),
        }
    }

    /// The scale of a page.
    pub(super) fn of(&self, page: usize, head_dim: usize) -> &'a [f16] {
        let which = self.of_page[page] as usize;
        &self.values[which * head_dim..(which + 1) * head_dim]
    }
}

/// The key scale of one KV head, fixed from the first token rows `[tokens, head_dim]` of it that get
/// packed: the square root of each channel's root mean square over the first 8 chunks, after every
/// token is brought to norm sqrt(head_dim) and its chunk's mean is taken off.
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
    if !rows.len().is_multiple_of(head_dim) {
        let expected = crate::shape::next_multiple(rows.len(), head_dim);
        return Err(Error::Length { argument: "rows", got: rows.len(), expected });
    }
    let tokens = (rows.len() / head_dim).min(CHUNKS * chunk);
    let mut squares = [0.0f32; MAX_HEAD_DIM];
    let squares = &mut squares[..head_dim];
    let mut part = vec![0.0; chunk.min(tokens) * head_dim];
    for first in (0..tokens).step_by(chunk) {
        let count = chunk.min(tokens - first);
        let part = &mut part[..count * head_dim];
        rows.read(first * head_dim, part);
        let mut mean = [0.0f32; MAX_HEAD_DIM];
        for row in part.chunks_exact_mut(head_dim) {
            normalise(row);
            mean.iter_mut().zip(row.iter()).for_each(|(mean, x)| *mean += x / count as f32);
        }
        for row in part.chunks_exact(head_dim) {
            for ((square, x), mean) in squares.iter_mut().zip(row).zip(&mean) {
                *square += (x - mean) * (x - mean);
            }
        }
    }
    let average = squares.iter().sum::<f32>() / (head_dim * tokens.max(1)) as f32;
    let factor = |square: &f32| {
        let share = (square + PRIOR * average) / ((tokens as f32 + PRIOR) * average);
        f16::from_f32(share.sqrt().sqrt())
    };
    if average > NOTHING {
        Ok(squares.iter().map(factor).collect())
    } else {
        Ok(vec![f16::ONE; head_dim])
    }
}

/// Brings a row to norm sqrt(head_dim); a row of zeros stays.
fn normalise(row: &mut [f32]) {
    let top = row.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    if top < f32::MIN_POSITIVE {
        row.fill(0.0);
        return;
    }
    row.iter_mut().for_each(|x| *x /= top);
    let square = row.iter().map(|x| x * x).sum::<f32>();
    let scale = (row.len() as f32 / square).sqrt();
    row.iter_mut().for_each(|x| *x *= scale);
}
