//! Slabs in host memory.

use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::shape::{Dtype, Elements};

use super::rows::elements;

/// The slabs of one class and layer by number; a number may have none.
pub type Slabs = [Option<Vec<u32>>];

/// Slab and first word of a page; `None` for a page that lies in no slab.
fn place(
    layout: &PoolLayout,
    class: PageClass,
    slabs: &Slabs,
    page: PageId,
) -> Option<(usize, usize)> {
    let slab = layout.slab_of(class, page) as usize;
    let words = slabs.get(slab)?.as_ref()?.len();
    let first = layout.word_of(class, page);
    (first + layout.words(class) <= words && !page.is_none()).then_some((slab, first))
}

/// The words of a page.
pub(super) fn page<'a>(
    layout: &PoolLayout,
    class: PageClass,
    slabs: &'a Slabs,
    page: PageId,
) -> Option<&'a [u32]> {
    let (slab, first) = place(layout, class, slabs, page)?;
    slabs[slab].as_ref().map(|words| &words[first..first + layout.words(class)])
}

/// The words of a page, to be written.
pub(super) fn page_mut<'a>(
    layout: &PoolLayout,
    class: PageClass,
    slabs: &'a mut Slabs,
    page: PageId,
) -> Option<&'a mut [u32]> {
    let (slab, first) = place(layout, class, slabs, page)?;
    slabs[slab].as_mut().map(|words| &mut words[first..first + layout.words(class)])
}

/// Where the keys (0), the values (1) and the positions (2) of a page start.
pub(super) fn part(layout: &PoolLayout, class: PageClass, part: usize) -> usize {
    [0, layout.values_offset(class), layout.positions_offset(class)][part]
}

/// Words that a row takes in each part of a raw page.
pub(super) fn row_words(layout: &PoolLayout) -> [usize; 3] {
    [layout.row_words(0), layout.row_words(1), 1]
}

/// The first rows of one side of a raw page.
pub(super) fn raw_rows<'a>(
    layout: &PoolLayout,
    class: PageClass,
    page: &'a [u32],
    side: usize,
    rows: usize,
    raw: Dtype,
) -> Elements<'a> {
    let first = part(layout, class, side);
    elements(&page[first..first + rows * layout.row_words(side)], raw)
}
