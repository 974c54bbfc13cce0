//! Copies token rows to a ragged list, as f16.

use super::{check_words, size};
use crate::error::{Error, Result};
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::primitives::params::GatherParams;

/// 8 channels of a row a lane.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "primitives/gather",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/primitives/gather.wgsl"),
    ),
    bindings: &[
        Binding::Read("data"),
        Binding::Read("sources"),
        Binding::Write("copied"),
        Binding::Write("beyond"),
    ],
    params: GatherParams::LAYOUT,
};

/// Copied token rows, and whether they fitted.
#[derive(Clone, Debug)]
pub struct Gathered {
    /// `[count, head_dim]` f16.
    pub rows: wgpu::Buffer,
    /// One word, to be read back and handed to [`first_beyond`]; f16 input always fits.
    pub beyond: wgpu::Buffer,
}

/// The first copied row with a finite value beyond f16, from the word [`Gathered::beyond`].
///
/// # Errors
/// [`Error::Length`] for anything but 4 bytes.
pub fn first_beyond(word: &[u8]) -> Result<Option<u32>> {
    let bytes = <[u8; 4]>::try_from(word).map_err(|_| Error::Length {
        argument: "beyond",
        got: word.len(),
        expected: 4,
    })?;
    let word = u32::from_le_bytes(bytes);
    Ok((word != 0).then_some(u32::MAX - word))
}

/// Records the copy of the `count` token rows that `sources` counts over all rows of `data`. f16
/// keeps its bits; bf16 and f32 are rounded to nearest even, finite values beyond f16 to Inf.
///
/// # Errors
/// [`Error::Length`] for too few sources; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    data: &DeviceTensor<'_>,
    sources: Slice<'_>,
    count: u64,
) -> Result<Gathered> {
    let row_parts = data.head_dim() / 8;
    let parts = count.saturating_mul(row_parts as u64);
    check_words("sources", sources.size, count as usize)?;
    let division = Magic::of(row_parts);
    let params = GatherParams {
        parts: size("copied words", parts.saturating_mul(4) as usize)? / 4,
        token_rows: size("token rows", data.rows() * data.tokens())?,
        row_parts: row_parts as u32,
        dtype: data.dtype().code(),
        row_multiplier: division.multiplier,
        row_shift1: division.shift1,
        row_shift2: division.shift2,
    };
    let rows = rec.context().create("copied rows", parts * 16)?;
    // A new buffer holds zeros.
    let beyond = rec.context().create("beyond", 4)?;
    rec.dispatch(
        &KERNEL,
        &Variant::default(),
        &params,
        &[data.slice(), sources, Slice::all(&rows), Slice::all(&beyond)],
        Groups(parts.div_ceil(256)),
    )?;
    Ok(Gathered { rows, beyond })
}
