//! Attention on the GPU: records into the caller's encoder and never submits, polls or waits.

mod merge;
mod packed;
mod raw;
mod rotate;
mod view;

pub use view::{DeviceCacheView, DevicePackedView, DeviceQueries};

use super::config::AttendConfig;
use super::plan::{Plan, QueryShape};
use crate::error::Result;
use crate::gpu::{Kernel, Recorder, Slice, Variant};
use crate::nsnquant::Hadamard;
use crate::nsnquant::gpu::hadamard_constants;
use crate::shape::{MAX_HEAD_DIM, check_head_dim};

/// Queries that a workgroup answers together, in the lanes of a vec4.
const BLOCK: usize = 4;
/// Workgroups that fill a large device; more splits than it takes for them only cost merging.
const GROUPS: usize = 1024;

/// Most splits of a kind: what `merge` has workgroup memory for.
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
    vec![
        (&rotate::KERNEL, rotate::variants()),
        (&raw::KERNEL, raw::variants()),
        (&packed::KERNEL, packed::variants()),
        (&merge::KERNEL, merge::variants()),
    ]
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
    let causal = config.causal.is_some();
    view.check(causal)?;
    let DeviceQueries { data, dtype, batch, heads, tokens, head_dim } = *queries;
    let shape = QueryShape { batch, heads, tokens, head_dim };
    let expected = batch.saturating_mul(heads).saturating_mul(tokens).saturating_mul(head_dim);
    let elements = (data.size as usize / dtype.bytes()).min(expected);
    let plan = Plan::new(view.kv_rows, view.head_dim_k, view.head_dim_v, shape, elements, config)?;
    view::check_count("queries", plan.queries())?;
    let context = rec.context();
    let values = (plan.queries() * plan.head_dim_v) as u64;
    let attended = DeviceAttended {
        out: context.create("wgkv attention out", values * 4)?,
        lse: context.create("wgkv attention lse", plan.queries() as u64 * 4)?,
    };
    let prepared = rotate::record(rec, &plan, queries, view.packed.as_ref())?;
    let raw = raw::record(rec, &plan, view, &prepared)?;
    let packed = packed::record(rec, &plan, view.packed.as_ref(), &prepared)?;
    merge::record(rec, &plan, &raw, &packed, &attended)?;
    Ok(attended)
}

/// Partial states of every query and split; none where there are no tokens of the kind.
struct Partials {
    buffer: wgpu::Buffer,
    splits: usize,
}

impl Partials {
    /// Room for the states of a plan, `values` numbers a query and split.
    fn new(rec: &Recorder<'_>, plan: &Plan, splits: usize, values: usize) -> Result<Self> {
        let size =
            (plan.queries() as u64).saturating_mul(splits as u64).saturating_mul(4 * values as u64);
        Ok(Self { buffer: rec.context().create("wgkv attention partials", size)?, splits })
    }
}

/// Blocks of queries of a row.
fn blocks(plan: &Plan) -> usize {
    plan.per_row.div_ceil(BLOCK)
}

/// Splits of the tokens of each row, given how many tiles all rows have together.
fn splits(plan: &Plan, tiles: usize) -> usize {
    let lines = plan.kv_rows * blocks(plan);
    GROUPS.div_ceil(lines).min(tiles.div_ceil(plan.kv_rows)).clamp(1, MAX_SPLITS)
}

/// What stands for the positions where attention is not causal and they are not read.
fn positions<'a>(given: Option<Slice<'a>>, unread: Slice<'a>) -> Slice<'a> {
    given.unwrap_or(unread)
}

/// Every head dimension that there is a variant for.
fn head_dims() -> impl Iterator<Item = usize> {
    (8..=MAX_HEAD_DIM).filter(|dim| check_head_dim("head_dim", *dim).is_ok())
}

/// The variant of a stage that transforms one row of a head dimension in a workgroup.
fn hadamard_variant(head_dim: usize) -> Result<Variant> {
    let hadamard = Hadamard::new("head_dim", head_dim)?;
    let mut constants = hadamard_constants(&hadamard, HADAMARD_LANES, 1);
    constants.push(("HEAD_DIM", head_dim as u32));
    Ok(Variant { constants, overrides: Vec::new() })
}
