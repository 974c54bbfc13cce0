//! Page tables on the device, and which dispatches read them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::head_dims;
use crate::attention::tables::{UNIT_PAGES, check};
use crate::attention::view::length;
use crate::error::Result;
use crate::gpu::{Context, Slice, Variant};
use crate::layout::pool::{PageClass, PageId, PoolLayout};
use crate::layout::tables::{Tables, Unit, Units};

/// Slabs that a dispatch binds.
pub(super) const SLABS: usize = 4;

/// Marks of a unit that is read in several runs, as in `wgsl/common/attend_paged.wgsl`.
const RESUMES: u32 = 1 << 31;
const CONTINUES: u32 = 1 << 30;

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
    /// Place among the units that keep their state between runs, and how it is used.
    spill: u32,
}

/// Items that are read by one dispatch, in the order of their rows.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    items: Range<usize>,
    /// Numbers of the slabs that their pages lie in.
    pub(super) slabs: Vec<u32>,
    /// Whether some items are a part of their unit.
    pub(super) spills: bool,
}

/// The units of one class.
#[derive(Debug, Default)]
pub(super) struct ClassLists {
    /// Where items and pages lie in the lists, in words.
    items_at: u32,
    pub(super) pages_at: u32,
    pub(super) launches: Vec<Launch>,
    /// Row of each item.
    rows: Vec<u32>,
    /// Units that keep their state, before each row and in all; empty where none does.
    kept: Vec<u32>,
}

/// What changes with the page tables alone.
#[derive(Debug)]
struct Lists {
    buffer: wgpu::Buffer,
    members: usize,
    classes: [ClassLists; 3],
    slots_at: u32,
    /// First slot of each row, and the number of all.
    slots: Vec<u32>,
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
        let mut classes: [ClassLists; 3] = Default::default();
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
            let (items, mut lists) =
                cut(layout, class, &units.units[index], pages, before, tables.rows());
            lists.items_at = words.len() as u32;
            words.extend_from_slice(bytemuck::cast_slice(&items));
            lists.pages_at = words.len() as u32;
            words.extend_from_slice(bytemuck::cast_slice(pages));
            classes[index] = lists;
        }
        let slots_at = words.len() as u32;
        words.extend(slots(tables, &units).into_iter().flatten());
        crate::shape::check_count("words of the page tables", &[words.len()])?;
        let buffer = context.upload("wgkv page tables", bytemuck::cast_slice(&words))?;
        let members = tables.next.len();
        let lists = Lists { buffer, members, classes, slots_at, slots: units.offsets };
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

    pub(super) fn class(&self, class: PageClass) -> &ClassLists {
        &self.lists.classes[class.index()]
    }

    /// Where the slots of each row are listed.
    pub(super) fn slots_at(&self) -> u32 {
        self.lists.slots_at
    }

    /// First slot of each row, and the number of all.
    pub(super) fn slots(&self) -> &[u32] {
        &self.lists.slots
    }
}

impl ClassLists {
    /// Where the items of a launch that belong to some rows lie in the lists, and how many.
    pub(super) fn items(&self, launch: &Launch, rows: &Range<usize>) -> (u32, u32) {
        let own = &self.rows[launch.items.clone()];
        let [first, end] =
            [rows.start, rows.end].map(|row| own.partition_point(|item| (*item as usize) < row));
        let words = size_of::<Item>() / 4 * (launch.items.start + first);
        (self.items_at + words as u32, (end - first) as u32)
    }

    /// Units before a row that keep their state.
    pub(super) fn kept(&self, row: usize) -> u32 {
        self.kept.get(row).copied().unwrap_or(0)
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

/// Cuts the units of a class into items by the slabs that their pages lie in, and these into
/// dispatches. With no more slabs than one dispatch binds, an item is a unit and one dispatch reads
/// them all. With more, slabs go in groups; the pages of a unit are read in their order, as many at
/// a time as follow each other in one group.
fn cut(
    layout: &PoolLayout,
    class: PageClass,
    units: &[Unit],
    pages: &[PageId],
    before: impl Fn(&Unit) -> u32,
    rows: usize,
) -> (Vec<Item>, ClassLists) {
    let slab = |page: &PageId| layout.slab_of(class, *page);
    let of = |unit: &Unit| &pages[unit.first as usize..(unit.first + unit.pages) as usize];
    let slabs: BTreeSet<u32> = units.iter().flat_map(|unit| of(unit).iter().map(slab)).collect();
    let slabs: Vec<u32> = slabs.into_iter().collect();
    let item = |unit: &Unit, skip: usize, pages: usize, spill| Item {
        row: unit.row,
        first: unit.first + skip as u32,
        pages: pages as u32,
        before: before(unit) + skip as u32 * layout.chunk() as u32,
        slot: unit.slot,
        spill,
    };
    let mut lists = ClassLists::default();
    let mut items: Vec<Item> = Vec::with_capacity(units.len());
    if slabs.len() <= SLABS {
        items.extend(units.iter().map(|unit| item(unit, 0, unit.pages as usize, 0)));
        if !items.is_empty() {
            lists.launches.push(Launch { items: 0..items.len(), slabs, spills: false });
        }
    } else {
        let group = |page: &PageId| slabs.partition_point(|s| *s < slab(page)) / SLABS;
        // By the number of the run within its unit, then by group.
        let mut runs: BTreeMap<(usize, usize), Vec<Item>> = BTreeMap::new();
        lists.kept = vec![0; rows + 1];
        let mut kept = 0;
        for unit in units {
            let mut skip = 0;
            let parts: Vec<&[PageId]> = of(unit).chunk_by(|a, b| group(a) == group(b)).collect();
            for (number, part) in parts.iter().enumerate() {
                let spill = match (number > 0, number + 1 < parts.len()) {
                    (false, false) => 0,
                    (resumes, continues) => {
                        let mark = |is, mark| if is { mark } else { 0 };
                        kept | mark(resumes, RESUMES) | mark(continues, CONTINUES)
                    }
                };
                let key = (number, group(&part[0]));
                runs.entry(key).or_default().push(item(unit, skip, part.len(), spill));
                skip += part.len();
            }
            if parts.len() > 1 {
                kept += 1;
                lists.kept[unit.row as usize + 1] += 1;
            }
        }
        for row in 0..rows {
            lists.kept[row + 1] += lists.kept[row];
        }
        for ((_, group), run) in runs {
            let slabs = slabs.chunks(SLABS).nth(group).unwrap_or(&[]).to_vec();
            let first = items.len();
            items.extend(run);
            lists.launches.push(Launch { items: first..items.len(), slabs, spills: true });
        }
    }
    lists.rows = items.iter().map(|item| item.row).collect();
    (items, lists)
}

/// Variants of the kernels that read pages: one slab, a few, and more than are bound at once.
pub(super) fn variants() -> Vec<Variant> {
    let kinds = [(1, false), (SLABS, false), (SLABS, true)];
    head_dims().flat_map(|dim| kinds.map(|(slabs, spills)| variant(dim, slabs, spills))).collect()
}

/// The variant for keys of a head dimension and so many slabs.
pub(super) fn variant(head_dim: usize, slabs: usize, spills: bool) -> Variant {
    let slabs = if slabs > 1 || spills { SLABS } else { 1 };
    Variant {
        constants: vec![
            ("HEAD_DIM", head_dim as u32),
            ("SLABS", slabs as u32),
            ("SPILL", u32::from(spills)),
        ],
        overrides: Vec::new(),
    }
}
