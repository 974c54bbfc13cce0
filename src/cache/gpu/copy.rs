//! Copies rows from page to page (`wgsl/cache/copy.wgsl`).

use super::pages::{List, Slab};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Variant, params};
use crate::layout::pool::PoolLayout;

params! {
    /// Parameters of the copy.
    pub struct CopyParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First page of the slab read.
        from_base: u32,
        /// First page of the slab written.
        to_base: u32,
        /// Pages of a slab.
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
    }
}

static KERNEL: Kernel = Kernel {
    name: "cache/copy",
    source: include_str!("../../../wgsl/cache/copy.wgsl"),
    bindings: &[Binding::Read("list"), Binding::Read("source"), Binding::Write("result")],
    params: CopyParams::LAYOUT,
};

/// The kernel of `wgsl/cache/copy.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// Two slabs, or one.
pub fn variants() -> Vec<Variant> {
    [0, 1].map(variant).to_vec()
}

fn variant(same: u32) -> Variant {
    Variant { constants: vec![("SAME", same)], overrides: Vec::new() }
}

/// Records the copies of a list of [`crate::cache::pool::CopyRows`] between two slabs of one class of
/// raw pages, which may be one and the same. Entries whose pages lie elsewhere are ignored.
///
/// # Errors
/// [`crate::Error::Length`] for a list or slab that is too short; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    list: &List<'_>,
    from: &Slab<'_>,
    to: &Slab<'_>,
) -> Result<()> {
    if list.count == 0 {
        return Ok(());
    }
    list.check(3)?;
    from.check("source", layout)?;
    to.check("result", layout)?;
    let class = to.class;
    let params = CopyParams {
        first: list.first,
        count: list.count,
        from_base: from.base(layout),
        to_base: to.base(layout),
        pages: layout.pages_per_slab(class),
        page_words: layout.words(class) as u32,
        page_rows: layout.rows(class) as u32,
        values: layout.values_offset(class) as u32,
        positions: layout.positions_offset(class) as u32,
        key_words: layout.row_words(0) as u32,
        value_words: layout.row_words(1) as u32,
    };
    let same = from.same(to);
    // A buffer cannot be bound to be read and to be written at once.
    let source = if same { list.words } else { from.words };
    let slices = [list.words, source, to.words];
    rec.dispatch(&KERNEL, &variant(same.into()), &params, &slices, Groups(list.count.into()))
}
