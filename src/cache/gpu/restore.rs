//! Unpacks rows of packed pages (`wgsl/cache/restore.wgsl`).

use super::pages::{List, Slab, holds};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::PoolLayout;
use crate::nsnquant::gpu::{DeviceCodec, DeviceKeyScales, decode_variant, decode_variants};
use crate::shape::{Dtype, check_count};

params! {
    /// Parameters of the unpacking.
    pub struct RestoreParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First page of the slab read.
        from_base: u32,
        /// Pages of the slab read.
        from_pages: u32,
        /// Words of a packed page.
        from_words: u32,
        /// Where the side starts in a packed page.
        from_side: u32,
        /// Where the positions start in a packed page.
        from_positions: u32,
        /// First page written; 0 for a dense result.
        to_base: u32,
        /// Pages, or rows of a dense result.
        to_pages: u32,
        /// Words of a page, or of a row of a dense result.
        to_words: u32,
        /// Where the side starts in a page.
        to_side: u32,
        /// Where the positions start in a page.
        to_positions: u32,
        /// 1 for a dense result.
        dense: u32,
        /// Most positions to copy.
        position_rows: u32,
        /// Tokens of a packed page.
        chunk: u32,
        /// Element type of the result.
        dtype: u32,
        /// Where the signs start in a side.
        sign_offset: u32,
        /// Where the first scales start in a side.
        s1_offset: u32,
        /// Where the second scales start in a side.
        s2_offset: u32,
        /// Where the means start in a side.
        o_offset: u32,
        /// Where the grids start in a side.
        grid_offset: u32,
        /// Factor of the Hadamard transform.
        scale: f32,
        /// Norm of a token before its scales.
        norm: f32,
        /// Last key scale.
        last_scale: u32,
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/restore",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/page.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/rope.wgsl"),
        include_str!("../../../wgsl/common/key_scale.wgsl"),
        include_str!("../../../wgsl/common/decode.wgsl"),
        include_str!("../../../wgsl/cache/restore.wgsl"),
    ),
    bindings: &[
        Binding::Read("list"),
        Binding::Read("pages"),
        Binding::Read("book"),
        Binding::Read("key_scales"),
        Binding::Constant("rope"),
        Binding::Write("rows"),
    ],
    params: RestoreParams::LAYOUT,
};

/// A dense tensor that rows are unpacked to.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a> {
    /// `[rows, head_dim]`.
    pub words: Slice<'a>,
    /// Its rows.
    pub rows: usize,
    /// Its element type.
    pub dtype: Dtype,
}

/// The kernel of `wgsl/cache/restore.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Those of the decoder.
pub fn variants() -> Vec<Variant> {
    decode_variants()
}

/// Records the unpacking of a list of [`crate::cache::pool::Restore`] from a slab of packed pages into
/// one of raw pages of `raw` elements, positions included, keys under the scales that the entries name
/// if there are any. Entries whose pages lie elsewhere are ignored.
///
/// # Errors
/// [`crate::Error::Length`] for a list or slab that is too short; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    codecs: &[DeviceCodec; 2],
    list: &List<'_>,
    raw: Dtype,
    from: &Slab<'_>,
    to: &Slab<'_>,
    scales: Option<DeviceKeyScales<'_>>,
) -> Result<()> {
    if list.count == 0 {
        return Ok(());
    }
    to.check("rows", layout)?;
    for (side, codec) in codecs.iter().enumerate() {
        let values = layout.values_offset(to.class) as u32;
        let params = RestoreParams {
            to_base: to.base(layout),
            to_pages: layout.pages_per_slab(to.class),
            to_words: layout.words(to.class) as u32,
            to_side: if side == 0 { 0 } else { values },
            to_positions: layout.positions_offset(to.class) as u32,
            // Once is enough.
            position_rows: if side == 0 { layout.chunk() as u32 } else { 0 },
            dtype: raw.code(),
            ..common(layout, codec, side, list, from)
        };
        let scales = scales.filter(|_| side == 0);
        dispatch(rec, layout, codec, list, from, params, to.words, scales)?;
    }
    Ok(())
}

/// Records the unpacking of one side (0 keys, 1 values) of a list of
/// [`crate::cache::FetchRows`] into a dense tensor; `scales` are for keys. Entries whose pages lie elsewhere are ignored, as
/// are rows beyond the tensor.
///
/// # Errors
/// [`crate::Error::Length`] for a list, slab or tensor that is too short;
/// [`crate::Error::OutOfRange`] for 2^32 elements or more; as [`Recorder::dispatch`].
pub fn record_dense(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    codec: &DeviceCodec,
    side: usize,
    list: &List<'_>,
    from: &Slab<'_>,
    to: &Dense<'_>,
    scales: Option<DeviceKeyScales<'_>>,
) -> Result<()> {
    if list.count == 0 {
        return Ok(());
    }
    let dim = codec.layout().head_dim();
    let elements = check_count("rows", &[to.rows, dim])?;
    holds("rows", to.words.size, to.dtype, elements)?;
    let params = RestoreParams {
        to_pages: to.rows as u32,
        to_words: (dim * to.dtype.bytes() / 4) as u32,
        dense: 1,
        dtype: to.dtype.code(),
        ..common(layout, codec, side, list, from)
    };
    dispatch(rec, layout, codec, list, from, params, to.words, scales)
}

/// What does not depend on where the rows go.
fn common(
    layout: &PoolLayout,
    codec: &DeviceCodec,
    side: usize,
    list: &List<'_>,
    from: &Slab<'_>,
) -> RestoreParams {
    let packed = codec.layout();
    RestoreParams {
        first: list.first,
        count: list.count,
        from_base: from.base(layout),
        from_pages: layout.pages_per_slab(from.class),
        from_words: layout.words(from.class) as u32,
        from_side: if side == 0 { 0 } else { layout.values_offset(from.class) as u32 },
        from_positions: layout.positions_offset(from.class) as u32,
        chunk: packed.chunk() as u32,
        sign_offset: packed.sign_offset() as u32,
        s1_offset: packed.s1_offset() as u32,
        s2_offset: packed.s2_offset() as u32,
        o_offset: packed.o_offset() as u32,
        grid_offset: packed.grid_offset() as u32,
        scale: codec.codec().hadamard().scale(),
        norm: (packed.head_dim() as f32).sqrt(),
        ..RestoreParams::default()
    }
}

fn dispatch(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    codec: &DeviceCodec,
    list: &List<'_>,
    from: &Slab<'_>,
    params: RestoreParams,
    to: Slice<'_>,
    scales: Option<DeviceKeyScales<'_>>,
) -> Result<()> {
    list.check(4)?;
    from.check("pages", layout)?;
    let dim = codec.layout().head_dim();
    let (values, last_scale) = DeviceKeyScales::bound(scales, dim, list.words)?;
    let params = RestoreParams { last_scale, ..params };
    let slices = [list.words, from.words, codec.rows(), values, codec.rope(), to];
    let groups = Groups(list.count.into());
    rec.dispatch(&KERNEL, &decode_variant(codec, scales.is_some()), &params, &slices, groups)
}
