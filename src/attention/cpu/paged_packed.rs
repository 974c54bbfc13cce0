//! Partial states over packed pages of a pool.

use super::merge::Partial;
use super::packed::{Codecs, Page, Worker};
use super::paged::PagedView;
use super::rotate::Block;
use crate::attention::plan::Plan;
use crate::layout::pool::PageClass;
use crate::layout::tables::Unit;
use crate::primitives::parallel::map;

/// One partial state for each unit.
pub(super) fn partials(
    plan: &Plan,
    view: &PagedView<'_>,
    codecs: &Codecs<'_>,
    units: &[Unit],
    block: &Block<'_>,
) -> Vec<Partial> {
    let class = PageClass::Packed;
    let layout = view.layout;
    let (values, positions) = (layout.values_offset(class), layout.positions_offset(class));
    map(units.to_vec(), |unit| {
        let mut worker = Worker::new(plan, codecs, block);
        let pages = unit.first as usize..(unit.first + unit.pages) as usize;
        for page in &view.pages(class)[pages] {
            let page = view.page(class, *page);
            let page = Page {
                keys: page,
                values: &page[values..],
                positions: &page[positions..positions + layout.chunk()],
            };
            if block.reaches(plan, page.positions) {
                worker.page(page);
            }
        }
        worker.partial
    })
}
