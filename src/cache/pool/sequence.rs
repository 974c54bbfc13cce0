//! What a pool knows about one sequence.

use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::layout::pool::PageId;

/// Names a sequence of a pool. An id never comes back: after `free` it is refused. In another pool it
/// means nothing, or the sequence that happens to have been given the same one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// What was kept of the prompt in one layer when it was evicted. Forks share it.
#[derive(Debug)]
pub(super) struct Kept {
    /// Tokens of the prompt.
    pub(super) tokens: u32,
    /// First kept row of each head and the number of all, `[heads + 1]`.
    pub(super) offsets: Vec<u32>,
    /// Their positions, head after head, once they are known.
    pub(super) positions: OnceLock<Box<[u32]>>,
}

impl Kept {
    /// Checks a list of positions: as many as were kept, in each head ascending, below the end of
    /// the prompt and with the sinks first.
    pub(super) fn check(&self, positions: &[u32], sinks: usize) -> Result<()> {
        let argument = "positions";
        let expected = self.offsets.last().map_or(0, |total| *total as usize);
        if positions.len() != expected {
            return Err(Error::Length { argument, got: positions.len(), expected });
        }
        let sinks = sinks.min(self.tokens as usize);
        for head in self.offsets.windows(2) {
            let start = head[0] as usize;
            let list = &positions[start..head[1] as usize];
            for (place, &position) in list.iter().enumerate() {
                let expected = if place < sinks && position as usize != place {
                    "the sinks first"
                } else if place > 0 && position <= list[place - 1] {
                    "more than the one before"
                } else if position >= self.tokens {
                    "a position of the prompt"
                } else {
                    continue;
                };
                let (index, got) = (start + place, u64::from(position));
                return Err(Error::Offsets { argument, index, got, expected });
            }
        }
        Ok(())
    }

    /// Whether a head kept the whole prompt.
    fn whole(&self, head: usize) -> bool {
        self.offsets[head + 1] - self.offsets[head] == self.tokens
    }

    fn positions(&self, head: usize) -> Option<&[u32]> {
        let range = self.offsets[head] as usize..self.offsets[head + 1] as usize;
        self.positions.get().map(|positions| &positions[range])
    }
}

/// One KV head of one layer.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) sink: PageId,
    pub(super) packed: Vec<PageId>,
    pub(super) tail: Vec<PageId>,
    /// Rows held.
    pub(super) rows: u32,
    /// Rows held of those before the sequence's origin.
    pub(super) prompt: u32,
}

impl Head {
    pub(super) fn new() -> Self {
        Self { sink: PageId::NONE, packed: Vec::new(), tail: Vec::new(), rows: 0, prompt: 0 }
    }
}

/// One sequence: heads of all layers, layer after layer.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    /// Tokens seen: the next position.
    pub(super) seen: u32,
    /// Position from which on every head holds every row.
    pub(super) origin: u32,
    /// Layers whose prompt is declared finished.
    pub(super) finished: Vec<bool>,
    /// What each layer kept of the prompt; `None` where it kept all.
    pub(super) kept: Vec<Option<Arc<Kept>>>,
    pub(super) heads: Vec<Head>,
    /// Counts the changes of page tables.
    pub(super) revision: u64,
}

impl Sequence {
    pub(super) fn new(layers: usize, heads: usize) -> Self {
        Self {
            seen: 0,
            origin: 0,
            finished: vec![false; layers],
            kept: vec![None; layers],
            heads: vec![Head::new(); layers * heads],
            revision: 0,
        }
    }

    /// First layer whose prompt is not finished.
    pub(super) fn unfinished(&self) -> Option<usize> {
        self.finished.iter().position(|finished| !finished)
    }

    /// First layer whose prompt is finished.
    pub(super) fn first_finished(&self) -> Option<usize> {
        self.finished.iter().position(|finished| *finished)
    }

    /// Positions of the kept rows of a head, as far as it still holds them; `None` when all of the
    /// prompt was kept.
    fn kept(&self, layer: usize, head: usize, prompt: u32) -> Result<Option<&[u32]>> {
        match &self.kept[layer] {
            Some(kept) if !kept.whole(head) => {
                let positions = kept.positions(head).ok_or(Error::PositionsUnknown { layer })?;
                Ok(Some(&positions[..prompt as usize]))
            }
            _ => Ok(None),
        }
    }

    /// Rows that a head has below a position that is not beyond the next, of which the second
    /// number lie before the origin.
    pub(super) fn rows_below(
        &self,
        layer: usize,
        head: usize,
        heads: usize,
        sinks: u32,
        position: u32,
    ) -> Result<(u32, u32)> {
        let prompt = self.heads[layer * heads + head].prompt;
        let kept = if position >= self.origin {
            return Ok((prompt + position - self.origin, prompt));
        } else if position <= sinks {
            // An eviction keeps the sinks, so their positions need not be told.
            position
        } else {
            match self.kept(layer, head, prompt)? {
                Some(kept) => kept.partition_point(|kept| *kept < position) as u32,
                None => position,
            }
        };
        Ok((kept, kept))
    }

    /// Positions of the rows of a head, ascending.
    pub(super) fn positions(&self, layer: usize, head: usize, heads: usize) -> Result<Vec<u32>> {
        let prompt = self.heads[layer * heads + head].prompt;
        let rest = self.origin..self.seen;
        Ok(match self.kept(layer, head, prompt)? {
            Some(kept) => kept.iter().copied().chain(rest).collect(),
            None => (0..prompt).chain(rest).collect(),
        })
    }
}
