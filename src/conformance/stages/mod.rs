//! What each stage does with a case.

mod attention;
mod budgets;
mod cache;
mod nestedkv;
mod nsnquant;
mod paged;
mod primitives;
mod score;
mod whole;

use super::run::{Job, Run};

/// A stage of the library.
#[derive(Debug)]
pub(super) struct Stage {
    pub name: &'static str,
    /// Reference cases.
    pub references: usize,
    /// Cases that go through the variants.
    pub covers: usize,
    pub run: for<'r> fn(&'r mut Run<'_>) -> Job<'r>,
}

/// A stage that has random cases only.
const fn plain(name: &'static str, run: for<'r> fn(&'r mut Run<'_>) -> Job<'r>) -> Stage {
    Stage { name, references: 0, covers: 0, run }
}

/// A stage whose first `covers` cases go through the variants.
const fn covered(
    name: &'static str,
    covers: usize,
    run: for<'r> fn(&'r mut Run<'_>) -> Job<'r>,
) -> Stage {
    Stage { name, references: 0, covers, run }
}

/// All stages, in the order in which data goes through them.
pub(super) static STAGES: &[Stage] = &[
    covered("primitives/select", 2, primitives::select),
    plain("primitives/scan", primitives::scan),
    plain("primitives/compact", primitives::compact),
    covered("primitives/gather", 3, primitives::gather),
    covered("nestedkv/anchor", 12, nestedkv::anchor),
    plain("nestedkv/mean", nestedkv::mean),
    covered("nestedkv/anomaly", 36, nestedkv::anomaly),
    covered("nestedkv/spread", 4, nestedkv::spread),
    plain("nestedkv/blend", nestedkv::blend),
    plain("nestedkv/gate", nestedkv::gate),
    Stage {
        name: "nestedkv/budgets",
        references: super::reference::BUDGETS,
        covers: 0,
        run: budgets::budgets,
    },
    plain("nestedkv/append", budgets::append),
    plain("nestedkv/keep", budgets::keep),
    Stage {
        name: "nestedkv/score",
        references: super::reference::SCORES,
        covers: 0,
        run: score::score,
    },
    Stage {
        name: "nsnquant/encode",
        references: super::reference::CODES,
        covers: nsnquant::COVERS,
        run: nsnquant::encode,
    },
    Stage {
        name: "nsnquant/decode",
        references: super::reference::CODES,
        covers: nsnquant::COVERS,
        run: nsnquant::decode,
    },
    covered("nsnquant/signs", 4, nsnquant::signs),
    covered("nsnquant/rope", 8, nsnquant::rope),
    plain("nsnquant/squares", nsnquant::squares),
    covered("nsnquant/key_scale", 3, nsnquant::scales),
    covered("attention/raw", attention::RAW_COVERS, attention::raw),
    covered("attention/packed", attention::PACKED_COVERS, attention::packed),
    covered("attention/rope", attention::ROPE_DIMS.len(), attention::rope),
    plain("attention/merge", attention::merge),
    plain("attention/rotate", attention::rotate),
    covered("attention/paged_raw", paged::RAW_COVERS, paged::raw),
    covered("attention/paged_packed", attention::PACKED_COVERS, paged::packed),
    covered("attention/paged_rope", attention::ROPE_DIMS.len(), paged::rope),
    covered("cache/rows", 9, cache::rows),
    covered("cache/write", 6, cache::write),
    covered("cache/copy", 1, cache::copy),
    covered("cache/keep", 1, cache::keep),
    covered("cache/fetch", 6, cache::fetch),
    covered("cache/pack", 4, cache::pack),
    covered("cache/restore", 8, cache::restore),
    covered("cache/scales", 1, cache::scales),
    plain("whole/compress", whole::compress),
    plain("whole/life", whole::life),
];
