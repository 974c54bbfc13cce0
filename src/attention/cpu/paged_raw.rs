//! Partial states over raw and sink pages.

use super::merge::Partial;
use super::paged::PagedView;
use super::raw::Worker;
use super::rotate::Block;
use crate::attention::plan::Plan;
use crate::layout::pool::PageClass;
use crate::layout::tables::Unit;
use crate::primitives::parallel::map;

/// One partial state for each unit; tiles end with their page, so that no bit depends on where pages
/// lie.
pub(super) fn partials(
    plan: &Plan,
    view: &PagedView<'_>,
    class: PageClass,
    units: &[Unit],
    block: &Block<'_>,
) -> Vec<Partial> {
    let capacity = view.layout.rows(class);
    map(units.to_vec(), |unit| {
        let mut worker = Worker::new(plan, block);
        let mut left = unit.rows as usize;
        let pages = unit.first as usize..(unit.first + unit.pages) as usize;
        for page in &view.pages(class)[pages] {
            let rows = left.min(capacity);
            left -= rows;
            let page = view.page(class, *page);
            let first = view.layout.positions_offset(class);
            let positions = &page[first..first + rows];
            if rows > 0 && block.reaches(plan, positions) {
                worker.tokens(
                    view.elements(class, page, 0, rows),
                    view.elements(class, page, 1, rows),
                    positions,
                );
            }
        }
        worker.partial
    })
}
