//! Host side of `wgsl/common/attend.wgsl`: how queries are cut into blocks and where partial
//! results go.

use super::rotate::Prepared;
use crate::attention::params::{AttendParams, PackedPageParams};
use crate::attention::plan::Plan;
use crate::gpu::Magic;
use crate::layout::{Gain, MeanDomain, Metadata, PageLayout};

/// Most queries that a workgroup answers together, in the lanes of a vec4.
pub(super) const BLOCK: usize = 4;

/// Most buffers that partial results lie in: what `merge` can bind. Dispatches that write to one buffer
/// wait for each other, others need not.
pub(super) const PARTS: usize = 5;

/// Least bytes of a buffer of partial results: `merge` reads two numbers at a time.
pub(super) const PARTIAL_LEAST: u64 = 8;

/// Partial results of some queries of each row, slot after slot, in one of the buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partials<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    /// The queries of each row that are answered.
    pub(super) queries: (usize, usize),
    /// Numbers of a result.
    pub(super) stride: usize,
    /// The slot that lies first in the buffer.
    pub(super) slot_base: u32,
}

/// Numbers of a partial result: sums, the largest logit, the sum of weights, and where rows are
/// packed the sums in the Hadamard domain.
pub(super) fn stride(plan: &Plan, packed: bool) -> usize {
    plan.head_dim_v * if packed { 2 } else { 1 } + 2
}

impl Partials<'_> {
    /// Queries of a row.
    pub(super) fn span(&self) -> usize {
        self.queries.1 - self.queries.0
    }

    /// Blocks of queries of a row, for kernels that answer so many together.
    pub(super) fn blocks(&self, heads: usize) -> usize {
        self.span().div_ceil(heads)
    }

    /// What kernels are told whose workgroups have so many invocations, each of which adds so many
    /// channels of values, and answer so many queries.
    pub(super) fn params(&self, plan: &Plan, [lanes, channels, heads]: [usize; 3]) -> AttendParams {
        let (pieces, blocks) = (plan.head_dim_v / channels, self.blocks(heads));
        let [by_blocks, by_pieces] = [blocks, pieces].map(Magic::of);
        AttendParams {
            per_row: plan.per_row as u32,
            queries_first: self.queries.0 as u32,
            queries_end: self.queries.1 as u32,
            span: self.span() as u32,
            stride: self.stride as u32,
            slot_base: self.slot_base,
            head_dim_v: plan.head_dim_v as u32,
            pieces_v: pieces as u32,
            // Loops step by it.
            groups: (lanes / pieces).max(1) as u32,
            pieces_multiplier: by_pieces.multiplier,
            pieces_shift1: by_pieces.shift1,
            pieces_shift2: by_pieces.shift2,
            causal: u32::from(plan.causal()),
            window: plan.window,
            cap: plan.cap.map_or(0.0, |cap| cap.cap),
            cap_inverse: plan.cap.map_or(0.0, |cap| cap.inverse),
            blocks: blocks as u32,
            blocks_multiplier: by_blocks.multiplier,
            blocks_shift1: by_blocks.shift1,
            blocks_shift2: by_blocks.shift2,
        }
    }
}

/// How pages of a layout are packed, by the `PACKED_` constants of `wgsl/common/attend_packed.wgsl`.
pub(super) fn form(layout: &PageLayout) -> u32 {
    let scheme = layout.scheme();
    let flags = [
        layout.signs(),
        scheme.metadata == Metadata::Four,
        scheme.mean == MeanDomain::Hadamard,
        scheme.gain == Gain::TokenNorm,
        layout.index_bits() == 6,
        scheme.metadata == Metadata::Linear,
    ];
    flags.iter().enumerate().map(|(bit, set)| u32::from(*set) << bit).sum()
}

/// What kernels are told of packed pages whose keys and values lie each by themselves, positions
/// too; pages of a pool differ in the last seven fields.
pub(super) fn page_params(
    keys: &PageLayout,
    values: &PageLayout,
    prepared: &Prepared,
) -> PackedPageParams {
    PackedPageParams {
        chunk: keys.chunk() as u32,
        norm_k: (keys.head_dim() as f32).sqrt(),
        norm_v: (values.head_dim() as f32).sqrt(),
        key_form: form(keys),
        value_form: form(values),
        key_width: keys.width() as u32,
        value_width: values.width() as u32,
        key_sign: keys.sign_offset() as u32,
        key_s1: keys.s1_offset() as u32,
        key_s2: keys.s2_offset() as u32,
        key_o: keys.o_offset() as u32,
        key_grid: keys.grid_offset() as u32,
        value_sign: values.sign_offset() as u32,
        value_s1: values.s1_offset() as u32,
        value_s2: values.s2_offset() as u32,
        value_o: values.o_offset() as u32,
        value_grid: values.grid_offset() as u32,
        key_words: keys.words() as u32,
        value_words: values.words() as u32,
        position_words: keys.chunk() as u32,
        values_at: 0,
        positions_at: 0,
        key_book: 0,
        value_book: 0,
        scaled_at: prepared.scaled_at,
        bytes_at: prepared.bytes_at,
        head_dim: keys.head_dim() as u32,
        ..PackedPageParams::default()
    }
}
