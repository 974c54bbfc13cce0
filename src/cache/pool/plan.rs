//! Turns an operation into a step: chooses pages, writes lists, changes nothing.
//!
//! The rules (NSNQuant, arXiv 2505.18231, section 3.3, with two counts of ours), for a head with
//! `rows` rows of which the first `sinks` are sinks:
//! * a flush packs `chunk * floor(max(0, rows - sinks - recent) / chunk)` rows, or what was packed
//!   before if that is more;
//! * a trim within the raw rows leaves the frontier where it is, one that reaches into a chunk
//!   snaps it to `chunk * floor(max(0, rows - sinks) / chunk)`.
//!
//! The tail's pages are counted from the frontier, so a chunk that is to be packed is always a whole
//! raw page. A page with several owners is copied before one of them writes to it. Copies come
//! before writes and packing after, so within one step an owner that only packs a page still counts
//! as an owner, and one that has copied it does not.

use std::collections::HashMap;

use super::pages::Picker;
use super::pool::Pool;
use super::sequence::{Head, Sequence, SequenceId};
use super::step::{
    Changes, CopyRows, Encode, FixScale, Gather, HeadChange, Keep, LayerStep, Needs, Operation,
    Part, Restore, SequenceChange, SlabId, Step, Write,
};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId};
use crate::nsnquant::KEY_SCALE_CHUNKS;

/// Rows that come in for one head.
#[derive(Clone, Copy)]
struct Incoming {
    tokens: u32,
    /// Row of the first in the incoming tensors.
    source: u32,
    /// Whether they belong to the prompt.
    prompt: bool,
}

/// Where a head is found.
#[derive(Clone, Copy)]
struct Place<'a> {
    member: u32,
    sequence: &'a Sequence,
    layer: usize,
    head: usize,
}

pub(super) struct Planner<'a> {
    pool: &'a Pool,
    /// Choosers of each layer of the pool, by class.
    pickers: Vec<[Picker<'a>; 3]>,
    /// Owners that copied a page away in this step, by class, layer of the pool and page.
    copied: HashMap<(PageClass, usize, PageId), u32>,
    first_layer: usize,
    layers: Vec<LayerStep>,
    source_rows: u32,
    changes: Changes,
    /// Pages and bytes of them of an operation that no budget left could hold, whose lists would be
    /// as long as they are in vain.
    beyond: Option<(u64, u64)>,
    chunk: u32,
    sinks: u32,
    heads: usize,
}

impl<'a> Planner<'a> {
    /// The step of an operation, whether or not the budget allows it.
    pub(super) fn plan(pool: &'a Pool, operation: &Operation<'_>) -> Result<Step> {
        let mut planner = Self {
            pool,
            pickers: pickers(pool),
            copied: HashMap::new(),
            first_layer: 0,
            layers: vec![LayerStep::default(); pool.config.layers],
            source_rows: 0,
            changes: Changes::default(),
            beyond: None,
            chunk: pool.layout.chunk() as u32,
            sinks: pool.layout.sinks() as u32,
            heads: pool.config.heads,
        };
        match operation {
            Operation::Prefill { parts } => planner.add(parts, true, false)?,
            Operation::Append { parts, flush } => planner.add(parts, false, *flush)?,
            Operation::Flush { sequences } => {
                let part = |sequence: &SequenceId| Part { sequence: *sequence, tokens: 0 };
                let parts: Vec<Part> = sequences.iter().map(part).collect();
                planner.add(&parts, false, true)?;
            }
            Operation::Trim { parts } => planner.trim(parts)?,
            Operation::Finish { sequence, layers, keep } => {
                planner.finish(*sequence, layers.clone(), *keep)?;
            }
        }
        Ok(planner.into_step())
    }

    /// The sequences of a batch, each of which may come once.
    fn members(&self, parts: &[Part]) -> Result<Vec<&'a Sequence>> {
        let mut seen = HashMap::with_capacity(parts.len());
        let member = |(index, part): (usize, &Part)| {
            if seen.insert(part.sequence, index).is_some() {
                return Err(Error::Repeated { argument: "parts", index });
            }
            self.pool.sequence("sequence", part.sequence)
        };
        parts.iter().enumerate().map(member).collect()
    }

    fn add(&mut self, parts: &[Part], prompt: bool, flush: bool) -> Result<()> {
        let members = self.members(parts)?;
        let mut rows = 0u64;
        for (part, sequence) in parts.iter().zip(&members) {
            let max = u32::MAX - 1 - sequence.seen;
            if part.tokens > max {
                let (got, max) = (u64::from(part.tokens), u64::from(max));
                return Err(Error::OutOfRange { argument: "tokens", got, min: 0, max });
            }
            if prompt && sequence.first_finished().is_some() {
                return Err(Error::Finished { argument: "the prompt" });
            }
            if let Some(layer) = sequence.unfinished().filter(|_| !prompt && sequence.seen > 0) {
                return Err(Error::Unfinished { argument: "the prompt", layer });
            }
            rows += u64::from(part.tokens) * self.heads as u64;
        }
        self.source_rows = u32::try_from(rows).map_err(|_| Error::OutOfRange {
            argument: "incoming rows",
            got: rows,
            min: 0,
            max: u64::from(u32::MAX),
        })?;
        self.beyond = self.beyond(parts);
        if self.beyond.is_some() {
            return Ok(());
        }
        let mut source = 0;
        for ((part, sequence), member) in parts.iter().zip(members).zip(0..) {
            let tokens = part.tokens;
            for layer in 0..self.layers.len() {
                for head in 0..self.heads {
                    let place = Place { member, sequence, layer, head };
                    let source = source + head as u32 * tokens;
                    self.grow(place, Incoming { tokens, source, prompt }, flush)?;
                }
            }
            source += self.heads as u32 * tokens;
            let seen = sequence.seen + tokens;
            // Rows may come without a prompt, and then there is none to finish.
            let finished = if prompt || tokens == 0 { 0..0 } else { 0..self.layers.len() };
            self.changes.sequences.push(SequenceChange {
                sequence: part.sequence,
                seen,
                origin: if prompt { seen } else { sequence.origin },
                finished,
                counts: None,
            });
        }
        Ok(())
    }

    /// The raw pages that rows need at least, and their bytes, if the whole budget is less.
    fn beyond(&self, parts: &[Part]) -> Option<(u64, u64)> {
        let pages = |part: &Part| {
            // Sinks, and what a last page still holds, take the first rows.
            let rows = part.tokens.saturating_sub(self.sinks + self.chunk - 1);
            u64::from(rows.div_ceil(self.chunk))
        };
        let heads = (self.heads * self.layers.len()) as u64;
        let pages = parts.iter().map(pages).sum::<u64>().saturating_mul(heads);
        let bytes = pages.saturating_mul(self.pool.layout.bytes(PageClass::Raw));
        (bytes > self.pool.config.byte_budget).then_some((pages, bytes))
    }

    /// Adds rows to one head.
    fn grow(&mut self, place: Place<'a>, incoming: Incoming, flush: bool) -> Result<()> {
        let Place { sequence, layer, .. } = place;
        let Incoming { tokens, source, prompt } = incoming;
        let (state, mut change) = self.head(place);
        if tokens > 0 {
            change.rows += tokens;
            change.prompt += if prompt { tokens } else { 0 };
            let (old, new) = (state.rows.min(self.sinks), change.rows.min(self.sinks));
            let row = |page, slot, done: u32, rows| {
                let position = sequence.seen + done;
                Write { page, slot, rows, source: source + done, position }
            };
            if new > old {
                change.sink = self.writable(PageClass::Sink, layer, state.sink, old)?;
                let write = row(change.sink, old, 0, new - old);
                self.layers[layer].sink_writes.push(write);
            }
            let mut done = new - old;
            let mut at = state.rows - old - state.packed.len() as u32 * self.chunk;
            while done < tokens {
                let slot = at % self.chunk;
                let last = state.tail.last().filter(|_| slot > 0).copied();
                let held = last.unwrap_or(PageId::NONE);
                let page = self.writable(PageClass::Raw, layer, held, slot)?;
                if page != held {
                    change.tail_keep -= u32::from(last.is_some());
                    self.changes.pages.push(page);
                }
                let rows = (self.chunk - slot).min(tokens - done);
                self.layers[layer].raw_writes.push(row(page, slot, done, rows));
                done += rows;
                at += rows;
            }
            change.tail_new.end = self.changes.pages.len() as u32;
        }
        self.flush(place, &mut change, flush, 1)?;
        if tokens > 0 || change.tail_front > 0 {
            self.changes.heads.push(change);
        }
        Ok(())
    }

    /// Packs what a changed head has behind its frontier; a key scale is fixed from at most so many
    /// chunks.
    fn flush(
        &mut self,
        place: Place<'a>,
        change: &mut HeadChange,
        flush: bool,
        chunks: usize,
    ) -> Result<()> {
        let start = self.changes.pages.len() as u32;
        change.packed_new = start..start;
        if !flush || self.pool.layout.packed().is_none() {
            return Ok(());
        }
        let (state, _) = self.head(place);
        let raw = self.sinks as usize + self.pool.config.recent;
        let target = (change.rows as usize).saturating_sub(raw) / self.chunk as usize;
        let keep = change.tail_keep as usize;
        let count = target.saturating_sub(state.packed.len());
        let (mut scale, mut fixed) = (0, 0);
        if count > 0 && self.pool.layout.key_scale() {
            if state.packed.is_empty() {
                fixed = count.min(chunks);
                self.fix_scale(place, change, fixed)?;
            }
            scale = self.scale(place.layer, change.sink);
        }
        for page in 0..count {
            let from = match page.checked_sub(keep) {
                None => state.tail[page],
                Some(page) => self.changes.pages[change.tail_new.start as usize + page],
            };
            let to = self.pick(PageClass::Packed, place.layer)?;
            self.changes.pages.push(to);
            let layer = &mut self.layers[place.layer];
            if page < fixed {
                layer.fix_pages.push(from);
            }
            layer.encodes.push(Encode { from, to, scale });
            change.tail_front += 1;
        }
        change.packed_new.end = self.changes.pages.len() as u32;
        Ok(())
    }

    /// Makes a sink page the head's own, so that its key scale can be fixed there from pages that
    /// follow.
    fn fix_scale(&mut self, place: Place<'a>, change: &mut HeadChange, pages: usize) -> Result<()> {
        let Place { layer, .. } = place;
        let (state, _) = self.head(place);
        // A page that the step has put in place of another is the head's own already.
        if change.sink == state.sink {
            let rows = change.rows.min(self.sinks);
            change.sink = self.writable(PageClass::Sink, layer, state.sink, rows)?;
        }
        let step = &mut self.layers[layer];
        let first = step.fix_pages.len();
        let first = u32::try_from(first).map_err(|_| too_many("fix pages", first))?;
        step.fixes.push(FixScale { to: change.sink, first, pages: pages as u32 });
        Ok(())
    }

    /// The place of a sink page in the list of those whose key scales a layer's work uses.
    fn scale(&mut self, layer: usize, sink: PageId) -> u32 {
        let pages = &mut self.layers[layer].scale_pages;
        pages.push(sink);
        // There are at most as many as heads of all sequences, which tables count in 32 bits.
        pages.len() as u32 - 1
    }

    fn finish(
        &mut self,
        id: SequenceId,
        layers: core::ops::Range<usize>,
        keep: Keep<'_>,
    ) -> Result<()> {
        let sequence = self.pool.sequence("sequence", id)?;
        let all = self.layers.len();
        if layers.start >= layers.end || layers.end > all {
            let (got, max) = (layers.end as u64, all as u64);
            let min = (layers.start as u64).saturating_add(1);
            return Err(Error::OutOfRange { argument: "layers", got, min, max });
        }
        if layers.clone().any(|layer| sequence.finished[layer]) {
            return Err(Error::Finished { argument: "the prompt" });
        }
        let counts = match keep {
            Keep::All => None,
            Keep::Counts(counts) => {
                self.check_counts(sequence, counts, layers.len())?;
                Some(counts)
            }
        };
        self.first_layer = layers.start;
        self.layers.truncate(layers.len());
        for layer in 0..layers.len() {
            let mut kept = 0;
            for head in 0..self.heads {
                let rows = counts.map(|counts| counts[layer * self.heads + head]);
                // Lists are counted from the first layer of the step, tables from the first of all.
                let place = Place { member: 0, sequence, layer, head };
                self.finish_head(place, rows, kept)?;
                kept += rows.unwrap_or(0);
            }
        }
        self.changes.sequences.push(SequenceChange {
            sequence: id,
            seen: sequence.seen,
            origin: sequence.origin,
            finished: layers,
            counts: counts.map(<[u32]>::to_vec),
        });
        Ok(())
    }

    fn check_counts(&self, sequence: &Sequence, counts: &[u32], layers: usize) -> Result<()> {
        let expected = layers * self.heads;
        if counts.len() != expected {
            return Err(Error::Length { argument: "counts", got: counts.len(), expected });
        }
        let (min, max) = (self.sinks.min(sequence.seen), sequence.seen);
        if let Some(got) = counts.iter().find(|count| !(min..=max).contains(count)) {
            let (got, min, max) = (u64::from(*got), u64::from(min), u64::from(max));
            return Err(Error::OutOfRange { argument: "counts", got, min, max });
        }
        let over = |layer: &[u32]| {
            let total = layer.iter().map(|count| u64::from(*count)).sum::<u64>();
            (total > u64::from(u32::MAX)).then_some(total)
        };
        match counts.chunks(self.heads).find_map(over) {
            None => Ok(()),
            Some(got) => {
                let max = u64::from(u32::MAX);
                Err(Error::OutOfRange { argument: "counts of a layer", got, min: 0, max })
            }
        }
    }

    /// Drops what one head does not keep and packs the rest; `kept` is the head's first place in the
    /// layer's list of kept positions.
    fn finish_head(&mut self, place: Place<'a>, count: Option<u32>, kept: u32) -> Result<()> {
        let (state, mut change) = self.head(place);
        if let Some(count) = count.filter(|count| *count < state.rows) {
            (change.rows, change.prompt) = (count, count);
            change.tail_keep = 0;
            let sinks = self.sinks.min(state.rows);
            let table = self.layers[place.layer].gather_pages.len();
            let table = u32::try_from(table).map_err(|_| too_many("gather pages", table))?;
            let mut done = sinks;
            while done < count {
                let to = self.pick(PageClass::Raw, place.layer)?;
                self.changes.pages.push(to);
                let rows = self.chunk.min(count - done);
                let gather = Gather { to, rows, kept: kept + done, table };
                self.layers[place.layer].gathers.push(gather);
                done += rows;
            }
            if count > sinks {
                self.layers[place.layer].gather_pages.extend(&state.tail);
            }
            change.tail_new.end = self.changes.pages.len() as u32;
        }
        self.flush(place, &mut change, true, KEY_SCALE_CHUNKS)?;
        if change.rows < state.rows || change.tail_front > 0 {
            self.changes.heads.push(change);
        }
        Ok(())
    }

    fn trim(&mut self, parts: &[Part]) -> Result<()> {
        let members = self.members(parts)?;
        for (part, sequence) in parts.iter().zip(&members) {
            if part.tokens > sequence.seen {
                let (got, held) = (part.tokens as usize, sequence.seen as usize);
                return Err(Error::TrimTooLong { got, held });
            }
        }
        for ((part, sequence), member) in parts.iter().zip(members).zip(0..) {
            let position = sequence.seen - part.tokens;
            for layer in 0..self.layers.len() {
                for head in 0..self.heads {
                    self.trim_head(Place { member, sequence, layer, head }, position)?;
                }
            }
            self.changes.sequences.push(SequenceChange {
                sequence: part.sequence,
                seen: position,
                origin: sequence.origin.min(position),
                finished: 0..0,
                counts: None,
            });
        }
        Ok(())
    }

    /// Drops the rows that one head has from a position on.
    fn trim_head(&mut self, place: Place<'a>, position: u32) -> Result<()> {
        let Place { sequence, layer, head, .. } = place;
        let (state, mut change) = self.head(place);
        let (rows, prompt) = sequence.rows_below(layer, head, self.heads, self.sinks, position)?;
        if rows == state.rows && prompt == state.prompt {
            return Ok(());
        }
        (change.rows, change.prompt) = (rows, prompt);
        let behind = rows.saturating_sub(self.sinks);
        let packed = state.packed.len() as u32 * self.chunk;
        if behind >= packed {
            change.tail_keep = (behind - packed).div_ceil(self.chunk);
        } else {
            change.packed_keep = behind / self.chunk;
            change.tail_keep = 0;
            let rest = behind % self.chunk;
            if rest > 0 {
                let from = state.packed[change.packed_keep as usize];
                // All of the tail goes, so a page of it that nobody shares can take the rows, and
                // the trim needs no memory.
                let mine = |page: &&PageId| !self.shared(PageClass::Raw, layer, **page);
                let to = match state.tail.first().filter(mine) {
                    Some(page) => {
                        change.tail_keep = 1;
                        *page
                    }
                    None => {
                        let page = self.pick(PageClass::Raw, layer)?;
                        self.changes.pages.push(page);
                        page
                    }
                };
                let scaled = self.pool.layout.key_scale();
                let scale = if scaled { self.scale(layer, state.sink) } else { 0 };
                self.layers[layer].restores.push(Restore { from, to, rows: rest, scale });
            }
            change.tail_new.end = self.changes.pages.len() as u32;
        }
        if !self.pool.layout.has_sink(rows, change.packed_keep as usize) {
            change.sink = PageId::NONE;
        }
        let start = self.changes.pages.len() as u32;
        change.packed_new = start..start;
        self.changes.heads.push(change);
        Ok(())
    }

    /// A head and a change that leaves it as it is.
    fn head(&self, place: Place<'a>) -> (&'a Head, HeadChange) {
        let Place { member, sequence, layer, head } = place;
        let index = (self.first_layer + layer) * self.heads + head;
        let state = &sequence.heads[index];
        let start = self.changes.pages.len() as u32;
        let change = HeadChange {
            member,
            head: index as u32,
            rows: state.rows,
            prompt: state.prompt,
            sink: state.sink,
            packed_keep: state.packed.len() as u32,
            packed_new: start..start,
            tail_keep: state.tail.len() as u32,
            tail_new: start..start,
            tail_front: 0,
        };
        (state, change)
    }

    /// One more page in a layer, counted from the first of the step.
    fn pick(&mut self, class: PageClass, layer: usize) -> Result<PageId> {
        let max = self.pool.layout.max_slabs(class) as usize;
        let picker = &mut self.pickers[self.first_layer + layer][class.index()];
        picker.pick().ok_or(too_many("slabs", max))
    }

    /// Whether a write to a page of one owner would be seen by another.
    fn shared(&self, class: PageClass, layer: usize, page: PageId) -> bool {
        let layer = self.first_layer + layer;
        let refs = self.pool.pages[layer][class.index()].refs(&self.pool.layout, page);
        refs > 1 && refs > 1 + self.copied.get(&(class, layer, page)).copied().unwrap_or(0)
    }

    /// The page to write to in place of `page`, which has `rows` rows that must stay.
    fn writable(
        &mut self,
        class: PageClass,
        layer: usize,
        page: PageId,
        rows: u32,
    ) -> Result<PageId> {
        if page.is_none() {
            return self.pick(class, layer);
        }
        if !self.shared(class, layer, page) {
            return Ok(page);
        }
        let to = self.pick(class, layer)?;
        *self.copied.entry((class, self.first_layer + layer, page)).or_default() += 1;
        let copy = CopyRows { from: page, to, rows };
        let step = &mut self.layers[layer];
        match class {
            PageClass::Sink => step.sink_copies.push(copy),
            _ => step.raw_copies.push(copy),
        }
        Ok(to)
    }

    fn into_step(self) -> Step {
        let Self { pool, pickers, mut layers, mut changes, beyond, .. } = self;
        let layout = &pool.layout;
        for layer in &mut layers {
            sort(layout, layer);
        }
        let Slabs { opened, dropped, mut needs } = Slabs::new(pool, &pickers);
        if let Some((pages, bytes)) = beyond {
            needs.pages[PageClass::Raw.index()] = pages;
            needs.slab_bytes = bytes;
        }
        changes.taken = picked(pickers);
        Step {
            revision: pool.revision,
            first_layer: self.first_layer,
            layers,
            source_rows: self.source_rows,
            opened,
            dropped,
            needs,
            changes,
        }
    }
}

/// Which slabs the pages that were chosen need, and which make room for them.
pub(super) struct Slabs {
    pub(super) opened: Vec<SlabId>,
    pub(super) dropped: Vec<SlabId>,
    pub(super) needs: Needs,
}

impl Slabs {
    pub(super) fn new(pool: &Pool, pickers: &[[Picker<'_>; 3]]) -> Self {
        let layout = &pool.layout;
        let (mut opened, mut empty) = (Vec::new(), Vec::new());
        for ((pickers, pages), layer) in pickers.iter().zip(&pool.pages).zip(0..) {
            for class in PageClass::ALL {
                let (picker, pages) = (&pickers[class.index()], &pages[class.index()]);
                opened.extend(picker.opened.iter().map(|&slab| SlabId { class, layer, slab }));
                let unused = pages.empty_slabs().filter(|&slab| !picker.uses(slab));
                empty.extend(unused.map(|slab| SlabId { class, layer, slab }));
            }
        }
        let bytes = |slabs: &[SlabId]| -> u64 {
            slabs.iter().map(|slab| layout.slab_bytes(slab.class)).sum()
        };
        let mut free = pool.config.byte_budget.saturating_sub(pool.allocated_bytes());
        let needs = Needs {
            pages: [0, 1, 2].map(|class: usize| {
                pickers.iter().map(|layer| layer[class].picked.len() as u64).sum()
            }),
            slab_bytes: bytes(&opened),
            available: free.saturating_add(bytes(&empty)),
        };
        let mut dropped = Vec::new();
        for slab in empty {
            if free >= needs.slab_bytes {
                break;
            }
            free += layout.slab_bytes(slab.class);
            dropped.push(slab);
        }
        Self { opened, dropped, needs }
    }
}

/// Choosers of pages of every layer and class.
pub(super) fn pickers(pool: &Pool) -> Vec<[Picker<'_>; 3]> {
    let picker = |pages| Picker::new(pages, &pool.layout);
    pool.pages.iter().map(|layer| layer.each_ref().map(picker)).collect()
}

/// What was chosen.
pub(super) fn picked(pickers: Vec<[Picker<'_>; 3]>) -> Vec<[Vec<PageId>; 3]> {
    pickers.into_iter().map(|layer| layer.map(|picker| picker.picked)).collect()
}

pub(super) fn too_many(argument: &'static str, max: usize) -> Error {
    let max = max as u64;
    Error::OutOfRange { argument, got: max.saturating_add(1), min: 0, max }
}

/// Brings what lies in one slab together.
fn sort(layout: &crate::layout::pool::PoolLayout, layer: &mut LayerStep) {
    use PageClass::{Packed, Raw, Sink};
    let slab = |class, page| layout.slab_of(class, page);
    layer.sink_copies.sort_by_key(|c| (slab(Sink, c.to), slab(Sink, c.from)));
    layer.raw_copies.sort_by_key(|c| (slab(Raw, c.to), slab(Raw, c.from)));
    layer.restores.sort_by_key(|r| (slab(Raw, r.to), slab(Packed, r.from)));
    layer.sink_writes.sort_by_key(|w| slab(Sink, w.page));
    layer.raw_writes.sort_by_key(|w| slab(Raw, w.page));
    layer.gathers.sort_by_key(|g| slab(Raw, g.to));
    layer.fixes.sort_by_key(|f| slab(Sink, f.to));
    layer.encodes.sort_by_key(|e| (slab(Packed, e.to), slab(Raw, e.from)));
}
