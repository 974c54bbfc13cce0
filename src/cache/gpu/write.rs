//! Writes incoming rows into pages (`wgsl/cache/write.wgsl`).

use super::pages::{List, Slab, holds};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::PoolLayout;
use crate::shape::{Dtype, check_count};

params! {
    /// Parameters of the writing.
    pub struct WriteParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First page of the slab.
        base: u32,
        /// Pages of the slab.
        pages: u32,
        /// Words of a page.
        page_words: u32,
        /// Rows of a page.
        page_rows: u32,
        /// Where the values start.
        values: u32,
        /// Where the positions start.
        positions: u32,
        /// Words of a key.
        key_words: u32,
        /// Words of a value.
        value_words: u32,
        /// Rows of the incoming tensors.
        source_rows: u32,
        /// Their element type.
        from_dtype: u32,
        /// Element type of the pages.
        to_dtype: u32,
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/write",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/narrow.wgsl"),
        include_str!("../../../wgsl/cache/write.wgsl"),
    ),
    bindings: &[
        Binding::Read("list"),
        Binding::Read("keys"),
        Binding::Read("values"),
        Binding::Write("slab"),
    ],
    params: WriteParams::LAYOUT,
};

/// Incoming rows of one layer.
#[derive(Clone, Copy, Debug)]
pub struct IncomingRows<'a> {
    /// Keys `[source_rows, head_dim_k]`.
    pub keys: Slice<'a>,
    /// Values `[source_rows, head_dim_v]`.
    pub values: Slice<'a>,
    /// Element type of both.
    pub dtype: Dtype,
}

impl IncomingRows<'_> {
    /// Refuses what the kernel could not read.
    pub(super) fn check(
        &self,
        rec: &Recorder<'_>,
        layout: &PoolLayout,
        source_rows: u32,
    ) -> Result<()> {
        let sides = [("keys", &self.keys), ("values", &self.values)];
        for ((argument, slice), dim) in sides.into_iter().zip(layout.head_dims()) {
            let elements = check_count(argument, &[source_rows as usize, dim])?;
            holds(argument, slice.size, self.dtype, elements)?;
            rec.check(Binding::Read(argument), slice)?;
        }
        Ok(())
    }
}

/// The kernel of `wgsl/cache/write.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// The one variant.
pub fn variants() -> Vec<Variant> {
    vec![Variant::default()]
}

/// Records the writes of a list of [`crate::cache::pool::Write`] into a slab of raw pages of `raw`
/// elements. Entries whose pages lie elsewhere are ignored, as are rows beyond the tensors.
///
/// # Errors
/// [`crate::Error::Length`] for a list, slab or tensor that is too short;
/// [`crate::Error::OutOfRange`] for 2^32 elements or more; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    list: &List<'_>,
    to: &Slab<'_>,
    raw: Dtype,
    source_rows: u32,
    incoming: &IncomingRows<'_>,
) -> Result<()> {
    if list.count == 0 {
        return Ok(());
    }
    list.check(5)?;
    to.check("slab", layout)?;
    incoming.check(rec, layout, source_rows)?;
    let class = to.class;
    let params = WriteParams {
        first: list.first,
        count: list.count,
        base: to.base(layout),
        pages: layout.pages_per_slab(class),
        page_words: layout.words(class) as u32,
        page_rows: layout.rows(class) as u32,
        values: layout.values_offset(class) as u32,
        positions: layout.positions_offset(class) as u32,
        key_words: layout.row_words(0) as u32,
        value_words: layout.row_words(1) as u32,
        source_rows,
        from_dtype: incoming.dtype.code(),
        to_dtype: raw.code(),
    };
    let slices = [list.words, incoming.keys, incoming.values, to.words];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(list.count.into()))
}
