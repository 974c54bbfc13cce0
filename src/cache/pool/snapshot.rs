//! Sequences taken out of a pool and put into another, or back: the tables, with pages numbered from
//! 0, so that whoever saves them writes each page once.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::plan::{Slabs, picked, pickers, too_many};
use super::pool::Pool;
use super::sequence::{Head, Kept, Sequence, SequenceId};
use super::step::{Needs, SlabId};
use crate::error::{Error, Result};
use crate::layout::pool::{PageClass, PageId};

/// Tables of some sequences. A page is named by its number within its layer and class; sequences that
/// share pages name the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Pages by layer and class ([`PageClass::index`]), `[layers]`; each belongs to a sequence at
    /// least.
    pub pages: Vec<[u32; 3]>,
    /// Evictions of layers, which forks share.
    pub evictions: Vec<Eviction>,
    /// The saved sequences, in the order asked for.
    pub sequences: Vec<SavedSequence>,
}

/// What a layer kept of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Tokens of the prompt.
    pub tokens: u32,
    /// Rows kept of each head, `[heads]`.
    pub counts: Vec<u32>,
    /// Their positions, `[sum of the counts]`, if they were told.
    pub positions: Option<Vec<u32>>,
}

/// The tables of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSequence {
    /// Tokens seen: the next position.
    pub seen: u32,
    /// Position from which on every head holds every row.
    pub origin: u32,
    /// Whether the prompt is finished, `[layers]`.
    pub finished: Vec<bool>,
    /// Place in [`Snapshot::evictions`] of the layers that evicted, `[layers]`.
    pub evictions: Vec<Option<u32>>,
    /// The heads, `[layers, heads]`.
    pub heads: Vec<SavedHead>,
}

/// One KV head of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedHead {
    /// Rows held, sinks, packed and raw.
    pub rows: u32,
    /// Rows held of those before the origin.
    pub prompt: u32,
    /// Number of its sink page among those of its layer, if it has one.
    pub sink: Option<u32>,
    /// Numbers of its packed pages, in order of positions.
    pub packed: Vec<u32>,
    /// Numbers of its raw pages, in order of positions.
    pub tail: Vec<u32>,
}

/// A snapshot that has its place in a pool: slabs to be made and dropped, pages to be filled.
#[derive(Clone, Debug)]
pub struct Load {
    revision: u64,
    needs: Needs,
    opened: Vec<SlabId>,
    dropped: Vec<SlabId>,
    pages: Vec<[Vec<PageId>; 3]>,
    sequences: Vec<Sequence>,
}

impl Load {
    /// Pages and bytes that it needs.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// Slabs to be made for it.
    pub fn opened(&self) -> &[SlabId] {
        &self.opened
    }

    /// Slabs that make room for others; none of them is opened by the same load.
    pub fn dropped(&self) -> &[SlabId] {
        &self.dropped
    }

    /// The page that takes the place of each page that the snapshot has in a layer; none in a layer
    /// that there is not.
    pub fn pages(&self, class: PageClass, layer: usize) -> &[PageId] {
        self.pages.get(layer).map_or(&[], |pages| &pages[class.index()])
    }
}

/// Numbers pages in the order in which they are met.
#[derive(Default)]
struct Numbers {
    of: HashMap<PageId, u32>,
    pages: Vec<PageId>,
}

impl Numbers {
    fn number(&mut self, page: PageId) -> u32 {
        *self.of.entry(page).or_insert_with(|| {
            self.pages.push(page);
            self.pages.len() as u32 - 1
        })
    }
}

impl Pool {
    /// The tables of some sequences, and by layer and class the pages that they name, in order of
    /// number.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`]; [`Error::Repeated`] for a sequence that comes twice.
    pub fn snapshot(&self, sequences: &[SequenceId]) -> Result<(Snapshot, Vec<[Vec<PageId>; 3]>)> {
        let mut numbers: Vec<[Numbers; 3]> = Vec::new();
        numbers.resize_with(self.config.layers, Default::default);
        let mut known: HashMap<*const Kept, u32> = HashMap::new();
        let mut snapshot = Snapshot::default();
        for (index, id) in sequences.iter().enumerate() {
            if sequences[..index].contains(id) {
                return Err(Error::Repeated { argument: "sequences", index });
            }
            let sequence = self.sequence("sequences", *id)?;
            let heads = sequence.heads.iter().enumerate().map(|(place, head)| {
                let [sinks, packed, raw] = &mut numbers[place / self.config.heads];
                SavedHead {
                    rows: head.rows,
                    prompt: head.prompt,
                    sink: (!head.sink.is_none()).then(|| sinks.number(head.sink)),
                    packed: head.packed.iter().map(|page| packed.number(*page)).collect(),
                    tail: head.tail.iter().map(|page| raw.number(*page)).collect(),
                }
            });
            let heads = heads.collect();
            let evictions = sequence.kept.iter().map(|kept| {
                kept.as_ref().map(|kept| {
                    *known.entry(Arc::as_ptr(kept)).or_insert_with(|| {
                        snapshot.evictions.push(Eviction {
                            tokens: kept.tokens,
                            counts: kept.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect(),
                            positions: kept.positions.get().map(|list| list.to_vec()),
                        });
                        snapshot.evictions.len() as u32 - 1
                    })
                })
            });
            let evictions = evictions.collect();
            snapshot.sequences.push(SavedSequence {
                seen: sequence.seen,
                origin: sequence.origin,
                finished: sequence.finished.clone(),
                evictions,
                heads,
            });
        }
        let pages: Vec<[Vec<PageId>; 3]> =
            numbers.into_iter().map(|layer| layer.map(|numbers| numbers.pages)).collect();
        let counts = |layer: &[Vec<PageId>; 3]| layer.each_ref().map(|pages| pages.len() as u32);
        snapshot.pages = pages.iter().map(counts).collect();
        Ok((snapshot, pages))
    }

    /// Finds a place for the sequences of a snapshot; nothing changes.
    ///
    /// # Errors
    /// [`Error::OutOfBudget`]; [`Error::Length`], [`Error::OutOfRange`], [`Error::Mismatch`] and
    /// [`Error::Offsets`] for tables that no pool of this configuration can have.
    pub fn plan_load(&self, snapshot: &Snapshot) -> Result<Load> {
        self.check_snapshot(snapshot)?;
        let mut pickers = pickers(self);
        for (pickers, pages) in pickers.iter_mut().zip(&snapshot.pages) {
            for (class, picker) in PageClass::ALL.into_iter().zip(pickers) {
                for _ in 0..pages[class.index()] {
                    let max = self.layout.max_slabs(class) as usize;
                    picker.pick().ok_or(too_many("slabs", max))?;
                }
            }
        }
        let Slabs { opened, dropped, needs } = Slabs::new(self, &pickers);
        needs.check()?;
        let pages = picked(pickers);
        let kept: Vec<Arc<Kept>> = snapshot.evictions.iter().map(|e| Arc::new(e.kept())).collect();
        let sequences = snapshot.sequences.iter().map(|saved| {
            let list = |pages: &[PageId], numbers: &[u32]| -> Vec<PageId> {
                numbers.iter().map(|number| pages[*number as usize]).collect()
            };
            let head = |(place, head): (usize, &SavedHead)| {
                let [sinks, packed, raw] = &pages[place / self.config.heads];
                Head {
                    sink: head.sink.map_or(PageId::NONE, |number| sinks[number as usize]),
                    packed: list(packed, &head.packed),
                    tail: list(raw, &head.tail),
                    rows: head.rows,
                    prompt: head.prompt,
                }
            };
            let of = |place: &Option<u32>| place.map(|place| kept[place as usize].clone());
            Sequence {
                seen: saved.seen,
                origin: saved.origin,
                finished: saved.finished.clone(),
                kept: saved.evictions.iter().map(of).collect(),
                heads: saved.heads.iter().enumerate().map(head).collect(),
                revision: 0,
            }
        });
        let sequences = sequences.collect();
        Ok(Load { revision: self.revision, needs, opened, dropped, pages, sequences })
    }

    /// Books a load whose pages have been filled, and names its sequences in the order of the
    /// snapshot.
    ///
    /// # Errors
    /// [`Error::StalePlan`] when the pool has changed since it was planned; nothing changes then.
    pub fn commit_load(&mut self, load: Load) -> Result<Vec<SequenceId>> {
        self.check_revision(load.revision)?;
        self.take(&load.opened, &load.dropped, &load.pages);
        for sequence in &load.sequences {
            self.share(sequence);
        }
        // Taking a page made an owner of nobody.
        let taken = load.pages.iter().flatten();
        for (pages, taken) in self.pages.iter_mut().flatten().zip(taken) {
            taken.iter().for_each(|page| pages.release(&self.layout, *page));
        }
        self.revision += 1;
        Ok(load.sequences.into_iter().map(|sequence| self.insert(sequence)).collect())
    }

    pub(crate) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        let length = |argument, got: usize, expected: usize| {
            if got == expected { Ok(()) } else { Err(Error::Length { argument, got, expected }) }
        };
        let (layers, heads) = (self.config.layers, self.config.heads);
        for eviction in &snapshot.evictions {
            length("counts", eviction.counts.len(), heads)?;
            eviction.check(self.layout.sinks())?;
        }
        length("pages", snapshot.pages.len(), layers)?;
        let mut listed = vec![[0u64; 3]; layers];
        for saved in &snapshot.sequences {
            length("heads", saved.heads.len(), layers * heads)?;
            for (place, head) in saved.heads.iter().enumerate() {
                let counts = [head.sink.iter().len(), head.packed.len(), head.tail.len()];
                let listed = &mut listed[place / heads];
                listed.iter_mut().zip(counts).for_each(|(listed, count)| *listed += count as u64);
            }
        }
        for (pages, max) in snapshot.pages.iter().flatten().zip(listed.into_iter().flatten()) {
            let got = u64::from(*pages);
            if got > max {
                return Err(Error::OutOfRange { argument: "pages", got, min: 0, max });
            }
        }
        let unmet = |pages: &[u32; 3]| pages.map(|pages| vec![false; pages as usize]);
        let mut met: Vec<[Vec<bool>; 3]> = snapshot.pages.iter().map(unmet).collect();
        for saved in &snapshot.sequences {
            length("finished", saved.finished.len(), layers)?;
            length("evictions", saved.evictions.len(), layers)?;
            at_most("seen", saved.seen, u32::MAX - 1)?;
            at_most("origin", saved.origin, saved.seen)?;
            if saved.finished.contains(&false) && saved.origin != saved.seen {
                let (got, expected) = (saved.origin as usize, saved.seen as usize);
                let reference = "the tokens seen, since the prompt is not finished";
                return Err(Error::Mismatch { argument: "origin", got, expected, reference });
            }
            for (layer, place) in saved.evictions.iter().enumerate() {
                let eviction = match place {
                    Some(place) => {
                        let count = snapshot.evictions.len() as u32;
                        at_most("eviction", place.saturating_add(1), count)?;
                        Some(&snapshot.evictions[*place as usize])
                    }
                    None => None,
                };
                if eviction.is_some() && !saved.finished[layer] {
                    return Err(Error::Unfinished { argument: "an evicted prompt", layer });
                }
                for head in 0..heads {
                    let state = &saved.heads[layer * heads + head];
                    let finished = saved.finished[layer];
                    self.check_head(saved, finished, eviction, head, state, &mut met[layer])?;
                }
            }
        }
        if self.layout.key_scale() {
            check_scales(snapshot, heads)?;
        }
        for (class, met) in met.iter().flat_map(|met| met.iter().enumerate()) {
            if let Some(index) = met.iter().position(|met| !met) {
                let expected = "the page of a sequence";
                let got = class as u64;
                return Err(Error::Offsets { argument: "pages", index, got, expected });
            }
        }
        Ok(())
    }

    fn check_head(
        &self,
        saved: &SavedSequence,
        finished: bool,
        eviction: Option<&Eviction>,
        head: usize,
        state: &SavedHead,
        met: &mut [Vec<bool>; 3],
    ) -> Result<()> {
        let same = |argument, got: u64, expected: u64, reference| {
            let fault = Error::Mismatch {
                argument,
                got: got as usize,
                expected: expected as usize,
                reference,
            };
            if got == expected { Ok(()) } else { Err(fault) }
        };
        let prompt = match eviction {
            None => saved.origin,
            Some(eviction) => {
                at_most("origin", saved.origin, eviction.tokens)?;
                let sinks = self.layout.sinks() as u32;
                eviction.below(head, saved.origin, sinks, state.prompt)?
            }
        };
        same("prompt", state.prompt.into(), prompt.into(), "what was kept")?;
        let rows = u64::from(prompt) + u64::from(saved.seen - saved.origin);
        same("rows", state.rows.into(), rows, "the tokens seen")?;
        let (sinks, chunk) = (self.layout.sinks() as u64, self.layout.chunk() as u64);
        let held = state.packed.len();
        let sink_pages = u64::from(self.layout.has_sink(state.rows, held));
        same("sink pages", u64::from(state.sink.is_some()), sink_pages, "the rows")?;
        let behind = rows.saturating_sub(sinks);
        let packs = finished && self.layout.packed().is_some();
        let max = if packs { behind / chunk } else { 0 };
        let packed = state.packed.len() as u64;
        if packed > max {
            return Err(Error::OutOfRange { argument: "packed pages", got: packed, min: 0, max });
        }
        let tail = (behind - packed * chunk).div_ceil(chunk);
        same("tail pages", state.tail.len() as u64, tail, "the rows")?;
        let sink = state.sink.as_slice();
        let lists = [sink, &state.packed, &state.tail];
        for (list, met) in lists.into_iter().zip(met) {
            for number in list {
                at_most("page", number.saturating_add(1), met.len() as u32)?;
                met[*number as usize] = true;
            }
        }
        Ok(())
    }
}

/// Checks that a packed page has one key scale: all that hold it have one sink page.
fn check_scales(snapshot: &Snapshot, heads: usize) -> Result<()> {
    let packed = |layer: &[u32; 3]| vec![None; layer[PageClass::Packed.index()] as usize];
    let mut under: Vec<Vec<Option<u32>>> = snapshot.pages.iter().map(packed).collect();
    for saved in &snapshot.sequences {
        for (place, head) in saved.heads.iter().enumerate() {
            for page in &head.packed {
                let known = &mut under[place / heads][*page as usize];
                if known.is_some() && *known != head.sink {
                    return Err(Error::Mismatch {
                        argument: "the key scale's page of a packed page",
                        got: head.sink.unwrap_or(u32::MAX) as usize,
                        expected: known.unwrap_or(u32::MAX) as usize,
                        reference: "another sequence that holds it",
                    });
                }
                *known = head.sink;
            }
        }
    }
    Ok(())
}

fn at_most(argument: &'static str, got: u32, max: u32) -> Result<()> {
    let fault = Error::OutOfRange { argument, got: got.into(), min: 0, max: max.into() };
    if got <= max { Ok(()) } else { Err(fault) }
}

impl Eviction {
    fn kept(&self) -> Kept {
        let mut offsets = vec![0];
        for count in &self.counts {
            offsets.push(offsets[offsets.len() - 1] + count);
        }
        let positions = self.positions.as_deref().map(Box::from);
        let positions = positions.map_or_else(OnceLock::new, OnceLock::from);
        Kept { tokens: self.tokens, offsets, positions }
    }

    fn check(&self, sinks: usize) -> Result<()> {
        let total: u64 = self.counts.iter().map(|count| u64::from(*count)).sum();
        let max = u64::from(u32::MAX);
        if total > max {
            return Err(Error::OutOfRange { argument: "counts", got: total, min: 0, max });
        }
        let min = self.tokens.min(sinks as u32);
        for &count in &self.counts {
            at_most("counts", count, self.tokens)?;
            at_most("sinks of a prompt", min, count)?;
        }
        match &self.positions {
            Some(positions) => self.kept().check(positions, sinks),
            None => Ok(()),
        }
    }

    /// Rows that a head holds below the origin; `claimed` where that cannot be known.
    fn below(&self, head: usize, origin: u32, sinks: u32, claimed: u32) -> Result<u32> {
        let count = self.counts[head];
        if origin == self.tokens || count == self.tokens {
            return Ok(count.min(origin));
        }
        let Some(positions) = &self.positions else {
            let (min, max) = (origin.min(sinks).into(), count.min(origin).into());
            let got = u64::from(claimed);
            let fault = Error::OutOfRange { argument: "prompt", got, min, max };
            return if (min..=max).contains(&got) { Ok(claimed) } else { Err(fault) };
        };
        let first = self.counts[..head].iter().map(|count| *count as usize).sum::<usize>();
        let positions = &positions[first..first + count as usize];
        Ok(positions.partition_point(|position| *position < origin) as u32)
    }
}
