//! Attention over page tables.

use std::ops::Range;

use super::block::{BLOCK, PARTIAL_LEAST, Partials, stride};
use super::rotate::{DeviceFirsts, Prepared, Scales};
use super::tables::{DeviceTables, Launch, SLABS, Source};
use super::view::holds;
use super::{DeviceAttended, DeviceQueries, merge, outputs, paged_packed, paged_raw, plan, rotate};
use crate::attention::config::{Causal, PagedAttend};
use crate::attention::params::PagedParams;
use crate::attention::plan::{Plan, Settings};
use crate::error::{Error, Result};
use crate::gpu::{Recorder, Slice, binding_limit};
use crate::layout::pool::{PageClass, PoolLayout};
use crate::nsnquant::gpu::{DeviceCodebook, DeviceCodec};
use crate::shape::Dtype;

/// Most bytes of partial results at a time: where a batch makes more, it is answered row after row
/// in several rounds, which changes no bit.
const PARTIAL_BYTES: u64 = 1 << 28;
/// Invocations of a workgroup that reads pages, and tokens of a tile.
pub(super) const LANES: usize = 64;

/// Rows of one layer of a batch, in the pages of a pool on the device.
#[derive(Clone, Copy, Debug)]
pub struct DevicePagedView<'a> {
    /// How pages lie in slabs.
    pub layout: &'a PoolLayout,
    /// Type of raw elements, f16 or bf16.
    pub raw: Dtype,
    /// The codebook; needed where there are packed pages.
    pub codebook: Option<&'a DeviceCodebook>,
    /// How keys are packed; needed where that takes off a rotary embedding.
    pub keys: Option<&'a DeviceCodec>,
    /// Which pages the rows lie in.
    pub tables: &'a DeviceTables,
    /// The slabs of the layer by class ([`PageClass::index`]) and by number.
    pub slabs: [&'a [Option<wgpu::Buffer>]; 3],
    /// f16, the key scale that the packed pages of each row are under, `[rows, head_dim_k]`, if any;
    /// that of a row without such pages is of no account. Scales that lie in sink pages of one slab are
    /// found there without it.
    pub key_scales: Option<Slice<'a>>,
}

/// One dispatch over the units of a class.
pub(super) struct Units<'a> {
    pub(super) params: PagedParams,
    pub(super) slabs: [Slice<'a>; SLABS],
    /// Slabs that differ.
    pub(super) count: usize,
    pub(super) prepared: &'a Prepared,
}

/// Records the attention of queries over the rows of a batch: the answers of a member are the same
/// bits whatever else is in the batch and wherever its pages lie. Queries are
/// `[members, heads, tokens, head_dim]`.
///
/// There are at most five dispatches (queries, sinks, packed pages, tails, merging), and more only
/// where packed pages lie in several slabs, the rows of a class in more than four, or partial results
/// take more than 256 MiB. Up to five between queries and merging do not wait for each other.
///
/// # Errors
/// As [`attend_paged`](crate::attention::cpu::attend_paged) for shapes and settings;
/// [`Error::Offsets`] for pages of a slab that is not there; [`Error::Length`] for a slab that is
/// too short; [`Error::DeviceLimit`] where the partial results of one row and four queries exceed
/// the largest binding.
pub fn attend_paged(
    rec: &mut Recorder<'_>,
    view: &DevicePagedView<'_>,
    queries: &DeviceQueries<'_>,
    config: &PagedAttend<'_>,
) -> Result<DeviceAttended> {
    let tables = view.tables;
    let settings = Settings::paged(config, tables.next(), queries.tokens)?;
    if queries.batch != tables.members() {
        let (got, expected) = (queries.batch, tables.members());
        let reference = "the members of the page tables";
        return Err(Error::Mismatch { argument: "batch", got, expected, reference });
    }
    if view.raw == Dtype::F32 {
        let (got, expected) = (view.raw.name(), Dtype::F16.name());
        return Err(Error::Dtype { argument: "raw", got, expected });
    }
    let plan = plan(tables.rows(), view.layout.head_dims(), queries, settings)?;
    let packed = tables.launches().iter().any(|launch| launch.class == PageClass::Packed);
    let book = match (packed, view.codebook, view.layout.packed()) {
        (true, Some(book), Some(_)) => Some(book),
        (true, ..) => return Err(Error::Empty { argument: "codebook" }),
        (false, ..) => None,
    };
    if let (Some(keys), Some([layout, _])) = (view.keys, view.layout.packed())
        && keys.layout() != layout
    {
        return Err(Error::Codec { argument: "key codec", expected: "that of the pages" });
    }
    for launch in tables.launches() {
        match &launch.source {
            Source::Slabs(numbers) => {
                slabs(view, launch.class, numbers)?;
            }
            Source::Collected { copies, .. } => {
                for copies in copies {
                    slabs(view, launch.class, &copies.slabs)?;
                }
            }
        }
    }
    let rounds = Rounds::new(rec, &plan, tables, stride(&plan, packed))?;
    let attended = outputs(rec, &plan)?;
    let own;
    let firsts = match config.causal {
        Causal::All => None,
        Causal::Newest => {
            let plus = 0u32.wrapping_sub(plan.tokens as u32);
            Some(DeviceFirsts { numbers: tables.counts(), plus })
        }
        Causal::From(firsts) => {
            own = rec.context().upload("wgkv query positions", bytemuck::cast_slice(firsts))?;
            Some(DeviceFirsts { numbers: Slice::all(&own), plus: 0 })
        }
    };
    let layouts = view.layout.packed().filter(|_| packed);
    let scales = match (view.key_scales, tables.scale_slab().filter(|_| packed)) {
        (Some(scales), _) if packed => {
            let [dim, _] = view.layout.head_dims();
            holds("key_scales", scales, 2, tables.rows().saturating_mul(dim))?;
            Some(Scales::Rows(scales))
        }
        (None, Some(number)) => {
            let ([slab, ..], _) = slabs(view, PageClass::Sink, &[number])?;
            let (slab, lists, at) = ((number, slab), tables.lists(), tables.sinks_at());
            Some(Scales::Sinks { layout: view.layout, slab, lists, at })
        }
        _ => None,
    };
    let keys = layouts.map(|[keys, _]| keys);
    let prepared = rotate::record(rec, &plan, queries, firsts, keys, scales)?;
    let buffers = rounds.buffers(rec, tables)?;
    for first in (0..plan.per_row).step_by(rounds.span) {
        for rows in &rounds.rows {
            let parts = buffers.iter().zip(tables.parts(rows)).map(|(buffer, slots)| Partials {
                buffer,
                queries: (first, plan.per_row.min(first + rounds.span)),
                stride: rounds.stride,
                slot_base: slots.start,
            });
            let parts: Vec<_> = parts.collect();
            let own = tables.launches().iter().map(|launch| (launch, launch.items(rows)));
            let own: Vec<_> = own.filter(|(_, (_, units))| *units > 0).collect();
            // All copies before all that wait for them.
            let mut collected = Vec::with_capacity(own.len());
            for (launch, _) in &own {
                collected.push(collect(rec, view, launch)?);
            }
            for ((launch, (units_at, units)), collected) in own.into_iter().zip(&collected) {
                let (slabs, params, count) = match (&launch.source, collected) {
                    (Source::Collected { pages, .. }, Some(collected)) => {
                        let params = PagedParams {
                            shift: u32::BITS - 1,
                            mask: u32::MAX >> 1,
                            pages: *pages,
                            ..PagedParams::default()
                        };
                        ([Slice::all(collected); SLABS], params, 1)
                    }
                    (Source::Slabs(numbers), _) => {
                        let (slabs, params) = slabs(view, launch.class, numbers)?;
                        (slabs, params, numbers.len())
                    }
                    _ => continue,
                };
                let params = PagedParams { units, units_at, pages_at: launch.pages_at, ..params };
                let units = Units { params, slabs, count, prepared: &prepared };
                let partials = &parts[launch.part];
                match (launch.class, book) {
                    (PageClass::Packed, Some(book)) => {
                        paged_packed::record(rec, &plan, view, book, &units, partials)?;
                    }
                    (class, _) => paged_raw::record(rec, &plan, view, class, &units, partials)?,
                }
            }
            let (at, places_at) = (tables.slots_at(), tables.places_at());
            let slots = merge::Slots::Listed { lists: tables.lists(), at, places_at };
            let values = layouts.map(|[_, values]| values);
            merge::record(rec, &plan, rows.clone(), slots, &parts, values, &attended)?;
        }
    }
    Ok(attended)
}

/// Records the copying of the pages of a launch that lie in more slabs than are bound to a buffer of
/// their own, if they do.
fn collect(
    rec: &mut Recorder<'_>,
    view: &DevicePagedView<'_>,
    launch: &Launch,
) -> Result<Option<wgpu::Buffer>> {
    let Source::Collected { pages, copies } = &launch.source else { return Ok(None) };
    let class = launch.class;
    let bytes = u64::from(*pages).saturating_mul(view.layout.bytes(class));
    let collected = rec.context().create("wgkv attention pages", bytes)?;
    for copies in copies {
        let bound = slabs(view, class, &copies.slabs)?;
        let lists = view.tables.lists();
        paged_raw::collect(rec, view.layout, class, lists, copies, bound, &collected)?;
    }
    Ok(Some(collected))
}

/// The slabs of a dispatch, one bound several times where they are fewer, and what kernels are told
/// of them and of their pages.
fn slabs<'a>(
    view: &DevicePagedView<'a>,
    class: PageClass,
    wanted: &[u32],
) -> Result<([Slice<'a>; SLABS], PagedParams)> {
    let layout = view.layout;
    let mut numbers = [wanted.first().copied().unwrap_or(0); SLABS];
    numbers[..wanted.len()].copy_from_slice(wanted);
    let find = |number: u32| {
        let slab = view.slabs[class.index()].get(number as usize).and_then(Option::as_ref);
        let fault = Error::Offsets {
            argument: "slabs",
            index: class.index(),
            got: u64::from(number),
            expected: "the number of a slab that there is",
        };
        let slab = slab.ok_or(fault)?;
        let (got, expected) = (slab.size() as usize, layout.slab_bytes(class) as usize);
        if got < expected {
            return Err(Error::Length { argument: "slab", got, expected });
        }
        Ok(Slice { buffer: slab, offset: 0, size: expected as u64 })
    };
    let [a, b, c, d] = numbers;
    let slabs = [find(a)?, find(b)?, find(c)?, find(d)?];
    let params = PagedParams {
        shift: layout.shift(class),
        mask: (1 << layout.shift(class)) - 1,
        pages: layout.pages_per_slab(class),
        slab_0: a,
        slab_1: b,
        slab_2: c,
        slab_3: d,
        ..PagedParams::default()
    };
    Ok((slabs, params))
}

/// How a batch is cut so that its partial results fit one buffer; there may be several.
struct Rounds {
    /// Queries of a row that are answered at a time, a multiple of a block or all.
    span: usize,
    rows: Vec<Range<usize>>,
    stride: usize,
}

impl Rounds {
    fn new(rec: &Recorder<'_>, plan: &Plan, tables: &DeviceTables, stride: usize) -> Result<Self> {
        let limit = binding_limit(&rec.context().device().limits()).min(PARTIAL_BYTES);
        let slots = tables.slots();
        let bytes = |rows: Range<usize>, span: usize| {
            let slots = u64::from(slots[rows.end] - slots[rows.start]);
            slots.saturating_mul(4 * (span * stride) as u64)
        };
        let mut span = plan.per_row;
        let largest = |span| (0..plan.kv_rows).map(|row| bytes(row..row + 1, span)).max();
        let largest = |span| largest(span).unwrap_or(0);
        while span > BLOCK && largest(span) > limit {
            span = (span / 2).next_multiple_of(BLOCK);
        }
        let needed = largest(span);
        if needed > limit {
            let (argument, allowed) = ("partial results of a row", limit);
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::DeviceLimit { argument, limit, needed, allowed });
        }
        let mut rounds = Self { span, rows: Vec::new(), stride };
        let mut first = 0;
        for row in 0..plan.kv_rows {
            if bytes(first..row + 1, span) > limit {
                rounds.rows.push(first..row);
                first = row;
            }
        }
        rounds.rows.push(first..plan.kv_rows);
        Ok(rounds)
    }

    /// Buffers for the partial results of any round.
    fn buffers(&self, rec: &Recorder<'_>, tables: &DeviceTables) -> Result<Vec<wgpu::Buffer>> {
        let mut slots = Vec::new();
        for rows in &self.rows {
            let parts = tables.parts(rows);
            slots.resize(parts.len(), 0);
            for (most, part) in slots.iter_mut().zip(parts) {
                *most = part.len().max(*most);
            }
        }
        let bytes = |slots: usize| (4 * self.span * self.stride) as u64 * slots as u64;
        let bytes = |slots: usize| bytes(slots).max(PARTIAL_LEAST);
        let create = |slots| rec.context().create("wgkv attention partials", bytes(slots));
        slots.into_iter().map(create).collect()
    }
}
