//! Copies token rows to a ragged list, as f16.

use bytemuck::Zeroable;
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::primitives::parallel;
use crate::shape::{Elements, Tensor, check_offsets};

/// Kept rows that one task copies.
const ROWS_PER_TASK: usize = 1024;

/// Copies the token rows at `positions` (row `r` of the tensor has those from `offsets[r]` to
/// `offsets[r + 1]`) to `[positions.len(), head_dim]` f16. f16 rows keep their bits; bf16 and f32
/// are rounded to nearest, ties to even, with Inf kept and NaN kept as NaN.
///
/// # Errors
/// [`Error::Length`], [`Error::Offsets`] for offsets that do not fit or a position beyond the
/// tokens; [`Error::BeyondF16`] when a finite value rounds beyond f16.
pub fn gather(
    argument: &'static str,
    data: &Tensor<'_>,
    offsets: &[u32],
    positions: &[u32],
) -> Result<Vec<f16>> {
    let dim = data.head_dim();
    match data.data() {
        Elements::F16(values) => gather_raw(argument, values, data, offsets, positions),
        Elements::F32(values) => convert(argument, data, offsets, positions, |from, out| {
            let source = &values[from * dim..(from + 1) * dim];
            for (to, &value) in out.iter_mut().zip(source) {
                *to = f16::from_f32(value);
            }
            source
                .iter()
                .zip(out.iter())
                .find(|(v, h)| v.is_finite() && h.is_infinite())
                .map(|p| *p.0)
        }),
        Elements::Bf16(values) => convert(argument, data, offsets, positions, |from, out| {
            let source = &values[from * dim..(from + 1) * dim];
            for (to, &value) in out.iter_mut().zip(source) {
                *to = f16::from_f32(bf16::to_f32(value));
            }
            source
                .iter()
                .zip(out.iter())
                .find(|(v, h)| v.is_finite() && h.is_infinite())
                .map(|p| p.0.to_f32())
        }),
    }
}

/// Copies token rows as they are, whatever their type: `values` are the elements of `data`.
///
/// # Errors
/// [`Error::Length`], [`Error::Offsets`] as [`gather`].
pub fn gather_raw<T: Copy + Zeroable + Send + Sync>(
    argument: &'static str,
    values: &[T],
    data: &Tensor<'_>,
    offsets: &[u32],
    positions: &[u32],
) -> Result<Vec<T>> {
    let dim = data.head_dim();
    let expected = data.data().len();
    if values.len() != expected {
        return Err(Error::Length { argument, got: values.len(), expected });
    }
    rows(argument, data, offsets, positions, |from, out| {
        out.copy_from_slice(&values[from * dim..(from + 1) * dim]);
        Ok(())
    })
}

fn convert(
    argument: &'static str,
    data: &Tensor<'_>,
    offsets: &[u32],
    positions: &[u32],
    copy: impl Fn(usize, &mut [f16]) -> Option<f32> + Sync + Send,
) -> Result<Vec<f16>> {
    rows(argument, data, offsets, positions, |from, out| match copy(from, out) {
        Some(value) => Err(Error::BeyondF16 { argument: argument.into(), row: from, value }),
        None => Ok(()),
    })
}

/// Runs `copy(token row, out)` for every kept row.
fn rows<T: Copy + Zeroable + Send + Sync>(
    argument: &'static str,
    data: &Tensor<'_>,
    offsets: &[u32],
    positions: &[u32],
    copy: impl Fn(usize, &mut [T]) -> Result<()> + Sync + Send,
) -> Result<Vec<T>> {
    check_offsets(argument, offsets, data.rows(), positions.len())?;
    let tokens = data.tokens();
    if let Some(index) = positions.iter().position(|&p| p as usize >= tokens) {
        let got = u64::from(positions[index]);
        return Err(Error::Offsets {
            argument,
            index,
            got,
            expected: "a position below the tokens",
        });
    }
    let dim = data.head_dim();
    // Not touched before the tasks write it, so that they share the page faults too.
    let mut out = bytemuck::allocation::zeroed_vec(positions.len() * dim);
    let mut tasks = Vec::new();
    let mut rest = out.as_mut_slice();
    for row in 0..data.rows() {
        let kept = &positions[offsets[row] as usize..offsets[row + 1] as usize];
        for part in kept.chunks(ROWS_PER_TASK) {
            let (head, tail) = rest.split_at_mut(part.len() * dim);
            tasks.push((row * tokens, part, head));
            rest = tail;
        }
    }
    parallel::try_for_each(tasks, |(base, part, out)| {
        part.iter()
            .zip(out.chunks_exact_mut(dim))
            .try_for_each(|(&position, to)| copy(base + position as usize, to))
    })?;
    Ok(out)
}
