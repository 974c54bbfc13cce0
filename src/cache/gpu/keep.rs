//! Gathers the kept rows of a prompt (`wgsl/cache/keep.wgsl`).

use super::pages::{List, Slab, words};
use crate::error::Result;
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant, params};
use crate::layout::pool::PoolLayout;

params! {
    /// Parameters of the gathering.
    pub struct KeepParams {
        /// First word of the list.
        first: u32,
        /// Entries.
        count: u32,
        /// First word of the page table.
        table: u32,
        /// Pages of the table.
        table_pages: u32,
        /// Kept positions.
        kept: u32,
        /// Tokens of the prompt.
        tokens: u32,
        /// Sinks of each head.
        sinks: u32,
        /// Rows of a page.
        chunk: u32,
        /// Division by `chunk`.
        chunk_multiplier: u32,
        /// Division by `chunk`.
        chunk_shift1: u32,
        /// Division by `chunk`.
        chunk_shift2: u32,
        /// First page of the slab read.
        from_base: u32,
        /// First page of the slab written.
        to_base: u32,
        /// Pages of a slab.
        pages: u32,
        /// Words of a page.
        page_words: u32,
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
    name: "cache/keep",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/cache/keep.wgsl"),
    ),
    bindings: &[
        Binding::Read("list"),
        Binding::Read("kept"),
        Binding::Read("source"),
        Binding::Write("result"),
    ],
    params: KeepParams::LAYOUT,
};

/// What is kept of the prompt of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Kept positions, head after head, sinks included: u32 `[count]`.
    pub positions: Slice<'a>,
    /// Number of these positions, of all heads.
    pub count: u32,
    /// Tokens of the prompt.
    pub tokens: u32,
    /// First word, in the list, of the page tables of the heads.
    pub table: u32,
    /// Pages in them.
    pub table_pages: u32,
}

/// The kernel of `wgsl/cache/keep.wgsl`.
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

/// Records the gathering of a list of [`crate::cache::pool::Gather`] from one slab of raw pages into
/// another or the same. Rows that lie in other slabs are ignored, as are positions that are no rows
/// of the prompt.
///
/// # Errors
/// [`crate::Error::Length`] for a list or slab that is too short; as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    layout: &PoolLayout,
    list: &List<'_>,
    kept: &Kept<'_>,
    from: &Slab<'_>,
    to: &Slab<'_>,
) -> Result<()> {
    if list.count == 0 || kept.count == 0 || kept.table_pages == 0 {
        return Ok(());
    }
    list.check(4)?;
    List { words: list.words, first: kept.table, count: kept.table_pages }.check(1)?;
    words("kept", kept.positions.size, kept.count.into())?;
    from.check("source", layout)?;
    to.check("result", layout)?;
    let class = to.class;
    let division = Magic::of(layout.chunk());
    let params = KeepParams {
        first: list.first,
        count: list.count,
        table: kept.table,
        table_pages: kept.table_pages,
        kept: kept.count,
        tokens: kept.tokens,
        sinks: layout.sinks() as u32,
        chunk: layout.chunk() as u32,
        chunk_multiplier: division.multiplier,
        chunk_shift1: division.shift1,
        chunk_shift2: division.shift2,
        from_base: from.base(layout),
        to_base: to.base(layout),
        pages: layout.pages_per_slab(class),
        page_words: layout.words(class) as u32,
        values: layout.values_offset(class) as u32,
        positions: layout.positions_offset(class) as u32,
        key_words: layout.row_words(0) as u32,
        value_words: layout.row_words(1) as u32,
    };
    let same = from.same(to);
    // A buffer cannot be bound to be read and to be written at once.
    let source = if same { list.words } else { from.words };
    let slices = [list.words, kept.positions, source, to.words];
    rec.dispatch(&KERNEL, &variant(same.into()), &params, &slices, Groups(list.count.into()))
}
