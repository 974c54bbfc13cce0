//! Page tables on the device, and which dispatches read them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::block::PARTS;
use super::head_dims;
use crate::attention::tables::{UNIT_PAGES, check};
use crate::attention::view::length;
use crate::error::Result;
use crate::gpu::{Context, Slice, Variant, binding_limit};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::layout::tables::{Tables, Unit, Units};

/// Slabs that a dispatch binds.
pub(super) const SLABS: usize = 4;

/// Most bytes of pages that are collected for one dispatch; at least those of a unit.
const COLLECTED_BYTES: u64 = 1 << 25;
/// How `merge` takes the place of a slot apart: its part from this bit on, and its number there.
const PART_SHIFT: u32 = 29;
const PART_MASK: u32 = (1 << PART_SHIFT) - 1;
/// A page that is beyond every slab.
const NOWHERE: u32 = u32::MAX >> 1;

/// A unit as kernels read it: some pages of one row.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Item {
    row: u32,
    first: u32,
    pages: u32,
    /// Rows of the class before these pages.
    before: u32,
    slot: u32,
}

/// Pages that are copied by one dispatch, to lie side by side with others.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    /// Numbers of the slabs that they lie in.
    pub(super) slabs: Vec<u32>,
    /// Where they are listed, in words, and how many they are.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Where the pages of a dispatch lie.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// In slabs of these numbers, no more than are bound.
    Slabs(Vec<u32>),
    /// In more slabs than are bound: so many are copied to one place first.
    Collected { pages: u32, copies: Vec<Copies> },
}

/// Units of a class that are read by one dispatch, in the order of their rows.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) class: PageClass,
    pub(super) source: Source,
    /// Which buffer takes the partial results.
    pub(super) part: usize,
    /// Where its units and the pages of the class lie in the lists, in words.
    items_at: u32,
    pub(super) pages_at: u32,
    /// Row of each unit.
    rows: Vec<u32>,
}

/// What changes with the page tables alone.
#[derive(Debug)]
struct Lists {
    buffer: wgpu::Buffer,
    members: usize,
    launches: Vec<Launch>,
    slots_at: u32,
    places_at: u32,
    sinks_at: u32,
    scale_slab: Option<u32>,
    /// First slot of each row, and the number of all.
    slots: Vec<u32>,
    /// The slots of each buffer.
    parts: Vec<Vec<u32>>,
}

/// Page tables of one layer of a batch on the device. Layers whose tables are equal share one.
///
/// There are two parts: lists of pages and units, which change with the tables, and counts of rows
/// and next positions, which change with every token ([`DeviceTables::recounted`]). Cloning shares
/// both.
#[derive(Clone, Debug)]
pub struct DeviceTables {
    lists: Arc<Lists>,
    counts: wgpu::Buffer,
    next: Arc<[u32]>,
}

impl DeviceTables {
    /// Uploads tables of pages of a layout.
    ///
    /// That the pages lie in slabs is not checked here: pages beyond their slab are left out by the
    /// kernels, and slabs that are not there are refused by the attention.
    ///
    /// # Errors
    /// [`crate::Error::Empty`], [`crate::Error::Length`], [`crate::Error::Mismatch`],
    /// [`crate::Error::Offsets`] and [`crate::Error::OutOfRange`] where the lists do not belong
    /// together; [`crate::Error::DeviceLimit`] where they exceed the largest binding.
    pub fn new(context: &Context, layout: &PoolLayout, tables: &Tables) -> Result<Self> {
        check(tables, layout)?;
        let units = tables.units(UNIT_PAGES)?;
        let mut words = Vec::new();
        let pages = [&tables.sinks, &tables.packed, &tables.tail];
        let mut cuts = Vec::new();
        let mut sinks_at = 0;
        for class in PageClass::ALL {
            let (index, pages) = (class.index(), pages[class.index()]);
            let starts = match class {
                PageClass::Sink => None,
                PageClass::Packed => Some(tables.packed_offsets.as_slice()),
                PageClass::Raw => Some(tables.tail_offsets.as_slice()),
            };
            let before = |unit: &Unit| match starts {
                None => 0,
                Some(starts) => (unit.first - starts[unit.row as usize]) * tables.chunk,
            };
            let limit = binding_limit(&context.device().limits()).min(COLLECTED_BYTES);
            let units = &units.units[index];
            let (cut, extra) = cut(layout, class, units, pages, before, limit);
            let pages_at = words.len() as u32;
            if class == PageClass::Sink {
                sinks_at = pages_at;
            }
            words.extend_from_slice(bytemuck::cast_slice(pages));
            words.extend(extra.pages);
            let copies_at = words.len() as u32;
            words.extend(extra.copies);
            for (items, mut source) in cut {
                if let Source::Collected { copies, .. } = &mut source {
                    copies.iter_mut().for_each(|copies| copies.first += copies_at);
                }
                cuts.push((class, pages_at, items, source));
            }
        }
        // Those that wait for copies first, as others would wait with them; then those of few units,
        // which leave room for others, but no time after them.
        let copied = |source: &Source| matches!(source, Source::Collected { .. });
        cuts.sort_by_key(|(_, _, items, source)| (!copied(source), items.len()));
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); cuts.len().clamp(1, PARTS)];
        for (index, (_, _, items, _)) in cuts.iter().enumerate() {
            parts[index % PARTS].extend(items.iter().map(|item| item.slot));
        }
        let mut places = vec![0; units.offsets.last().map_or(0, |slots| *slots as usize)];
        for (part, slots) in parts.iter_mut().enumerate() {
            slots.sort_unstable();
            for (number, slot) in slots.iter().enumerate() {
                places[*slot as usize] = (part as u32) << PART_SHIFT | number as u32;
            }
        }
        let mut launches = Vec::with_capacity(cuts.len());
        for (index, (class, pages_at, mut items, source)) in cuts.into_iter().enumerate() {
            for item in &mut items {
                item.slot = places[item.slot as usize] & PART_MASK;
            }
            let items_at = words.len() as u32;
            words.extend_from_slice(bytemuck::cast_slice(&items));
            let rows = items.iter().map(|item| item.row).collect();
            launches.push(Launch { class, source, part: index % PARTS, items_at, pages_at, rows });
        }
        let places_at = words.len() as u32;
        words.extend(places);
        let slots_at = words.len() as u32;
        words.extend(slots(tables, &units).into_iter().flatten());
        crate::shape::check_count("words of the page tables", &[words.len()])?;
        let buffer = context.upload("wgkv page tables", bytemuck::cast_slice(&words))?;
        let members = tables.next.len();
        let slots = units.offsets;
        let scale_slab = scale_slab(layout, tables);
        let lists = Lists {
            buffer,
            members,
            launches,
            slots_at,
            places_at,
            sinks_at,
            scale_slab,
            slots,
            parts,
        };
        let lists = Arc::new(lists);
        let (counts, next) = counts(context, &tables.next, &tables.sink_rows, &tables.tail_rows)?;
        Ok(Self { lists, counts, next })
    }

    /// The same tables after tokens were added that needed no page: only the next positions
    /// `[members]` and the rows of sink pages and tails `[rows]` are uploaded.
    ///
    /// That the pages are the same is for the caller to know; rows beyond them are left out.
    ///
    /// # Errors
    /// [`crate::Error::Length`] for lists of other lengths.
    pub fn recounted(
        &self,
        context: &Context,
        next: &[u32],
        sink_rows: &[u32],
        tail_rows: &[u32],
    ) -> Result<Self> {
        length("next", next.len(), self.members())?;
        length("sink_rows", sink_rows.len(), self.rows())?;
        length("tail_rows", tail_rows.len(), self.rows())?;
        let (counts, next) = counts(context, next, sink_rows, tail_rows)?;
        Ok(Self { lists: self.lists.clone(), counts, next })
    }

    /// Sequences of the batch.
    pub fn members(&self) -> usize {
        self.lists.members
    }

    /// KV heads of all members.
    pub fn rows(&self) -> usize {
        self.lists.slots.len() - 1
    }

    /// Next position of each member.
    pub fn next(&self) -> &[u32] {
        &self.next
    }

    /// Bytes on the device: those of the page lists and those of the counts.
    pub fn bytes(&self) -> (u64, u64) {
        (self.lists.buffer.size(), self.counts.size())
    }

    pub(super) fn lists(&self) -> Slice<'_> {
        Slice::all(&self.lists.buffer)
    }

    pub(super) fn counts(&self) -> Slice<'_> {
        Slice::all(&self.counts)
    }

    /// Where the counts of a class of raw rows start.
    pub(super) fn counts_at(&self, class: PageClass) -> u32 {
        let after = if class == PageClass::Sink { 0 } else { self.rows() };
        (self.members() + after) as u32
    }

    /// Dispatches in the order of their recording.
    pub(super) fn launches(&self) -> &[Launch] {
        &self.lists.launches
    }

    /// Where the slots of each row are listed.
    pub(super) fn slots_at(&self) -> u32 {
        self.lists.slots_at
    }

    /// First slot of each row, and the number of all.
    pub(super) fn slots(&self) -> &[u32] {
        &self.lists.slots
    }

    /// Where it is listed which buffer each slot lies in, and where there.
    pub(super) fn places_at(&self) -> u32 {
        self.lists.places_at
    }

    /// Where the sink page of each row is listed.
    pub(super) fn sinks_at(&self) -> u32 {
        self.lists.sinks_at
    }

    /// The slab of the sink pages that hold the key scales of packed pages, if all lie in one.
    pub(crate) fn scale_slab(&self) -> Option<u32> {
        self.lists.scale_slab
    }

    /// The slots of some rows in each buffer, of which there is at least one.
    pub(super) fn parts(&self, rows: &Range<usize>) -> Vec<Range<u32>> {
        let [first, end] = [rows.start, rows.end].map(|row| self.lists.slots[row]);
        let before = |slots: &[u32], end| slots.partition_point(|slot| *slot < end) as u32;
        self.lists.parts.iter().map(|slots| before(slots, first)..before(slots, end)).collect()
    }
}

impl Launch {
    /// Where the units that belong to some rows lie in the lists, and how many they are.
    pub(super) fn items(&self, rows: &Range<usize>) -> (u32, u32) {
        let [first, end] = [rows.start, rows.end]
            .map(|row| self.rows.partition_point(|item| (*item as usize) < row));
        let words = size_of::<Item>() / 4 * first;
        (self.items_at + words as u32, (end - first) as u32)
    }
}

/// Uploads next positions, rows of sinks and rows of tails, one after the other.
fn counts(
    context: &Context,
    next: &[u32],
    sink_rows: &[u32],
    tail_rows: &[u32],
) -> Result<(wgpu::Buffer, Arc<[u32]>)> {
    let words = [next, sink_rows, tail_rows].concat();
    let buffer = context.upload("wgkv row counts", bytemuck::cast_slice(&words))?;
    Ok((buffer, next.into()))
}

/// The slab of the sink pages of rows with packed pages, where these are under key scales and that is
/// one slab.
fn scale_slab(layout: &PoolLayout, tables: &Tables) -> Option<u32> {
    let packed = tables.packed_offsets.windows(2).map(|pair| pair[1] > pair[0]);
    let rows = packed.zip(&tables.sinks).filter(|(packed, _)| *packed && layout.key_scale());
    let mut slabs = rows.map(|(_, page)| layout.slab_of(PageClass::Sink, *page));
    let first = slabs.next()?;
    slabs.all(|slab| slab == first).then_some(first)
}

/// Begin, first and end of the packed ones, and end of the slots of each row.
fn slots(tables: &Tables, units: &Units) -> Vec<[u32; 4]> {
    let rows = units.offsets.windows(2).enumerate();
    rows.map(|(row, slots)| {
        let packed = tables.packed_offsets[row + 1] - tables.packed_offsets[row];
        let first = slots[0] + u32::from(tables.sink_rows[row] > 0);
        [slots[0], first, first + packed.div_ceil(UNIT_PAGES), slots[1]]
    })
    .collect()
}

/// Units of packed pages of one slab that make a dispatch of their own worth it, however many slabs
/// there are.
const MANY: usize = 64;
/// Slabs of packed pages that have a dispatch of their own if at least `SOME` units lie in them: with
/// other packed pages, sinks and tails, as many dispatches as need not wait for each other.
const OWN: usize = PARTS - 3;
const SOME: usize = 8;
/// What is copied of packed pages instead of being read where it lies, as a part of what the pages
/// would take as f16.
const COPIED: u64 = 256;

/// What the lists of a class hold beside its items and pages.
#[derive(Debug, Default)]
struct Extra {
    /// Pages by their places among those that are collected together, in the order of the units.
    pages: Vec<u32>,
    /// Pages to be copied, and where to.
    copies: Vec<u32>,
}

/// Cuts the units of a class into dispatches by the slabs that their pages lie in. Packed units that lie
/// in one slab are read by a dispatch of that slab's own, which need not ask where each word lies, unless
/// they are few; the pages of the others are collected first where that does not take much. Where it
/// does, and of raw pages, of which it is asked but once a page, slabs go in groups of as many as a
/// dispatch binds, and a unit is read by the dispatch of its group; the pages of units that lie in several
/// groups are collected, of as many units at a time as take `limit` bytes.
fn cut(
    layout: &PoolLayout,
    class: PageClass,
    units: &[Unit],
    pages: &[PageId],
    before: impl Fn(&Unit) -> u32,
    limit: u64,
) -> (Vec<(Vec<Item>, Source)>, Extra) {
    let slab = |page: &PageId| layout.slab_of(class, *page);
    let of = |unit: &Unit| &pages[unit.first as usize..(unit.first + unit.pages) as usize];
    let slabs: BTreeSet<u32> = units.iter().flat_map(|unit| of(unit).iter().map(slab)).collect();
    let slabs: Vec<u32> = slabs.into_iter().collect();
    let item = |unit: &Unit, first: u32| Item {
        row: unit.row,
        first,
        pages: unit.pages,
        before: before(unit),
        slot: unit.slot,
    };
    let mut extra = Extra::default();
    let mut dispatches: Vec<(Vec<Item>, Source)> = Vec::new();
    let group = |page: &PageId| slabs.partition_point(|s| *s < slab(page)) / SLABS;
    let numbers = |group: usize| slabs.chunks(SLABS).nth(group).unwrap_or(&[]).to_vec();
    let alone = |unit: &Unit| {
        let first = of(unit).first().map(slab)?;
        of(unit).iter().all(|page| slab(page) == first).then_some(first)
    };
    let mut by_slab: BTreeMap<u32, usize> = BTreeMap::new();
    let packed = class == PageClass::Packed;
    for slab in units.iter().filter_map(alone).filter(|_| packed) {
        *by_slab.entry(slab).or_default() += 1;
    }
    let mut by_slab: Vec<(u32, usize)> = by_slab.into_iter().collect();
    by_slab.sort_by_key(|(_, units)| Reverse(*units));
    let enough = by_slab.iter().zip(0..).filter(|((_, units), place)| {
        let least = if *place < OWN { SOME } else { MANY };
        *units >= least
    });
    let own: BTreeSet<u32> = enough.map(|((slab, _), _)| *slab).collect();
    let own = |unit: &Unit| alone(unit).filter(|slab| own.contains(slab));
    let others = units.iter().filter(|unit| own(unit).is_none()).map(|unit| u64::from(unit.pages));
    let [dim_k, dim_v] = layout.head_dims();
    let room = (pages.len() * 2 * layout.chunk() * (dim_k + dim_v)) as u64 / COPIED;
    let copied = packed && others.sum::<u64>() * layout.bytes(class) <= room;
    let mut within: BTreeMap<Vec<u32>, Vec<Item>> = BTreeMap::new();
    let mut across: Vec<&Unit> = Vec::new();
    for unit in units {
        let first = of(unit).first().map_or(0, group);
        let bound = match own(unit) {
            Some(slab) => vec![slab],
            None if !copied && of(unit).iter().all(|page| group(page) == first) => numbers(first),
            None => {
                across.push(unit);
                continue;
            }
        };
        within.entry(bound).or_default().push(item(unit, unit.first));
    }
    dispatches.extend(within.into_iter().map(|(bound, items)| (items, Source::Slabs(bound))));
    let most = (limit / layout.bytes(class).max(1)).min(u64::from(NOWHERE)) as usize;
    let mut rest = across.as_slice();
    while !rest.is_empty() {
        let mut count = 0;
        let fits = |unit: &&&Unit| {
            count += unit.pages as usize;
            count <= most
        };
        let taken = rest.iter().take_while(fits).count().max(1);
        let (batch, others) = rest.split_at(taken);
        rest = others;
        let mut items = Vec::with_capacity(batch.len());
        let mut by_group: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut number = 0;
        for unit in batch {
            items.push(item(unit, (pages.len() + extra.pages.len()) as u32));
            for page in of(unit) {
                let there = layout.index_of(class, *page) < layout.pages_per_slab(class);
                extra.pages.push(if there { number } else { NOWHERE });
                by_group.entry(group(page)).or_default().extend([page.get(), number]);
                number += 1;
            }
        }
        let mut copies = Vec::with_capacity(by_group.len());
        for (group, list) in by_group {
            let first = extra.copies.len() as u32;
            let count = (list.len() / 2) as u32;
            copies.push(Copies { slabs: numbers(group), first, count });
            extra.copies.extend(list);
        }
        dispatches.push((items, Source::Collected { pages: number, copies }));
    }
    dispatches.retain(|(items, _)| !items.is_empty());
    (dispatches, extra)
}

/// Variants of the kernels that read pages: one slab and a few.
pub(super) fn variants() -> Vec<Variant> {
    head_dims().flat_map(|dim| [1, SLABS].map(|slabs| variant(dim, slabs))).collect()
}

/// Slabs that a kernel is built for, which reads so many.
pub(super) const fn bound(slabs: usize) -> u32 {
    if slabs > 1 { SLABS as u32 } else { 1 }
}

/// The variant for keys of a head dimension and so many slabs.
pub(super) fn variant(head_dim: usize, slabs: usize) -> Variant {
    Variant {
        constants: vec![("HEAD_DIM", head_dim as u32), ("SLABS", bound(slabs))],
        overrides: Vec::new(),
    }
}
