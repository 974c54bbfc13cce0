//! The pool: who holds which pages.

use std::sync::{Arc, OnceLock};

use super::config::PoolConfig;
use super::pages::Pages;
use super::plan::Planner;
use super::sequence::{Kept, Sequence, SequenceId};
use super::step::{HeadChange, Needs, Operation, SequenceChange, SlabId, Step};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId, PoolLayout};

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

/// Pages of many sequences and layers of one model, and the tables that say who holds which.
///
/// This is the account, without the memory: [`Pool::plan`] says what an operation does to pages,
/// one of the two paths does it, [`Pool::commit`] books it.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) config: PoolConfig,
    pub(super) layout: PoolLayout,
    /// Pages of each layer, by class.
    pub(super) pages: Vec<[Pages; 3]>,
    pub(super) revision: u64,
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Pool {
    /// An empty pool, without slabs.
    ///
    /// # Errors
    /// Those of [`PoolConfig::layout`]; [`Error::OutOfBudget`] for a budget below
    /// [`PoolConfig::smallest_bytes`].
    pub fn new(config: PoolConfig) -> Result<Self> {
        let pool = Self::of_any_budget(config)?;
        pool.config.check_budget()?;
        Ok(pool)
    }

    /// A pool that only describes sequences, whatever memory there is for them.
    pub(crate) fn of_any_budget(config: PoolConfig) -> Result<Self> {
        let layout = config.layout()?;
        let pages = vec![PageClass::ALL.map(Pages::new); config.layers];
        Ok(Self { config, layout, pages, revision: 0, slots: Vec::new(), vacant: Vec::new() })
    }

    /// What the pool was made from.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// How its pages lie in memory.
    pub fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    /// Counts the changes of pages and slabs; a step can be committed at the revision at which it
    /// was planned.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Begins a sequence without rows.
    pub fn begin(&mut self) -> SequenceId {
        self.insert(Sequence::new(self.config.layers, self.config.heads))
    }

    pub(super) fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.sequence = Some(sequence);
        SequenceId { index, generation: slot.generation }
    }

    /// Begins a sequence that is equal to another and shares all its pages.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId> {
        let copy = self.sequence("sequence", sequence)?.clone();
        self.share(&copy);
        self.revision += 1;
        Ok(self.insert(copy))
    }

    /// Makes a sequence one more owner of its pages.
    pub(super) fn share(&mut self, sequence: &Sequence) {
        for (place, head) in sequence.heads.iter().enumerate() {
            let [sinks, packed, raw] = &mut self.pages[place / self.config.heads];
            if !head.sink.is_none() {
                sinks.share(&self.layout, head.sink);
            }
            head.packed.iter().for_each(|page| packed.share(&self.layout, *page));
            head.tail.iter().for_each(|page| raw.share(&self.layout, *page));
        }
    }

    /// Ends a sequence and gives its pages back.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn free(&mut self, sequence: SequenceId) -> Result<()> {
        self.sequence("sequence", sequence)?;
        let slot = &mut self.slots[sequence.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.vacant.push(sequence.index);
        let heads = slot.sequence.take().into_iter().flat_map(|sequence| sequence.heads);
        for (place, head) in heads.enumerate() {
            let [sinks, packed, raw] = &mut self.pages[place / self.config.heads];
            if !head.sink.is_none() {
                sinks.release(&self.layout, head.sink);
            }
            head.packed.iter().for_each(|page| packed.release(&self.layout, *page));
            head.tail.iter().for_each(|page| raw.release(&self.layout, *page));
        }
        self.revision += 1;
        Ok(())
    }

    /// The sequences that there are, in the order of their places.
    pub fn sequences(&self) -> impl Iterator<Item = SequenceId> + '_ {
        self.slots
            .iter()
            .zip(0..)
            .filter(|(slot, _)| slot.sequence.is_some())
            .map(|(slot, index)| SequenceId { index, generation: slot.generation })
    }

    pub(super) fn sequence(&self, argument: &'static str, id: SequenceId) -> Result<&Sequence> {
        self.slots
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation)
            .and_then(|slot| slot.sequence.as_ref())
            .ok_or(Error::UnknownSequence { argument, index: id.index })
    }

    /// Plans an operation; nothing changes.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`] when the slabs that it needs do not fit the budget;
    /// [`Error::UnknownSequence`], [`Error::Repeated`] for its members; [`Error::Finished`] and
    /// [`Error::Unfinished`] when prompt and answer are not told apart; [`Error::TrimTooLong`];
    /// [`Error::PositionsUnknown`] for a trim into an evicted prompt before
    /// [`Pool::set_positions`]; [`Error::Length`] and [`Error::OutOfRange`] for counts, layers, and
    /// for more than 32 bits can count.
    pub fn plan(&self, operation: &Operation<'_>) -> Result<Step> {
        let step = Planner::plan(self, operation)?;
        step.needs.check()?;
        Ok(step)
    }

    /// What an operation would need, whether or not the budget allows it.
    ///
    /// # Errors
    /// Those of [`Pool::plan`] but [`Error::OutOfBudget`].
    pub fn needs(&self, operation: &Operation<'_>) -> Result<Needs> {
        Planner::plan(self, operation).map(|step| step.needs)
    }

    /// Books a step.
    ///
    /// # Errors
    /// [`Error::StalePlan`] when the pool has changed since it was planned; nothing changes then.
    pub fn commit(&mut self, step: Step) -> Result<()> {
        self.check_revision(step.revision)?;
        let changes = step.changes;
        for change in &changes.sequences {
            self.sequence("sequence", change.sequence)?;
        }
        self.take(&step.opened, &step.dropped, &changes.taken);
        for change in &changes.heads {
            let id = changes.sequences[change.member as usize].sequence;
            self.apply(id, change, &changes.pages);
        }
        for change in changes.sequences {
            self.apply_sequence(change);
        }
        self.revision += 1;
        Ok(())
    }

    pub(super) fn check_revision(&self, planned: u64) -> Result<()> {
        let current = self.revision;
        if planned == current { Ok(()) } else { Err(Error::StalePlan { planned, current }) }
    }

    /// Drops and makes slabs, and gives pages their first owner.
    pub(super) fn take(
        &mut self,
        opened: &[SlabId],
        dropped: &[SlabId],
        taken: &[[Vec<PageId>; 3]],
    ) {
        for slab in dropped {
            self.pages[slab.layer as usize][slab.class.index()].drop_slab(slab.slab);
        }
        for slab in opened {
            let pages = &mut self.pages[slab.layer as usize][slab.class.index()];
            pages.add_slab(&self.layout, slab.slab);
        }
        let taken = taken.iter().flatten();
        for (pages, taken) in self.pages.iter_mut().flatten().zip(taken) {
            taken.iter().for_each(|page| pages.take(&self.layout, *page));
        }
    }

    fn apply(&mut self, id: SequenceId, change: &HeadChange, pages: &[PageId]) {
        let Some(sequence) = &mut self.slots[id.index as usize].sequence else { return };
        let head = &mut sequence.heads[change.head as usize];
        let [sinks, packed, raw] = &mut self.pages[change.head as usize / self.config.heads];
        let layout = &self.layout;
        let list = |range: &core::ops::Range<u32>| &pages[range.start as usize..range.end as usize];
        let (new_packed, new_tail) = (list(&change.packed_new), list(&change.tail_new));
        let gone = change.packed_keep as usize..head.packed.len();
        let tail_gone = change.tail_keep as usize..head.tail.len();
        let same = head.sink == change.sink
            && gone.is_empty()
            && tail_gone.is_empty()
            && new_packed.is_empty()
            && new_tail.is_empty()
            && change.tail_front == 0;
        sequence.revision += u64::from(!same);
        if head.sink != change.sink && !head.sink.is_none() {
            sinks.release(layout, head.sink);
        }
        head.sink = change.sink;
        head.packed.drain(gone).for_each(|page| packed.release(layout, page));
        head.packed.extend(new_packed);
        head.tail.drain(tail_gone).for_each(|page| raw.release(layout, page));
        head.tail.extend(new_tail);
        let front = ..change.tail_front as usize;
        head.tail.drain(front).for_each(|page| raw.release(layout, page));
        (head.rows, head.prompt) = (change.rows, change.prompt);
    }

    fn apply_sequence(&mut self, change: SequenceChange) {
        let heads = self.config.heads;
        let slot = &mut self.slots[change.sequence.index as usize];
        let Some(sequence) = &mut slot.sequence else { return };
        (sequence.seen, sequence.origin) = (change.seen, change.origin);
        sequence.finished[change.finished.clone()].fill(true);
        let Some(counts) = change.counts else { return };
        for (layer, counts) in change.finished.zip(counts.chunks(heads)) {
            let mut offsets = vec![0; heads + 1];
            for (head, count) in counts.iter().enumerate() {
                offsets[head + 1] = offsets[head] + count;
            }
            let kept = Kept { tokens: sequence.seen, offsets, positions: OnceLock::new() };
            sequence.kept[layer] = Some(Arc::new(kept));
        }
    }

    /// Tells which positions one layer kept of an evicted prompt: `[sum of the counts]`, head after
    /// head, ascending in each, the first of each head being the sinks. Forks learn it too.
    ///
    /// They are needed for a trim into the prompt and for [`Pool::positions`], nothing else.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::OutOfRange`] for the layer; [`Error::Unfinished`] for a
    /// layer that has not evicted; [`Error::Finished`] when they are known; [`Error::Length`] and
    /// [`Error::Offsets`] for a list that cannot be true.
    pub fn set_positions(
        &mut self,
        sequence: SequenceId,
        layer: usize,
        positions: &[u32],
    ) -> Result<()> {
        self.check_layer(layer)?;
        let sequence = self.sequence("sequence", sequence)?;
        let Some(kept) = &sequence.kept[layer] else {
            return Err(Error::Unfinished { argument: "the eviction", layer });
        };
        kept.check(positions, self.layout.sinks())?;
        kept.positions.set(positions.into()).map_err(|_| Error::Finished { argument: "positions" })
    }

    /// Lets go of all slabs in which no page is held, and names them.
    pub fn shrink(&mut self) -> Vec<SlabId> {
        let mut dropped = Vec::new();
        for (pages, layer) in self.pages.iter_mut().zip(0..) {
            for (class, pages) in PageClass::ALL.into_iter().zip(pages) {
                let empty: Vec<u32> = pages.empty_slabs().collect();
                for slab in empty {
                    pages.drop_slab(slab);
                    dropped.push(SlabId { class, layer, slab });
                }
            }
        }
        self.revision += u64::from(!dropped.is_empty());
        dropped
    }

    pub(super) fn check_layer(&self, layer: usize) -> Result<()> {
        let max = self.config.layers as u64 - 1;
        let got = layer as u64;
        if got <= max {
            Ok(())
        } else {
            Err(Error::OutOfRange { argument: "layer", got, min: 0, max })
        }
    }
}
