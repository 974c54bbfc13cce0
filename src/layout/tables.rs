//! Page tables of a batch as attention and fetching read them, and how rows are cut into units.

use super::pool::PageId;
use crate::error::{Error, Result};
use crate::shape::{check_count, check_offsets};

/// Page tables of one layer of a batch. A row is one KV head of one member: `rows` is members times
/// heads, the heads of a member side by side.
///
/// The rows of a head lie, by ascending position, in its sink page, its packed pages (all full) and
/// its tail pages (all full but the last).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Next position of each member, `[members]`.
    pub next: Vec<u32>,
    /// Sink page of each row or [`PageId::NONE`], `[rows]`.
    pub sinks: Vec<PageId>,
    /// Rows of the sink page, `[rows]`.
    pub sink_rows: Vec<u32>,
    /// First packed page of each row in the list, and the number of all, `[rows + 1]`.
    pub packed_offsets: Vec<u32>,
    /// Packed pages.
    pub packed: Vec<PageId>,
    /// First tail page of each row in the list, and the number of all, `[rows + 1]`.
    pub tail_offsets: Vec<u32>,
    /// Tail pages.
    pub tail: Vec<PageId>,
    /// Rows of the tail, `[rows]`.
    pub tail_rows: Vec<u32>,
    /// Rows of a packed or raw page.
    pub chunk: u32,
}

/// Pages of one class of one row that one workgroup reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Unit {
    /// The row (member times KV heads plus head).
    pub row: u32,
    /// First page in the list of the class; for sinks the row itself.
    pub first: u32,
    /// Pages of the unit.
    pub pages: u32,
    /// Rows in these pages.
    pub rows: u32,
    /// Number of its partial result.
    pub slot: u32,
}

/// The units of a batch. The partial results of a row lie side by side in the order sinks, packed,
/// tail, and how a row is cut depends on that row alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Units by class ([`super::pool::PageClass::index`]).
    pub units: [Vec<Unit>; 3],
    /// First partial result of each row, and the number of all, `[rows + 1]`.
    pub offsets: Vec<u32>,
}

impl Tables {
    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.sinks.len()
    }

    /// Tokens that a row holds.
    pub fn len(&self, row: usize) -> u32 {
        let packed = self.packed_offsets[row + 1] - self.packed_offsets[row];
        self.sink_rows[row] + packed * self.chunk + self.tail_rows[row]
    }

    /// Whether no row holds a token.
    pub fn is_empty(&self) -> bool {
        (0..self.rows()).all(|row| self.len(row) == 0)
    }

    /// Checks that the lists belong together.
    pub(crate) fn check_lists(&self) -> Result<()> {
        let rows = self.rows();
        check_offsets("packed_offsets", &self.packed_offsets, rows, self.packed.len())?;
        check_offsets("tail_offsets", &self.tail_offsets, rows, self.tail.len())?;
        for (argument, got) in
            [("sink_rows", self.sink_rows.len()), ("tail_rows", self.tail_rows.len())]
        {
            if got != rows {
                return Err(Error::Length { argument, got, expected: rows });
            }
        }
        // Units, and the rows of the pages of a row, are counted in 32 bits.
        let pages = self.packed.len() + self.tail.len();
        check_count("pages of the tables", &[pages + rows])?;
        let longest = |offsets: &[u32]| {
            offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0)
        };
        let longest = longest(&self.packed_offsets).max(longest(&self.tail_offsets));
        check_count("tokens of a row", &[longest, self.chunk as usize]).map(|_| ())
    }

    /// Cuts every row into units of `pages` pages.
    ///
    /// # Errors
    /// [`Error::Empty`] for units of 0 pages; [`Error::Length`], [`Error::Offsets`] and
    /// [`Error::OutOfRange`] where the lists do not belong together.
    pub fn units(&self, pages: u32) -> Result<Units> {
        if pages == 0 {
            return Err(Error::Empty { argument: "pages of a unit" });
        }
        self.check_lists()?;
        let mut units = Units::default();
        let mut slot = 0;
        units.offsets.push(0);
        for row in 0..self.rows() {
            let spans = [
                (row as u32, u32::from(self.sink_rows[row] > 0), self.sink_rows[row]),
                span(&self.packed_offsets, row, None, self.chunk),
                span(&self.tail_offsets, row, Some(self.tail_rows[row]), self.chunk),
            ];
            for (class, (first, count, rows)) in spans.into_iter().enumerate() {
                for done in (0..count).step_by(pages as usize) {
                    let before = done * self.chunk;
                    let pages = pages.min(count - done);
                    // A sink page has a size of its own, but it is the only one of its row.
                    let rows = match class {
                        0 => rows,
                        _ => rows.saturating_sub(before).min(pages * self.chunk),
                    };
                    let row = row as u32;
                    units.units[class].push(Unit { row, first: first + done, pages, rows, slot });
                    slot += 1;
                }
            }
            units.offsets.push(slot);
        }
        Ok(units)
    }
}

/// First page, pages and rows of a row of a list.
fn span(offsets: &[u32], row: usize, rows: Option<u32>, chunk: u32) -> (u32, u32, u32) {
    let count = offsets[row + 1] - offsets[row];
    (offsets[row], count, rows.unwrap_or(count * chunk))
}
