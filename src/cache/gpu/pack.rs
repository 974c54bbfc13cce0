//! Packs raw pages (`wgsl/cache/pack.wgsl`).

use super::pages::{List, Slab};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::PoolLayout;
use crate::nsnquant::gpu::{DeviceCodec, DeviceKeyScales, encode_variant, encode_variants};
use crate::shape::Dtype;

params! {
    /// Parameters of the packing.
    pub struct PackParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First page of the slab read.
        from_base: u32,
        /// Pages of the slab read.
        from_pages: u32,
        /// Words of a raw page.
        from_words: u32,
        /// Where the side starts in a raw page.
        from_side: u32,
        /// Where the positions start in a raw page.
        from_positions: u32,
        /// First page of the slab written.
        to_base: u32,
        /// Pages of the slab written.
        to_pages: u32,
        /// Words of a packed page.
        to_words: u32,
        /// Where the side starts in a packed page.
        to_side: u32,
        /// Where the positions start in a packed page.
        to_positions: u32,
        /// Positions to copy.
        rows: u32,
        /// Tokens of a page.
        chunk: u32,
        /// Element type of raw pages.
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
        /// Last key scale.
        last_scale: u32,
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/pack",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/hadamard.wgsl"),
        include_str!("../../../wgsl/common/turn.wgsl"),
        include_str!("../../../wgsl/common/grid.wgsl"),
        include_str!("../../../wgsl/common/quantise.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/rope.wgsl"),
        include_str!("../../../wgsl/common/nearest.wgsl"),
        include_str!("../../../wgsl/common/key_scale.wgsl"),
        include_str!("../../../wgsl/common/coarse.wgsl"),
        include_str!("../../../wgsl/common/pieces.wgsl"),
        include_str!("../../../wgsl/common/encode.wgsl"),
        include_str!("../../../wgsl/cache/pack.wgsl"),
    ),
    bindings: &[
        Binding::Read("list"),
        Binding::Read("data"),
        Binding::Constant("book"),
        Binding::Read("key_scales"),
        Binding::Constant("rope"),
        Binding::Read("centroids"),
        Binding::Write("pages"),
    ],
    params: PackParams::LAYOUT,
};

/// The kernel of `wgsl/cache/pack.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Those of the encoder.
pub fn variants() -> Vec<Variant> {
    encode_variants()
}

/// Records the packing of a list of [`crate::cache::pool::Encode`] from a slab of raw pages of `raw`
/// elements into one of packed pages, positions included, keys under the scales that the entries name
/// if there are any. Entries whose pages lie elsewhere are ignored.
///
/// # Errors
/// [`crate::Error::Length`] for a list, scales or slab that is too short; as [`Recorder::dispatch`].
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
    list.check(3)?;
    from.check("data", layout)?;
    to.check("pages", layout)?;
    for (side, codec) in codecs.iter().enumerate() {
        let packed = codec.layout();
        let scales = scales.filter(|_| side == 0);
        let (values, last_scale) = DeviceKeyScales::bound(scales, packed.head_dim(), list.words)?;
        let start = |class| if side == 0 { 0 } else { layout.values_offset(class) as u32 };
        let params = PackParams {
            first: list.first,
            count: list.count,
            from_base: from.base(layout),
            from_pages: layout.pages_per_slab(from.class),
            from_words: layout.words(from.class) as u32,
            from_side: start(from.class),
            from_positions: layout.positions_offset(from.class) as u32,
            to_base: to.base(layout),
            to_pages: layout.pages_per_slab(to.class),
            to_words: layout.words(to.class) as u32,
            to_side: start(to.class),
            to_positions: layout.positions_offset(to.class) as u32,
            // Once is enough.
            rows: if side == 0 { layout.chunk() as u32 } else { 0 },
            chunk: packed.chunk() as u32,
            dtype: raw.code(),
            sign_offset: packed.sign_offset() as u32,
            s1_offset: packed.s1_offset() as u32,
            s2_offset: packed.s2_offset() as u32,
            o_offset: packed.o_offset() as u32,
            grid_offset: packed.grid_offset() as u32,
            scale: codec.codec().hadamard().scale(),
            last_scale,
        };
        let book = Slice::all(codec.book());
        let slices = [list.words, from.words, book, values, codec.rope(), book, to.words];
        let groups = Groups(list.count.into());
        let variant = encode_variant(codec, scales.is_some());
        rec.dispatch(&KERNEL, &variant, &params, &slices, groups)?;
    }
    Ok(())
}
