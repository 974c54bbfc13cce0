//! Host side of `wgsl/common/attend_plain.wgsl`: which pages it reads, and how it is built.

use crate::attention::params::PackedPageParams;
use crate::attention::plan::Plan;
use crate::gpu::{Magic, Variant};
use crate::layout::{Bits, Family, Gain, PageLayout};

/// Channels of a value that a lane adds.
pub(super) const PART: usize = 16;
/// Tokens of a lane.
const TOKENS: usize = 4;
/// Most pages that are taken in together.
const PAGES: usize = 16;
/// Invocations of a workgroup, the best first.
const LANES: [usize; 2] = [128, 64];
/// Bytes of workgroup memory of the baseline. With more of it than they need, fewer workgroups share a
/// processor, and all wait longer for memory.
const STORAGE: usize = 16384;

/// How a workgroup of these kernels is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    head_dim: usize,
    bits: [Bits; 2],
    chunk: usize,
    /// Queries that are answered together: 1, 2 or 4.
    pub(super) heads: usize,
    pub(super) lanes: usize,
}

impl Shape {
    /// The shape for pages of these layouts, if they are such as these kernels read; `halves` says
    /// whether f16 holds their books.
    pub(super) fn new(plan: &Plan, layouts: [&PageLayout; 2], halves: bool) -> Option<Self> {
        let fits = |layout: &PageLayout| {
            let scheme = layout.scheme();
            let own = scheme.family == Family::Plain && scheme.gain != Gain::TokenNorm;
            own && layout.head_dim().is_multiple_of(32)
        };
        let heads = match plan.per_row {
            1 | 2 => plan.per_row,
            _ => 4,
        };
        let [keys, values] = layouts;
        if !halves || !fits(keys) || !fits(values) {
            return None;
        }
        let dims = [plan.head_dim_k, plan.head_dim_v];
        Self::of(dims, [keys.bits(), values.bits()], keys.chunk(), heads)
    }

    /// The shape that fits the memory.
    fn of(
        [head_dim, head_dim_v]: [usize; 2],
        bits: [Bits; 2],
        chunk: usize,
        heads: usize,
    ) -> Option<Self> {
        let shapes = LANES.map(|lanes| Self { head_dim, bits, chunk, heads, lanes });
        // Channels of a value, too, have a place in the memory of the weights.
        let fits = |shape: &Self| shape.bytes() <= STORAGE && head_dim_v <= TOKENS * shape.lanes;
        shapes.into_iter().find(fits)
    }

    /// Pages that are taken in together.
    fn pages(&self) -> usize {
        let pages = (TOKENS * self.lanes / self.chunk).clamp(1, PAGES);
        1 << pages.ilog2()
    }

    /// Bytes of workgroup memory, each variable rounded up as Metal does.
    fn bytes(&self) -> usize {
        let (heads, lanes, pages) = (self.heads, self.lanes, self.pages());
        let book = |side: usize| {
            let bits = self.bits[side];
            let words = Family::Plain.rows(bits) * Family::Plain.width(bits) / 2;
            4 * words
        };
        let values = if self.bits[0] == self.bits[1] { 0 } else { book(1) };
        let parts = [
            2 * 4 * heads * self.head_dim,
            4 * heads * lanes,
            4 * heads * TOKENS * lanes,
            16 * pages,
            4 * pages,
            4 * heads * pages,
            8 * pages,
            4 * 64 * pages,
            book(0) + values,
            // Books of other widths, of one row each.
            5 * 16,
        ];
        parts.iter().map(|bytes| bytes.next_multiple_of(16)).sum()
    }

    /// The variant, with the constants that the kernel wants beside those of `wgsl/common/attend_plain.wgsl`.
    pub(super) fn variant(&self, own: &[(&'static str, u32)]) -> Variant {
        let mut constants = vec![
            ("HEAD_DIM", self.head_dim as u32),
            ("SOFTMAX_LANES", self.lanes as u32),
            ("KEY_BITS", self.bits[0].get() as u32),
            ("VALUE_BITS", self.bits[1].get() as u32),
            ("PLAIN_PAGES", self.pages() as u32),
        ];
        constants.extend(own);
        Variant { constants, overrides: Vec::new() }
    }

    /// What kernels are told of the pages, beside what others are told.
    pub(super) fn params(&self, common: PackedPageParams) -> PackedPageParams {
        let span = self.chunk.min(TOKENS * self.lanes);
        // A span is at least 2, so the first shift is 1.
        let by_span = Magic::of(span);
        PackedPageParams {
            span: span as u32,
            span_multiplier: by_span.multiplier,
            span_shift: by_span.shift2,
            ..common
        }
    }

    /// What [`super::block::Partials::params`] wants.
    pub(super) fn split(&self) -> [usize; 3] {
        [self.lanes, PART, self.heads]
    }
}

/// Shapes of every kind that answer so many queries together.
pub(super) fn shapes(heads: usize) -> Vec<Shape> {
    let dims = (32..=512).step_by(32);
    let dims = dims.filter(|dim| crate::shape::check_head_dim("head_dim", *dim).is_ok());
    let by_dim = dims.map(|dim| (dim, [Bits::Three, Bits::Two], 64));
    let bits = Bits::ALL.into_iter().flat_map(|keys| Bits::ALL.map(|values| [keys, values]));
    let by_bits = bits.map(|bits| (128, bits, 64));
    let by_chunk = [2, 100, 1024].map(|chunk| (128, [Bits::Two; 2], chunk));
    let mut shapes: Vec<Shape> = Vec::new();
    for (dim, bits, chunk) in by_dim.chain(by_bits).chain(by_chunk) {
        let shape = Shape::of([dim; 2], bits, chunk, heads);
        shapes.extend(shape.filter(|shape| !shapes.contains(shape)));
    }
    shapes
}
