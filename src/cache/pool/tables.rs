//! What can be asked of a head, and the page tables of a batch.

use super::pool::Pool;
use super::sequence::{Head, Sequence, SequenceId};
use crate::error::{Error, Result};
use crate::layout::pool::PageClass;
use crate::layout::tables::Tables;

impl Tables {
    /// Checks that every page lies in a slab that there is and every count in its page; the lists of
    /// a pool do, those of a file may not.
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::Offsets`]; [`Error::OutOfRange`] for the layer.
    pub fn check(&self, pool: &Pool, layer: usize) -> Result<()> {
        pool.check_layer(layer)?;
        let rows = self.rows();
        self.check_lists()?;
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
