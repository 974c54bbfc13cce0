//! Joins ragged rows and as many new items for each row.

use crate::error::{Error, Result};
use crate::shape::check_offsets;

/// Row r of `held` `[offsets[rows], width]` followed by its `tokens` new items of `added`
/// `[rows, tokens, width]`, row after row, and where the joined rows start `[rows + 1]`.
///
/// # Errors
/// [`Error::Offsets`] for offsets that do not fit `held`; [`Error::Length`] for `added` of another
/// size; [`Error::OutOfRange`] when the joined rows hold more than `u32::MAX` items.
pub fn append<T: Copy>(
    held: &[T],
    offsets: &[u32],
    added: &[T],
    tokens: usize,
    width: usize,
) -> Result<(Vec<T>, Vec<u32>)> {
    let rows = offsets.len().saturating_sub(1);
    let width = width.max(1);
    check_offsets("offsets", offsets, rows, held.len() / width)?;
    let expected = rows.saturating_mul(tokens).saturating_mul(width);
    if added.len() != expected {
        return Err(Error::Length { argument: "added", got: added.len(), expected });
    }
    let items = held.len() / width + rows * tokens;
    let max = u32::MAX as usize;
    if items > max {
        let (got, max) = (items as u64, max as u64);
        return Err(Error::OutOfRange { argument: "joined items", got, min: 0, max });
    }
    let mut joined = Vec::with_capacity(items * width);
    let mut starts = Vec::with_capacity(rows + 1);
    for row in 0..rows {
        starts.push((joined.len() / width) as u32);
        let [begin, end] = [offsets[row] as usize * width, offsets[row + 1] as usize * width];
        joined.extend_from_slice(&held[begin..end]);
        joined.extend_from_slice(&added[row * tokens * width..(row + 1) * tokens * width]);
    }
    starts.push(items as u32);
    Ok((joined, starts))
}
