//! Host side of `wgsl/common/attend_pages.wgsl` with `attend_plain.wgsl` (floats) or `attend_bytes.wgsl`
//! (integers): which pages they read, and how they are built.

use super::block::form;
use crate::attention::params::PackedPageParams;
use crate::attention::plan::Plan;
use crate::gpu::{Context, Magic, Variant};
use crate::layout::{Bits, Family, Gain, PageLayout};

/// The form of pages whose scales and means have 4 bits, and those of others.
const FOUR: u32 = 2;
const FORMS: [u32; 3] = [0, 32, 6];
/// Channels of a value that a lane adds, as floats and as integers: whose sums take twice the registers.
const PARTS: [usize; 2] = [16, 8];
/// Tokens of a lane.
const TOKENS: usize = 4;
/// Most pages that are taken in together.
const PAGES: usize = 16;
/// Invocations of a workgroup, the best first.
const LANES: [usize; 2] = [128, 64];
/// Bytes of workgroup memory that are made use of, where a device has so many. With more of it than they
/// need, fewer workgroups share a processor, and all wait longer for memory.
const STORAGE: usize = 32768;
/// Bytes of workgroup memory of the baseline.
const BASELINE: usize = 16384;

/// What there is to build a kernel for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// Bytes of workgroup memory.
    storage: usize,
    /// Whether there are products of packed integers.
    dots: bool,
}

impl Means {
    /// What a device has.
    pub(super) fn of(context: &Context) -> Self {
        let storage = context.device().limits().max_compute_workgroup_storage_size as usize;
        Self { storage: storage.min(STORAGE), dots: context.integer_dots() }
    }
}

/// How a workgroup of these kernels is made up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    head_dims: [usize; 2],
    bits: [Bits; 2],
    /// How the pages are packed, by the `PACKED_` constants of `wgsl/common/attend_page.wgsl`.
    forms: [u32; 2],
    /// Whether the books are held as bytes and integers multiplied.
    pub(super) bytes: bool,
    chunk: usize,
    /// Queries that are answered together: 1, 2 or 4.
    pub(super) heads: usize,
    pub(super) lanes: usize,
}

impl Shape {
    /// The shape for pages of these layouts, if they are such as these kernels read; `halves` says
    /// whether f16 holds their books, `bytes` of which of them bytes do.
    pub(super) fn new(
        context: &Context,
        plan: &Plan,
        layouts: [&PageLayout; 2],
        halves: bool,
        bytes: [bool; 2],
    ) -> Option<Self> {
        let fits = |layout: &PageLayout| {
            let scheme = layout.scheme();
            let own = scheme.family == Family::Plain && scheme.gain != Gain::TokenNorm;
            own && layout.head_dim().is_multiple_of(32)
        };
        if !halves || !layouts.iter().all(|layout| fits(layout)) {
            return None;
        }
        let heads = match plan.per_row {
            1 | 2 => plan.per_row,
            _ => 4,
        };
        let shape = Self {
            head_dims: [plan.head_dim_k, plan.head_dim_v],
            bits: layouts.map(PageLayout::bits),
            forms: layouts.map(form),
            bytes: bytes == [true; 2],
            chunk: layouts[0].chunk(),
            heads,
            lanes: 0,
        };
        shape.within(Means::of(context))
    }

    /// The shape that makes the most of these means. Integers take values whose scales have 4 bits, which
    /// say how large a weight can be, and rounds in which lanes have equal parts.
    fn within(self, means: Means) -> Option<Self> {
        let [of_bytes, of_floats] =
            [true, false].map(|bytes| LANES.map(|lanes| Self { bytes, lanes, ..self }));
        let bytes = self.bytes && means.dots && self.forms[1] & FOUR != 0;
        let of_bytes = of_bytes.into_iter().filter(|shape| bytes && shape.even());
        // Channels of a value, too, have a place in the memory of the weights.
        let fits = |shape: &Self| {
            shape.memory() <= means.storage && shape.head_dims[1] <= TOKENS * shape.lanes
        };
        of_bytes.chain(of_floats).find(fits)
    }

    /// Channels of a value that a lane adds.
    fn part(&self) -> usize {
        PARTS[usize::from(self.bytes)]
    }

    /// Tokens of a page that are taken in together.
    fn span(&self) -> usize {
        self.chunk.min(TOKENS * self.lanes)
    }

    /// Whether the lanes, all of them, take every span in steps of as many tokens.
    fn even(&self) -> bool {
        let parts = self.head_dims[1] / self.part();
        let groups = (self.lanes / parts).max(1);
        let spans = self.span().is_multiple_of(TOKENS * groups);
        // Lanes that multiply integers take four tokens of two words of scales.
        let spans = spans && (!self.bytes || groups.is_multiple_of(4));
        spans && groups * parts == self.lanes && self.chunk.is_multiple_of(self.span())
    }

    /// A quarter of the tokens of a span, rounded up.
    fn subs(&self) -> usize {
        self.span().div_ceil(TOKENS).max(1)
    }

    /// Pages that are taken in together.
    fn pages(&self) -> usize {
        (self.lanes / self.subs()).clamp(1, PAGES)
    }

    /// Bytes of workgroup memory, each variable rounded up as Metal does.
    fn memory(&self) -> usize {
        let (heads, lanes, pages) = (self.heads, self.lanes, self.pages());
        let head_dim = self.head_dims[0];
        let book = |side: usize| {
            let bits = self.bits[side];
            let numbers = Family::Plain.rows(bits) * Family::Plain.width(bits);
            // A row of two bytes takes a word, too.
            let word = 4 * Family::Plain.rows(bits);
            if self.bytes { numbers.max(word) } else { 2 * numbers }
        };
        // `PLAIN_WIDE`.
        let wide = self.bytes && self.bits[1] == Bits::Three;
        let shared = self.bits[0] == self.bits[1] && !wide;
        // Four queries are spared what one or two have: see `PLAIN_SPARE`.
        let queries = if heads > 2 { 1 } else { 2 };
        let own = if self.bytes {
            let queries = 4 * heads * (3 * head_dim / 4 + 4);
            [
                queries,
                4 * heads * lanes.max(self.head_dims[1].saturating_sub(lanes)),
                4 * pages,
                6 * 8 * pages,
            ]
        } else {
            [4 * heads * queries * head_dim, 4 * heads * TOKENS * lanes, 0, 0]
        };
        let parts = [
            4 * heads * lanes,
            16 * pages,
            4 * pages,
            // `PLAIN_TOPS`.
            4 * heads * pages.max(8),
            8 * pages,
            // Seven numbers of each query's block.
            4 * 7 * heads,
            book(0) + if shared { 0 } else { book(1) },
            // Books of other widths, of one row each.
            5 * 16,
        ];
        let parts = parts.iter().chain(&own);
        parts.map(|bytes| bytes.next_multiple_of(16)).sum()
    }

    /// The memory of the devices that it is for.
    fn room(&self) -> usize {
        if self.memory() > BASELINE { STORAGE } else { BASELINE }
    }

    /// The variant, with the constants that the kernel wants beside those of `wgsl/common/attend_plain.wgsl`.
    pub(super) fn variant(&self, own: &[(&'static str, u32)]) -> Variant {
        let mut constants = vec![
            ("HEAD_DIM", self.head_dims[0] as u32),
            ("SOFTMAX_LANES", self.lanes as u32),
            ("KEY_BITS", self.bits[0].get() as u32),
            ("VALUE_BITS", self.bits[1].get() as u32),
            ("PLAIN_BYTES", u32::from(self.bytes)),
            ("KEY_FORM", self.forms[0]),
            ("VALUE_FORM", self.forms[1]),
            ("PLAIN_PAGES", self.pages() as u32),
            // For those who check what variants take.
            ("PLAIN_STORAGE", self.room() as u32),
            ("PLAIN_EVEN", u32::from(self.even())),
            ("PLAIN_PART", self.part() as u32),
            ("PLAIN_SUBS", self.subs() as u32),
            ("VALUE_DIM", self.head_dims[1] as u32),
        ];
        constants.extend(own);
        Variant { constants, overrides: Vec::new() }
    }

    /// What kernels are told of the pages, beside what others are told.
    pub(super) fn params(&self, common: PackedPageParams) -> PackedPageParams {
        // Loops step by it.
        let subs = self.subs();
        let by_subs = Magic::of(subs);
        PackedPageParams {
            span: self.span() as u32,
            subs: subs as u32,
            subs_multiplier: by_subs.multiplier,
            subs_shift1: by_subs.shift1,
            subs_shift2: by_subs.shift2,
            ..common
        }
    }

    /// What [`super::block::Partials::params`] wants.
    pub(super) fn split(&self) -> [usize; 3] {
        [self.lanes, self.part(), self.heads]
    }
}

/// Shapes of every kind that answer so many queries together, by integers or floats.
pub(super) fn shapes(heads: usize, bytes: bool) -> Vec<Shape> {
    let dims = (32..=512).step_by(32);
    let dims = dims.filter(|dim| crate::shape::check_head_dim("head_dim", *dim).is_ok());
    let by_dim = dims.map(|dim| (dim, [Bits::Three, Bits::Two], 64));
    let bits = Bits::ALL.into_iter().flat_map(|keys| Bits::ALL.map(|values| [keys, values]));
    let by_bits = bits.map(|bits| (128, bits, 64));
    let by_chunk = [2, 100, 1024].map(|chunk| (128, [Bits::Two; 2], chunk));
    let kinds = [(BASELINE, false), (BASELINE, true), (STORAGE, true)];
    let kinds = kinds.map(|(storage, dots)| Means { storage, dots });
    let mut shapes: Vec<Shape> = Vec::new();
    for (dim, bits, chunk) in by_dim.chain(by_bits).chain(by_chunk) {
        let exact = bits.iter().all(|bits| *bits != Bits::Four);
        let head_dims = [dim; 2];
        let any = Shape { head_dims, bits, forms: [FOUR; 2], bytes: exact, chunk, heads, lanes: 0 };
        let others = FORMS.map(|form| Shape { forms: [form; 2], ..any });
        let others = others.into_iter().filter(|_| bits == [Bits::Two; 2] && chunk == 64);
        for shape in others.chain([any]) {
            for means in kinds {
                let shape = shape.within(means);
                let new = |shape: &Shape| shape.bytes == bytes && !shapes.contains(shape);
                shapes.extend(shape.filter(new));
            }
        }
    }
    shapes
}
