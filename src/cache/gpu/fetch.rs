//! Copies rows of pages into dense tensors (`wgsl/cache/fetch.wgsl`).

use super::pages::{List, Slab, holds};
use crate::cache::paged::FILL_ROWS;
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::{PageClass, PoolLayout};
use crate::shape::{Dtype, check_count};

params! {
    /// Parameters of the fetching.
    pub struct FetchParams {
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
        /// Most rows of an entry.
        page_rows: u32,
        /// Where the values start in a page.
        values: u32,
        /// Where the positions start in a page.
        positions: u32,
        /// Words of a key of the result; 0 to leave keys alone.
        key_words: u32,
        /// Words of a value of the result; 0 to leave values alone.
        value_words: u32,
        /// 1, or 0 to leave positions alone.
        position_words: u32,
        /// Rows of the result.
        out_rows: u32,
        /// Element type of the pages.
        from_dtype: u32,
        /// Element type of the result.
        to_dtype: u32,
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/fetch",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/narrow.wgsl"),
        include_str!("../../../wgsl/cache/fetch.wgsl"),
    ),
    bindings: &[
        Binding::Read("list"),
        Binding::Read("slab"),
        Binding::Write("out_keys"),
        Binding::Write("out_values"),
        Binding::Write("out_positions"),
    ],
    params: FetchParams::LAYOUT,
};

/// Dense tensors that rows are fetched to; each may be left out.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Keys `[rows, head_dim_k]`.
    pub keys: Option<Slice<'a>>,
    /// Values `[rows, head_dim_v]`.
    pub values: Option<Slice<'a>>,
    /// Positions u32 `[rows]`.
    pub positions: Option<Slice<'a>>,
    /// Rows of each.
    pub rows: usize,
    /// Element type of keys and values.
    pub dtype: Dtype,
}

impl<'a> Target<'a> {
    /// The slices with their names.
    pub(super) fn parts(&self) -> [(&'static str, Option<Slice<'a>>); 3] {
        [("keys", self.keys), ("values", self.values), ("positions", self.positions)]
    }

    /// Refuses what the kernels could not write.
    pub(super) fn check(&self, rec: &Recorder<'_>, layout: &PoolLayout) -> Result<()> {
        let [keys, values] = layout.head_dims();
        let parts = [
            ("keys", self.keys, keys, self.dtype),
            ("values", self.values, values, self.dtype),
            // Positions are u32, of one size with f32.
            ("positions", self.positions, 1, Dtype::F32),
        ];
        for (argument, slice, dim, dtype) in parts {
            let elements = check_count(argument, &[self.rows, dim])?;
            if let Some(slice) = slice {
                holds(argument, slice.size, dtype, elements)?;
                rec.check(Binding::Write(argument), &slice)?;
            }
        }
        let parts = self.parts();
        for (index, (argument, slice)) in parts.iter().enumerate() {
            let others = parts[..index].iter().filter_map(|(_, other)| *other);
            for (slice, other) in slice.iter().flat_map(|s| others.clone().map(move |o| (s, o))) {
                slice.check_apart(argument, &other)?;
            }
        }
        Ok(())
    }
}

/// The kernel of `wgsl/cache/fetch.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Rows of pages, and rows without content.
pub fn variants() -> Vec<Variant> {
    [0, 1].map(variant).to_vec()
}

fn variant(fill: u32) -> Variant {
    Variant { constants: vec![("FILL", fill)], overrides: Vec::new() }
}

/// Records the copies of a list of [`crate::cache::FetchRows`] from a slab of pages whose raw rows
/// have `raw` elements; of packed pages only the positions are copied. Without a slab the rows get
/// zeros and the positions `u32::MAX`, [`crate::cache::FILL_ROWS`] rows an entry at most. Entries whose pages lie
/// elsewhere are ignored, as are rows beyond the tensors.
///
/// # Errors
/// [`crate::Error::Length`] for a list, slab or tensor that is too short;
/// [`crate::Error::OutOfRange`] for 2^32 elements or more; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    list: &List<'_>,
    raw: Dtype,
    from: Option<&Slab<'_>>,
    to: &Target<'_>,
) -> Result<()> {
    if list.count == 0 {
        return Ok(());
    }
    list.check(4)?;
    to.check(rec, layout)?;
    let mut params = FetchParams {
        first: list.first,
        count: list.count,
        page_rows: FILL_ROWS,
        out_rows: to.rows as u32,
        from_dtype: raw.code(),
        to_dtype: to.dtype.code(),
        ..FetchParams::default()
    };
    if let Some(slab) = from {
        let class = slab.class;
        slab.check("slab", layout)?;
        params.base = slab.base(layout);
        params.pages = layout.pages_per_slab(class);
        params.page_words = layout.words(class) as u32;
        params.page_rows = layout.rows(class) as u32;
        params.values = layout.values_offset(class) as u32;
        params.positions = layout.positions_offset(class) as u32;
    }
    let packed = from.is_some_and(|slab| slab.class == PageClass::Packed);
    let side = |side: usize, wanted: bool| {
        let words = (layout.head_dims()[side] * to.dtype.bytes() / 4) as u32;
        if wanted && !packed { words } else { 0 }
    };
    params.key_words = side(0, to.keys.is_some());
    params.value_words = side(1, to.values.is_some());
    params.position_words = to.positions.is_some().into();
    if params.key_words + params.value_words + params.position_words == 0 {
        return Ok(());
    }
    // What is left out is never written, but must be bound, and to a buffer of its own.
    let spare = |slice: Option<Slice<'_>>| match slice {
        Some(_) => Ok(None),
        None => rec.context().create("fetch without", 4).map(Some),
    };
    let spares = [spare(to.keys)?, spare(to.values)?, spare(to.positions)?];
    let mut outs = [to.keys, to.values, to.positions];
    for (out, spare) in outs.iter_mut().zip(&spares) {
        *out = out.or(spare.as_ref().map(Slice::all));
    }
    let [Some(keys), Some(values), Some(positions)] = outs else { return Ok(()) };
    let slab = from.map_or(list.words, |slab| slab.words);
    let slices = [list.words, slab, keys, values, positions];
    let variant = variant(from.is_none().into());
    rec.dispatch(&KERNEL, &variant, &params, &slices, Groups(list.count.into()))
}
