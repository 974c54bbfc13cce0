//! Copies token rows between dense tensors in device memory and changes their element type
//! (`wgsl/cache/rows.wgsl`).

use crate::cache::plan::Move;
use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant, params};
use crate::shape::check_count;

params! {
    /// Parameters of the copy.
    pub struct RowsParams {
        /// Words to write.
        total: u32,
        /// Words of a token row of the result.
        words: u32,
        /// Division by `words`.
        words_multiplier: u32,
        /// Division by `words`.
        words_shift1: u32,
        /// Division by `words`.
        words_shift2: u32,
        /// Tokens of each row to copy.
        tokens: u32,
        /// Division by `tokens`.
        tokens_multiplier: u32,
        /// Division by `tokens`.
        tokens_shift1: u32,
        /// Division by `tokens`.
        tokens_shift2: u32,
        /// Channels of a token.
        head_dim: u32,
        /// Tokens of each row of the source.
        from_tokens: u32,
        /// First token to copy.
        from_first: u32,
        /// Tokens of each row of the result.
        to_tokens: u32,
        /// Where the first token goes.
        to_first: u32,
        /// Element type of the source.
        from_dtype: u32,
        /// Element type of the result.
        to_dtype: u32,
    }
}

/// One thread a word of the result.
static KERNEL: Kernel = Kernel {
    name: "cache/rows",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/common/narrow.wgsl"),
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/cache/rows.wgsl"),
    ),
    bindings: &[Binding::Read("source"), Binding::Write("result")],
    params: RowsParams::LAYOUT,
};

/// Threads of a workgroup, as in the shader.
const WORKGROUP: u64 = 256;

/// The kernel of `wgsl/cache/rows.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// The one variant.
pub fn variants() -> Vec<Variant> {
    vec![Variant::default()]
}

/// Records the copy of the rows of `plan` from `source` into `result`. Equal types keep their bits;
/// to f16 and bf16, finite values beyond the range become the largest of the type.
///
/// # Errors
/// [`Error::OutOfRange`] as [`Move::check`]; [`Error::Length`] when a slice is shorter than the plan
/// says; the errors of [`Recorder::dispatch`].
pub fn record(
    rec: &mut Recorder<'_>,
    plan: &Move,
    source: Slice<'_>,
    result: Slice<'_>,
) -> Result<()> {
    plan.check()?;
    let elements = |tokens: usize| plan.rows * tokens * plan.head_dim;
    for (argument, slice, count, bytes) in [
        ("source", source, elements(plan.from_tokens), plan.from_dtype.bytes()),
        ("result", result, elements(plan.to_tokens), plan.to_dtype.bytes()),
    ] {
        if slice.size < (count * bytes) as u64 {
            let got = slice.size as usize / bytes;
            return Err(Error::Length { argument, got, expected: count });
        }
    }
    let words = plan.to_words();
    let total = check_count("words", &[plan.rows, plan.tokens, words])?;
    let by_words = Magic::of(words);
    let by_tokens = Magic::of(plan.tokens);
    let params = RowsParams {
        total: total as u32,
        words: words as u32,
        words_multiplier: by_words.multiplier,
        words_shift1: by_words.shift1,
        words_shift2: by_words.shift2,
        tokens: plan.tokens as u32,
        tokens_multiplier: by_tokens.multiplier,
        tokens_shift1: by_tokens.shift1,
        tokens_shift2: by_tokens.shift2,
        head_dim: plan.head_dim as u32,
        from_tokens: plan.from_tokens as u32,
        from_first: plan.from_first as u32,
        to_tokens: plan.to_tokens as u32,
        to_first: plan.to_first as u32,
        from_dtype: plan.from_dtype.code(),
        to_dtype: plan.to_dtype.code(),
    };
    let groups = Groups((total as u64).div_ceil(WORKGROUP));
    rec.dispatch(&KERNEL, &Variant::default(), &params, &[source, result], groups)
}
