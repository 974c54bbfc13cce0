//! Checks of page tables that attention is asked to read.

use super::view::{length, same};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PoolLayout};
use crate::layout::tables::Tables;

/// Pages of a unit, the tokens that give one partial result: how a row is cut depends on the row
/// alone, so that it gives the same bits in any batch.
pub(crate) const UNIT_PAGES: u32 = 16;

/// Checks that the lists of tables belong together and to a layout; not where the pages lie. Returns
/// the KV heads of a member.
pub(super) fn check(tables: &Tables, layout: &PoolLayout) -> Result<usize> {
    let (rows, members) = (tables.rows(), tables.next.len());
    if rows == 0 || members == 0 {
        return Err(Error::Empty { argument: "rows of the page tables" });
    }
    if !rows.is_multiple_of(members) {
        let expected = crate::shape::next_multiple(rows, members);
        let reference = "a multiple of the members";
        return Err(Error::Mismatch {
            argument: "page table rows",
            got: rows,
            expected,
            reference,
        });
    }
    let chunk = layout.chunk();
    same("chunk of the page tables", tables.chunk as usize, chunk, "the layout")?;
    tables.check_lists()?;
    if layout.packed().is_none() {
        length("packed pages", tables.packed.len(), 0)?;
    }
    let fault = |argument, index, got: u32, expected| {
        Err(Error::Offsets { argument, index, got: u64::from(got), expected })
    };
    let mut longest = 0;
    for row in 0..rows {
        let (sinks, tail) = (tables.sink_rows[row], tables.tail_rows[row]);
        if sinks as usize > layout.rows(PageClass::Sink) {
            return fault("sink_rows", row, sinks, "at most the sinks of the pool");
        }
        let pages = tables.tail_offsets[row + 1] - tables.tail_offsets[row];
        if tail as usize > pages as usize * chunk {
            return fault("tail_rows", row, tail, "at most what the pages hold");
        }
        let packed = (tables.packed_offsets[row + 1] - tables.packed_offsets[row]) as usize;
        longest = longest.max((packed + pages as usize) * chunk);
    }
    // Rows are counted in 32 bits.
    crate::shape::check_count("tokens of a row", &[longest])?;
    Ok(rows / members)
}
