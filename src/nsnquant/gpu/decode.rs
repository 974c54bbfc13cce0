//! Unpacks pages. Twin: `src/nsnquant/cpu/decode.rs`.

use super::device::{self, DeviceCodec, DeviceKeyScales};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nsnquant::codec::Codec;
use crate::nsnquant::params::DecodeParams;
use crate::shape::Dtype;

/// Invocations of a workgroup.
const LANES: u32 = 128;

static KERNEL: Kernel = Kernel {
    name: "nsnquant/decode",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/rope.wgsl"),
        include_str!("../../../wgsl/common/key_scale.wgsl"),
        include_str!("../../../wgsl/common/decode.wgsl"),
        include_str!("../../../wgsl/nsnquant/decode.wgsl"),
    ),
    bindings: &[
        Binding::Read("pages"),
        Binding::Read("starts"),
        Binding::Read("book"),
        Binding::Read("key_scales"),
        Binding::Read("scale_of"),
        Binding::Read("positions"),
        Binding::Constant("rope"),
        Binding::Write("rows"),
    ],
    params: DecodeParams::LAYOUT,
};

/// The kernel of `wgsl/nsnquant/decode.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Variants for each head dimension and format.
pub fn variants() -> Vec<Variant> {
    device::covering(64, variant)
}

fn variant(codec: &Codec, scaled: bool) -> Variant {
    Variant { constants: device::constants(codec, scaled, LANES), overrides: Vec::new() }
}

/// The variant for a codec, under key scales or not, also of other kernels around `wgsl/common/decode.wgsl`.
pub(crate) fn variant_for(codec: &DeviceCodec, scaled: bool) -> Variant {
    variant(codec.codec(), scaled)
}

/// Records the unpacking of `page_count` pages: token t of page p goes to row `starts[p] + t` of
/// `out`, token rows `[total_rows, head_dim]` of `dtype`. f16 saturates at 65,504, the others at
/// 3.4e38. No two pages may share a row; a start past the last whole chunk is taken as that one.
///
/// # Errors
/// [`crate::Error::OutOfRange`] when there are fewer token rows than a chunk holds;
/// [`crate::Error::Length`] for a slice that is too short; [`crate::Error::DeviceLimit`] for sizes
/// that the device or 32-bit indices do not allow; and as [`Recorder::dispatch`].
pub fn decode(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    pages: Slice<'_>,
    page_count: usize,
    starts: Slice<'_>,
    out: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
) -> Result<()> {
    decode_at(rec, codec, pages, page_count, None, starts, out, dtype, total_rows, None)
}

/// As [`decode`], with what is not the mean multiplied by the key scale of its page: those that
/// there are, and the number of each page's, u32 `[pages]`; one that is not there is taken as the
/// last.
///
/// # Errors
/// As [`decode`]; [`crate::Error::Length`] for scales or numbers that are too few.
pub fn decode_scaled(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    pages: Slice<'_>,
    page_count: usize,
    starts: Slice<'_>,
    out: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
    scales: Option<(DeviceKeyScales<'_>, Slice<'_>)>,
) -> Result<()> {
    decode_at(rec, codec, pages, page_count, None, starts, out, dtype, total_rows, scales)
}

/// As [`decode_scaled`], with the positions of the tokens of each page, u32 `[page_count, chunk]`, to
/// which a codec with a rotary embedding turns their mean.
///
/// # Errors
/// As [`decode_scaled`]; [`crate::Error::Length`] for positions that are too few, or missing where the
/// codec has an embedding.
pub fn decode_at(
    rec: &mut Recorder<'_>,
    codec: &DeviceCodec,
    pages: Slice<'_>,
    page_count: usize,
    positions: Option<Slice<'_>>,
    starts: Slice<'_>,
    out: Slice<'_>,
    dtype: Dtype,
    total_rows: usize,
    scales: Option<(DeviceKeyScales<'_>, Slice<'_>)>,
) -> Result<()> {
    let layout = codec.layout();
    let rows = ("out", out, dtype, total_rows);
    let Some(extent) = device::extent(layout, rows, starts, ("pages", pages, page_count))? else {
        return Ok(());
    };
    let (values, last_scale) =
        DeviceKeyScales::bound(scales.map(|(values, _)| values), layout.head_dim(), starts)?;
    let of = scales.map_or(starts, |(_, of)| of);
    device::numbers(of, page_count)?;
    let positions = device::positions(codec, positions, page_count * layout.chunk(), starts)?;
    let hadamard = codec.codec().hadamard();
    let params = DecodeParams {
        pages: extent.pages,
        chunk: layout.chunk() as u32,
        last_start: extent.last_start,
        dtype: dtype.code(),
        page_words: layout.words() as u32,
        sign_offset: layout.sign_offset() as u32,
        s1_offset: layout.s1_offset() as u32,
        s2_offset: layout.s2_offset() as u32,
        o_offset: layout.o_offset() as u32,
        grid_offset: layout.grid_offset() as u32,
        scale: hadamard.scale(),
        norm: (layout.head_dim() as f32).sqrt(),
        last_scale,
    };
    rec.dispatch(
        &KERNEL,
        &variant(codec.codec(), scales.is_some()),
        &params,
        &[pages, starts, codec.rows(), values, of, positions, codec.rope(), out],
        Groups(page_count as u64),
    )
}
