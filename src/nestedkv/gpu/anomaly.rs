//! Steps 2 to 4: raw scores of the three scales, and the ends of their range. Twin:
//! `src/nestedkv/cpu/anomaly.rs`.

use super::anchor::{Anchored, lane_bits, shapes};
use crate::error::{Error, Result};
use crate::gpu::{Binding, DeviceTensor, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AnomalyParams;
use crate::nestedkv::plan::{Cut, RUN_TOKENS, SHORT_SUM};
use crate::primitives::gpu::check_words;
use crate::shape::Dtype;

/// 1 to 8 runs of a row a workgroup: any window, any block.
static ANY: Kernel = Kernel {
    name: "nestedkv/anomaly",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/unit_key.wgsl"),
        include_str!("../../../wgsl/common/run.wgsl"),
        include_str!("../../../wgsl/common/anomaly.wgsl"),
        include_str!("../../../wgsl/nestedkv/anomaly.wgsl"),
    ),
    bindings: BINDINGS,
    params: AnomalyParams::LAYOUT,
};

/// 1 to 8 blocks of a row a workgroup: windows of one run, blocks of whole runs.
static ALIGNED: Kernel = Kernel {
    name: "nestedkv/anomaly_aligned",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/order.wgsl"),
        include_str!("../../../wgsl/common/unit_key.wgsl"),
        include_str!("../../../wgsl/common/run.wgsl"),
        include_str!("../../../wgsl/common/anomaly.wgsl"),
        include_str!("../../../wgsl/nestedkv/anomaly_aligned.wgsl"),
    ),
    bindings: BINDINGS,
    params: AnomalyParams::LAYOUT,
};

const BINDINGS: &[Binding] = &[
    Binding::Read("keys"),
    Binding::Read("factors"),
    Binding::Read("means"),
    Binding::Read("sums"),
    Binding::Write("scales"),
    Binding::Write("extremes"),
];

/// The variant for keys of a type and head dimension.
fn variant(dtype: Dtype, head_dim: usize) -> Variant {
    let constants = vec![("DTYPE", dtype.code()), ("LANE_BITS", lane_bits(head_dim))];
    Variant { constants, overrides: Vec::new() }
}

/// As [`variant`], of the kernel for any window; `long` where 32 bits do not hold the sum of one.
fn any_variant(dtype: Dtype, head_dim: usize, long: bool) -> Variant {
    let mut variant = variant(dtype, head_dim);
    variant.constants.push(("LONG", u32::from(long)));
    variant
}

/// Both kernels with every variant that occurs.
pub(super) fn kernels() -> [(&'static Kernel, Vec<Variant>); 2] {
    let both = |(dtype, dim)| [false, true].map(|long| any_variant(dtype, dim, long));
    let any = shapes().into_iter().flat_map(both).collect();
    let aligned = shapes().into_iter().map(|(dtype, dim)| variant(dtype, dim)).collect();
    [(&ANY, any), (&ALIGNED, aligned)]
}

/// What the three scales compare keys with.
#[derive(Clone, Copy, Debug)]
pub struct Anchors<'a> {
    /// Factors of the rows and sums over runs, of [`super::anchor`].
    pub anchored: &'a Anchored,
    /// Means of the rows, of [`super::mean`].
    pub means: Slice<'a>,
    /// Tokens of a block.
    pub block: usize,
    /// Tokens of the trailing window.
    pub window: usize,
}

/// Raw scores of a number of lines: scales of rows.
#[derive(Clone, Debug)]
pub struct Anomalies {
    /// `[3, rows, tokens]` f32: stable, episodic, current.
    pub scales: wgpu::Buffer,
    /// `[3, rows, 2]` u32: highest key ([`crate::primitives::order::order_key`]) of the scores of a
    /// line, and highest complement of a key.
    pub extremes: wgpu::Buffer,
}

/// Records the raw scores: step 3 of [`crate::nestedkv`] (arXiv 2605.26678, section 2.2).
///
/// # Errors
/// [`Error::Empty`] for a block of no tokens; [`Error::Length`] for anchors that are too short for the keys;
/// as [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    anchors: &Anchors<'_>,
) -> Result<Anomalies> {
    let (rows, tokens, dim) = (keys.rows(), keys.tokens(), keys.head_dim());
    if anchors.block == 0 {
        return Err(Error::Empty { argument: "block" });
    }
    let cut = Cut { tokens, block: anchors.block.min(tokens) };
    let Anchored { factors, sums } = anchors.anchored;
    check_words("factors", factors.size(), rows * tokens)?;
    check_words("run sums", sums.size(), rows * cut.runs() * dim)?;
    check_words("row means", anchors.means.size, rows * dim)?;
    let scales = rec.context().create("scales", 3 * (rows * tokens) as u64 * 4)?;
    // A new buffer holds zeros.
    let extremes = rec.context().create("extremes", 3 * rows as u64 * 8)?;
    let window = anchors.window.min(tokens);
    let aligned = window == RUN_TOKENS && cut.block.is_multiple_of(RUN_TOKENS);
    let units = if aligned { cut.runs() / cut.pieces() } else { cut.runs() };
    let groups = units.div_ceil(64 >> lane_bits(dim));
    let by_pieces = Magic::of(cut.pieces());
    let by_groups = Magic::of(groups);
    let params = AnomalyParams {
        rows: rows as u32,
        tokens: tokens as u32,
        dim: dim as u32,
        block: cut.block as u32,
        pieces: cut.pieces() as u32,
        pieces_multiplier: by_pieces.multiplier,
        pieces_shift1: by_pieces.shift1,
        pieces_shift2: by_pieces.shift2,
        runs: cut.runs() as u32,
        groups: groups as u32,
        groups_multiplier: by_groups.multiplier,
        groups_shift1: by_groups.shift1,
        groups_shift2: by_groups.shift2,
        window: window as u32,
    };
    let slices = [
        keys.slice(),
        Slice::all(factors),
        anchors.means,
        Slice::all(sums),
        Slice::all(&scales),
        Slice::all(&extremes),
    ];
    let (kernel, variant) = if aligned {
        (&ALIGNED, variant(keys.dtype(), dim))
    } else {
        (&ANY, any_variant(keys.dtype(), dim, window > SHORT_SUM))
    };
    rec.dispatch(kernel, &variant, &params, &slices, Groups((rows * groups) as u64))?;
    Ok(Anomalies { scales, extremes })
}
