//! How much each channel of a chunk varies: what a key scale is made of.

use crate::error::{Error, Result};
use crate::layout::MAX_CHUNK;
use crate::nsnquant::cpu::encode::{divide_row, row_scale};
use crate::primitives::parallel::map;
use crate::shape::{Elements, MAX_HEAD_DIM, check_head_dim};

/// Sums over the tokens of each chunk of the squares of each channel, after every token is brought to
/// norm sqrt(head_dim) and the chunk's mean is taken off (steps 1 and 2 of [`crate::nsnquant`]): `[chunks, head_dim]`. A chunk is its first
/// row in `data`, token rows `[rows, head_dim]`, and how many there are of it.
///
/// # Errors
/// [`Error::HeadDim`]; [`Error::Length`] when `data` is no whole number of rows; [`Error::Offsets`]
/// for a chunk that does not lie within the rows or is longer than any page.
pub fn squares(data: Elements<'_>, head_dim: usize, chunks: &[[u32; 2]]) -> Result<Vec<f32>> {
    check_head_dim("head_dim", head_dim)?;
    if !data.len().is_multiple_of(head_dim) {
        let expected = crate::shape::next_multiple(data.len(), head_dim);
        return Err(Error::Length { argument: "rows", got: data.len(), expected });
    }
    let rows = data.len() / head_dim;
    let outside = |[first, count]: &[u32; 2]| {
        *first as usize + *count as usize > rows || *count as usize > MAX_CHUNK
    };
    if let Some(index) = chunks.iter().position(outside) {
        let (got, expected) = (u64::from(chunks[index][0]), "a chunk within the token rows");
        return Err(Error::Offsets { argument: "chunks", index, got, expected });
    }
    let of = |[first, count]: [u32; 2]| {
        let mut part = vec![0.0; count as usize * head_dim];
        data.read(first as usize * head_dim, &mut part);
        let mut mean = [0.0f32; MAX_HEAD_DIM];
        for row in part.chunks_exact_mut(head_dim) {
            divide_row(row, row_scale(row));
            mean.iter_mut().zip(row.iter()).for_each(|(mean, x)| *mean += x);
        }
        mean.iter_mut().for_each(|mean| *mean /= count.max(1) as f32);
        let mut squares = vec![0.0; head_dim];
        for row in part.chunks_exact(head_dim) {
            for ((square, x), mean) in squares.iter_mut().zip(row).zip(&mean) {
                *square += (x - mean) * (x - mean);
            }
        }
        squares
    };
    Ok(map(chunks.to_vec(), of).concat())
}
