//! Attention on the GPU: records into the caller's encoder and never submits, polls or waits.

mod block;
mod merge;
mod packed;
mod paged;
mod paged_packed;
mod paged_raw;
mod plain;
mod raw;
mod rotate;
mod tables;
mod view;

pub use paged::{DevicePagedView, attend_paged};
pub use tables::DeviceTables;
pub use view::{DeviceCacheView, DevicePackedView, DeviceQueries};

use super::config::AttendConfig;
use super::plan::{Plan, QueryShape, Settings};
use crate::error::Result;
use crate::gpu::{Kernel, Recorder, Slice, Variant};
use crate::nsnquant::Hadamard;
use crate::nsnquant::gpu::{hadamard_constants, rope_fours};
use crate::shape::{MAX_HEAD_DIM, check_head_dim};
use block::{PARTIAL_LEAST, Partials};
use rotate::Scales;

/// Workgroups that fill a large device; more splits than it takes for them only cost merging. An H200 has
/// room for some 900 of one query head at a time and for 396 of four, so that these go in one round and in
/// two (benches/RESULTS.md).
const GROUPS: usize = 768;
/// The same for kernels that multiply integers, of two or four queries: four go on a processor of an H200, all
/// in one round; and of one query, of which eight go there.
const BYTES_GROUPS: usize = 512;
const ONE_BYTES_GROUPS: usize = 1024;
/// The same for raw rows, whose workgroups are smaller.
const RAW_GROUPS: usize = 1024;

/// Most splits of a kind: each is one more number that `merge` reads a channel.
const MAX_SPLITS: usize = 256;
/// Invocations of a workgroup that transforms a row.
const HADAMARD_LANES: u32 = 64;

/// Outputs of attention, on the device.
#[derive(Clone, Debug)]
pub struct DeviceAttended {
    /// f32 outputs `[batch, heads, tokens, head_dim_v]`; 0 where a query sees no key.
    pub out: wgpu::Buffer,
    /// f32 natural log of the sum of `exp(logit)`, `[batch, heads, tokens]`;
    /// [`NO_KEY`](super::NO_KEY) where a query sees no key.
    pub lse: wgpu::Buffer,
}

/// The kernels with a variant for each head dimension.
pub fn kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let mut kernels = vec![
        (&paged_raw::COLLECT_KERNEL, vec![Variant::default()]),
        (&rotate::KERNEL, rotate::variants()),
        (&raw::KERNEL, raw::variants()),
        (&packed::KERNEL, packed::variants()),
        (&paged_raw::KERNEL, tables::variants()),
        (&paged_packed::KERNEL, tables::variants()),
        (&packed::ROPE_KERNEL, packed::rope_variants()),
        (&paged_packed::ROPE_KERNEL, paged_packed::rope_variants()),
        (&merge::KERNEL, merge::variants()),
    ];
    kernels.extend(plain_kernels());
    kernels
}

/// Kernels by the queries that they answer together.
type Kernels = [(usize, &'static Kernel); 3];

/// The kernel that answers so many queries together.
fn plain_kernel(kernels: &Kernels, heads: usize) -> &'static Kernel {
    let [one, two, four] = kernels;
    [one, two].into_iter().find(|(own, _)| *own == heads).unwrap_or(four).1
}

fn plain_kernels() -> Vec<(&'static Kernel, Vec<Variant>)> {
    let kernels = [(&packed::PLAIN, &paged_packed::PLAIN), (&packed::BYTES, &paged_packed::BYTES)];
    let of = |((flat, paged), bytes): ((&'static Kernels, &'static Kernels), bool)| {
        let flat = flat
            .iter()
            .map(move |(heads, kernel)| (*kernel, packed::plain_variants(*heads, bytes)));
        let paged = paged
            .iter()
            .map(move |(heads, kernel)| (*kernel, paged_packed::plain_variants(*heads, bytes)));
        flat.chain(paged)
    };
    kernels.into_iter().zip([false, true]).flat_map(of).collect()
}

/// Records the attention of queries over the rows of a cache.
///
/// Offsets and positions are on the device, where nothing checks them: offsets past the tokens that
/// there are end the row there.
///
/// # Errors
/// As [`attend`](super::cpu::attend) for what the host knows: shapes, lengths of slices, settings;
/// [`crate::Error::DeviceLimit`] where a partial result exceeds the device's limits.
pub fn attend(
    rec: &mut Recorder<'_>,
    view: &DeviceCacheView<'_>,
    queries: &DeviceQueries<'_>,
    config: &AttendConfig,
) -> Result<DeviceAttended> {
    view.check(config.causal.is_some())?;
    let dims = [view.head_dim_k, view.head_dim_v];
    let plan = plan(view.kv_rows, dims, queries, config.into())?;
    let attended = outputs(rec, &plan)?;
    let packed_view = view.packed.as_ref().filter(|packed| packed.pages > 0);
    let packed = packed_view.map_or(0, |packed| {
        splits(&plan, packed.pages, packed::workgroups(rec.context(), &plan, packed))
    });
    let raw = match view.raw_tokens {
        0 => 0,
        tokens => splits(&plan, tokens.div_ceil(raw::LANES), RAW_GROUPS),
    };
    let stride = block::stride(&plan, packed > 0);
    let size = |slots: usize| {
        let results = (plan.queries() as u64).saturating_mul(slots as u64);
        results.saturating_mul(4 * stride as u64).max(PARTIAL_LEAST)
    };
    let own = match (raw, packed) {
        (0, slots) | (slots, 0) => vec![slots],
        (raw, packed) => vec![raw, packed],
    };
    let own = own.into_iter().map(size);
    let buffers = own.map(|size| rec.context().create("wgkv attention partials", size));
    let buffers = buffers.collect::<Result<Vec<_>>>()?;
    let queries_of = (0, plan.per_row);
    let partials = |buffer| Partials { buffer, queries: queries_of, stride, slot_base: 0 };
    let parts: Vec<_> = buffers.iter().map(partials).collect();
    let layouts =
        packed_view.map(|packed| [packed.keys, packed.values].map(|codec| codec.layout()));
    let scales = packed_view.and_then(|packed| packed.key_scales).map(Scales::Rows);
    let keys = layouts.map(|[keys, _]| keys);
    let prepared = rotate::record(rec, &plan, queries, None, keys, scales)?;
    if let (1.., Some(partials)) = (raw, parts.first()) {
        raw::record(rec, &plan, view, &prepared, partials, [raw; 2])?;
    }
    if let (Some(view), Some(partials)) = (packed_view, parts.last()) {
        packed::record(rec, &plan, view, &prepared, partials, [packed; 2])?;
    }
    let slots = merge::Slots::Same { raw, packed };
    let values = layouts.map(|[_, values]| values);
    merge::record(rec, &plan, 0..plan.kv_rows, slots, &parts, values, &attended)?;
    Ok(attended)
}

/// Checks queries against rows of a cache.
fn plan(
    kv_rows: usize,
    head_dims: [usize; 2],
    queries: &DeviceQueries<'_>,
    settings: Settings,
) -> Result<Plan> {
    let DeviceQueries { data, dtype, batch, heads, tokens, head_dim } = *queries;
    let shape = QueryShape { batch, heads, tokens, head_dim };
    let expected = batch.saturating_mul(heads).saturating_mul(tokens).saturating_mul(head_dim);
    let elements = (data.size as usize / dtype.bytes()).min(expected);
    let plan = Plan::new(kv_rows, head_dims, shape, elements, settings)?;
    view::check_count("queries", plan.queries())?;
    Ok(plan)
}

fn outputs(rec: &Recorder<'_>, plan: &Plan) -> Result<DeviceAttended> {
    let values = (plan.queries() * plan.head_dim_v) as u64;
    Ok(DeviceAttended {
        out: rec.context().create("wgkv attention out", values * 4)?,
        lse: rec.context().create("wgkv attention lse", plan.queries() as u64 * 4)?,
    })
}

/// Splits of the tokens of each row, given how many tiles all rows have together, into so many
/// workgroups.
fn splits(plan: &Plan, tiles: usize, groups: usize) -> usize {
    let lines = plan.kv_rows * plan.per_row.div_ceil(block::BLOCK);
    groups.div_ceil(lines).min(tiles.div_ceil(plan.kv_rows)).clamp(1, MAX_SPLITS)
}

/// What stands for the positions where attention is not causal and they are not read.
fn positions<'a>(given: Option<Slice<'a>>, unread: Slice<'a>) -> Slice<'a> {
    given.unwrap_or(unread)
}

/// Every head dimension that there is a variant for.
fn head_dims() -> impl Iterator<Item = usize> {
    (8..=MAX_HEAD_DIM).filter(|dim| check_head_dim("head_dim", *dim).is_ok())
}

/// The variant of a stage for keys of a head dimension.
fn head_dim_variant(head_dim: usize) -> Variant {
    Variant { constants: vec![("HEAD_DIM", head_dim as u32)], overrides: Vec::new() }
}

/// Constants of `wgsl/common/attend_rope.wgsl` and of what it needs.
fn rope_constants(hadamard: &Hadamard) -> Vec<(&'static str, u32)> {
    let head_dim = hadamard.dim();
    // What a workgroup of the largest head dimensions has room for.
    let part = if head_dim > 256 { 32 } else { head_dim / 2 };
    let mut constants = hadamard_constants(hadamard, HADAMARD_LANES, 1);
    constants.extend([
        ("HEAD_DIM", head_dim as u32),
        ("ROPE_FOURS", rope_fours(head_dim)),
        ("ROPE_PART", part as u32),
    ]);
    constants
}

/// [`rope_constants`] of head dimensions of every kind, and with signs.
fn rope_constants_of_all() -> impl Iterator<Item = Vec<(&'static str, u32)>> {
    let kinds = [8, 24, 64, 80, 112, 128, 256, 448, 512].map(|dim| (dim, None));
    kinds.into_iter().chain([(64, Some(1))]).filter_map(|(dim, seed)| {
        Hadamard::signed("head_dim", dim, seed).ok().as_ref().map(rope_constants)
    })
}

/// Variants of a stage that transforms one row in workgroups of so many invocations, for each head
/// dimension and with signs.
fn hadamard_variants(lanes: impl Fn(usize) -> u32) -> Vec<Variant> {
    let plain = head_dims().map(|dim| (dim, None));
    let all = plain.chain([(64, Some(1)), (80, Some(1))]);
    all.filter_map(|(dim, seed)| hadamard_variant(lanes(dim), dim, seed).ok()).collect()
}

/// The variant of a stage that transforms one row of a head dimension in a workgroup, with signs from
/// a seed if there is one.
fn hadamard_variant(lanes: u32, head_dim: usize, seed: Option<u32>) -> Result<Variant> {
    let hadamard = Hadamard::signed("head_dim", head_dim, seed)?;
    let mut constants = hadamard_constants(&hadamard, lanes, 1);
    constants.push(("HEAD_DIM", head_dim as u32));
    Ok(Variant { constants, overrides: Vec::new() })
}
