//! Copies token rows between dense tensors and changes their element type: the twin of
//! `wgsl/cache/rows.wgsl`, equal bit for bit.

use half::{bf16, f16};

use crate::cache::plan::Move;
use crate::error::{Error, Result};
use crate::shape::{Dtype, Elements};

/// Copies the rows of `plan` from `source` into the words of `result`. Equal types keep their bits;
/// to f16 and bf16, finite values beyond the range become the largest of the type.
///
/// # Errors
/// Those of [`Move::check`]; [`Error::Length`] when either tensor has another size
/// than the plan says; [`Error::Dtype`] when the source is of another type.
pub fn copy(plan: &Move, source: Elements<'_>, result: &mut [u32]) -> Result<()> {
    plan.check()?;
    if source.dtype() != plan.from_dtype {
        return Err(Error::Dtype {
            argument: "source",
            got: source.dtype().name(),
            expected: plan.from_dtype.name(),
        });
    }
    let length = |argument, got, expected| {
        if got == expected { Ok(()) } else { Err(Error::Length { argument, got, expected }) }
    };
    length("source", source.len(), plan.rows * plan.from_tokens * plan.head_dim)?;
    let words = plan.to_words();
    length("result", result.len(), plan.rows * plan.to_tokens * words)?;
    let count = plan.tokens * plan.head_dim;
    if count == 0 {
        return Ok(());
    }
    for row in 0..plan.rows {
        let from = (row * plan.from_tokens + plan.from_first) * plan.head_dim;
        let to = (row * plan.to_tokens + plan.to_first) * words;
        let part = source.slice(from..from + count);
        let out = &mut result[to..to + plan.tokens * words];
        convert(part, plan.to_dtype, out);
    }
    Ok(())
}

/// Elements as words of elements of `dtype`, which they fill exactly: equal types keep their bits; to
/// f16 and bf16, finite values beyond the range become the largest of the type.
pub(in crate::cache) fn convert(part: Elements<'_>, dtype: Dtype, out: &mut [u32]) {
    if part.dtype() == dtype {
        bytemuck::cast_slice_mut::<u32, u8>(out).copy_from_slice(part.bytes());
        return;
    }
    match dtype {
        Dtype::F32 => {
            for (index, value) in bytemuck::cast_slice_mut::<u32, f32>(out).iter_mut().enumerate() {
                *value = part.get(index);
            }
        }
        Dtype::F16 => {
            for (index, value) in bytemuck::cast_slice_mut::<u32, f16>(out).iter_mut().enumerate() {
                *value = saturated(part.get(index));
            }
        }
        Dtype::Bf16 => {
            for (index, value) in bytemuck::cast_slice_mut::<u32, bf16>(out).iter_mut().enumerate()
            {
                *value = saturated_bf16(part.get(index));
            }
        }
    }
}

/// The nearest f16; finite values beyond the range become its largest, NaN and Inf stay.
fn saturated(value: f32) -> f16 {
    let half = f16::from_f32(value);
    if half.is_infinite() && value.is_finite() { f16::MAX.copysign(half) } else { half }
}

/// The nearest bf16; finite values that would round to Inf become its largest, NaN and Inf stay.
fn saturated_bf16(value: f32) -> bf16 {
    let half = bf16::from_f32(value);
    if half.is_infinite() && value.is_finite() { bf16::MAX.copysign(half) } else { half }
}

/// Words as the elements that they hold.
pub(in crate::cache) fn elements(words: &[u32], dtype: Dtype) -> Elements<'_> {
    match dtype {
        Dtype::F32 => Elements::F32(bytemuck::cast_slice(words)),
        Dtype::F16 => Elements::F16(bytemuck::cast_slice(words)),
        Dtype::Bf16 => Elements::Bf16(bytemuck::cast_slice(words)),
    }
}
