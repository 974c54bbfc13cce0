//! Page tables of a batch, as attention and fetching read them, and what can be asked of a head.

use super::pool::Pool;
use super::sequence::{Head, Sequence, SequenceId};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId};
use crate::shape::check_offsets;

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
    /// The row.
    pub row: u32,
    /// First page in the list of the class; for sinks the row itself.
    pub first: u32,
    /// Pages.
    pub pages: u32,
    /// Rows in these pages.
    pub rows: u32,
    /// Place of the partial result.
    pub slot: u32,
}

/// The units of a batch. The partial results of a row lie side by side in the order sinks, packed,
/// tail, and how a row is cut depends on that row alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// Units by class ([`PageClass::index`]).
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

    /// Cuts every row into units of `pages` pages.
    ///
    /// # Errors
    /// [`Error::Empty`] for units of 0 pages.
    pub fn units(&self, pages: u32) -> Result<Units> {
        if pages == 0 {
            return Err(Error::Empty { argument: "pages of a unit" });
        }
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
                        _ => (rows - before).min(pages * self.chunk),
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

    /// Checks that every page lies in a slab that there is and every count in its page; the lists of
    /// a pool do, those of a file may not.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::Offsets`]; [`Error::OutOfRange`] for the layer.
    pub fn check(&self, pool: &Pool, layer: usize) -> Result<()> {
        pool.check_layer(layer)?;
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
        let held = |class, page| pool.owners(class, layer, page) > 0;
        let fault = |argument, index, got, expected| {
            Err(Error::Offsets { argument, index, got: u64::from(got), expected })
        };
        let lists = [(PageClass::Packed, &self.packed), (PageClass::Raw, &self.tail)];
        for (class, list) in lists {
            if let Some(index) = list.iter().position(|page| !held(class, *page)) {
                return fault("page table", index, list[index].get(), "a page that is held");
            }
        }
        for row in 0..rows {
            let (page, count) = (self.sinks[row], self.sink_rows[row]);
            if count as usize > pool.layout.sinks() {
                return fault("sink_rows", row, count, "at most the sinks of the pool");
            }
            if count > 0 && !held(PageClass::Sink, page) {
                return fault("sinks", row, page.get(), "a page that is held");
            }
            let pages = self.tail_offsets[row + 1] - self.tail_offsets[row];
            if self.tail_rows[row].div_ceil(pool.layout.chunk() as u32) != pages {
                return fault("tail_rows", row, self.tail_rows[row], "as many as the pages hold");
            }
        }
        Ok(())
    }
}

/// First page, pages and rows of a row of a list.
fn span(offsets: &[u32], row: usize, rows: Option<u32>, chunk: u32) -> (u32, u32, u32) {
    let count = offsets[row + 1] - offsets[row];
    (offsets[row], count, rows.unwrap_or(count * chunk))
}

impl Pool {
    /// Page tables of one layer of a batch. A sequence may come more than once.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer or for more pages than 32
    /// bits count.
    pub fn tables(&self, sequences: &[SequenceId], layer: usize) -> Result<Tables> {
        self.check_layer(layer)?;
        let members = sequences.iter().map(|id| self.sequence("sequence", *id));
        let members = members.collect::<Result<Vec<&Sequence>>>()?;
        let mut tables = Tables { chunk: self.layout.chunk() as u32, ..Tables::default() };
        tables.packed_offsets.push(0);
        tables.tail_offsets.push(0);
        for sequence in members {
            tables.next.push(sequence.seen);
            for head in self.heads_of(sequence, layer) {
                let (sinks, tail) = self.raw_rows(head);
                tables.sinks.push(head.sink);
                tables.sink_rows.push(sinks);
                tables.packed.extend_from_slice(&head.packed);
                tables.packed_offsets.push(count("packed pages", tables.packed.len())?);
                tables.tail.extend_from_slice(&head.tail);
                tables.tail_offsets.push(count("tail pages", tables.tail.len())?);
                tables.tail_rows.push(tail);
            }
        }
        Ok(tables)
    }

    pub(super) fn heads_of<'a>(&self, sequence: &'a Sequence, layer: usize) -> &'a [Head] {
        let heads = self.config.heads;
        &sequence.heads[layer * heads..(layer + 1) * heads]
    }

    /// Rows of a head's sink page and of its tail.
    pub(super) fn raw_rows(&self, head: &Head) -> (u32, u32) {
        let sinks = head.rows.min(self.layout.sinks() as u32);
        let packed = head.packed.len() as u32 * self.layout.chunk() as u32;
        (sinks, head.rows - sinks - packed)
    }

    fn head(&self, id: SequenceId, layer: usize, head: usize) -> Result<(&Sequence, &Head)> {
        self.check_layer(layer)?;
        let sequence = self.sequence("sequence", id)?;
        let (got, max) = (head as u64, self.config.heads as u64 - 1);
        let state = self.heads_of(sequence, layer).get(head);
        let state = state.ok_or(Error::OutOfRange { argument: "head", got, min: 0, max })?;
        Ok((sequence, state))
    }

    /// Tokens that a sequence has seen: its next position.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn seen(&self, sequence: SequenceId) -> Result<u32> {
        self.sequence("sequence", sequence).map(|sequence| sequence.seen)
    }

    /// Rows that a head holds.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer or head.
    pub fn rows(&self, sequence: SequenceId, layer: usize, head: usize) -> Result<u32> {
        self.head(sequence, layer, head).map(|(_, head)| head.rows)
    }

    /// Rows of a head behind its frontier: those that are packed.
    ///
    /// # Errors
    /// As [`Pool::rows`].
    pub fn frontier(&self, sequence: SequenceId, layer: usize, head: usize) -> Result<u32> {
        let (_, head) = self.head(sequence, layer, head)?;
        Ok(head.packed.len() as u32 * self.layout.chunk() as u32)
    }

    /// True positions of the rows of a head, ascending.
    ///
    /// # Errors
    /// As [`Pool::rows`], and [`Error::PositionsUnknown`] for a head of an evicted prompt before
    /// [`Pool::set_positions`].
    pub fn positions(&self, sequence: SequenceId, layer: usize, head: usize) -> Result<Vec<u32>> {
        let (sequence, _) = self.head(sequence, layer, head)?;
        sequence.positions(layer, head, self.config.heads)
    }

    /// Whether the prompt of a sequence is finished in a layer.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer.
    pub fn is_finished(&self, sequence: SequenceId, layer: usize) -> Result<bool> {
        self.check_layer(layer)?;
        self.sequence("sequence", sequence).map(|sequence| sequence.finished[layer])
    }

    /// Counts the changes of a sequence's page tables: while it stands still, only counts of rows
    /// and the next position have changed.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn table_revision(&self, sequence: SequenceId) -> Result<u64> {
        self.sequence("sequence", sequence).map(|sequence| sequence.revision)
    }
}

fn count(argument: &'static str, count: usize) -> Result<u32> {
    let (got, max) = (count as u64, u64::from(u32::MAX));
    u32::try_from(count).map_err(|_| Error::OutOfRange { argument, got, min: 0, max })
}
