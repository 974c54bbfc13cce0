//! Fixes key scales. Twin: `src/nsnquant/cpu/key_scale.rs`.

use core::ops::Range;

use super::squares::{Part, squares};
use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nsnquant::key_scale::KEY_SCALE_CHUNKS;
use crate::nsnquant::params::KeyScaleParams;
use crate::shape::{Dtype, check_count, check_head_dim};

static KERNEL: Kernel = Kernel {
    name: "nsnquant/key_scale",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/nsnquant/key_scale.wgsl"),
    ),
    bindings: &[Binding::Read("list"), Binding::Read("squares"), Binding::Write("result")],
    params: KeyScaleParams::LAYOUT,
};

/// The kernel of `wgsl/nsnquant/key_scale.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// The one variant.
pub fn variants() -> Vec<Variant> {
    vec![Variant::default()]
}

/// Records the fixing of scales from the squares of channels, as
/// [`cpu::fix`](crate::nsnquant::cpu::fix). An entry of the list is the first row of a head in
/// `squares`, f32 `[rows, head_dim]`; its chunks, whose rows follow; the tokens in them; and the word
/// of `out` where the head's factors go, two a word. Entries that point beyond either are ignored.
///
/// # Errors
/// [`Error::HeadDim`]; [`Error::Length`] for a list that is too short; and as [`Recorder::dispatch`].
pub fn fix(
    rec: &mut Recorder<'_>,
    head_dim: usize,
    squares: Slice<'_>,
    list: Part<'_>,
    out: Slice<'_>,
) -> Result<()> {
    check_head_dim("head_dim", head_dim)?;
    if list.count == 0 {
        return Ok(());
    }
    list.check(4)?;
    let params = KeyScaleParams {
        first: list.first,
        count: list.count,
        head_dim: head_dim as u32,
        rows: (squares.size / 4 / head_dim as u64) as u32,
        words: (out.size / 4).min(u64::from(u32::MAX)) as u32,
    };
    let slices = [list.words, squares, out];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(list.count.into()))
}

/// Records the fixing of the key scales of heads whose token rows lie in `data` `[rows, head_dim]`,
/// each from the first of its rows, as [`key_scale`](crate::nsnquant::key_scale): f16
/// `[heads, head_dim]` in `out`.
///
/// # Errors
/// [`Error::HeadDim`]; [`Error::Empty`] for a chunk of 0 tokens; [`Error::Offsets`] for rows beyond
/// the data; [`Error::Length`] for an `out` that is too short; and as [`Recorder::dispatch`].
pub fn key_scale(
    rec: &mut Recorder<'_>,
    head_dim: usize,
    chunk: usize,
    data: Slice<'_>,
    dtype: Dtype,
    heads: &[Range<usize>],
    out: Slice<'_>,
) -> Result<()> {
    check_head_dim("head_dim", head_dim)?;
    if chunk == 0 {
        return Err(Error::Empty { argument: "chunk" });
    }
    let row_words = head_dim * dtype.bytes() / 4;
    let rows = data.size as usize / 4 / row_words;
    check_count("data", &[rows, row_words])?;
    let outside = |head: &Range<usize>| head.start > head.end || head.end > rows;
    if let Some(index) = heads.iter().position(outside) {
        let (got, expected) = (heads[index].end as u64, "within the token rows");
        return Err(Error::Offsets { argument: "heads", index, got, expected });
    }
    let expected = check_count("out", &[heads.len(), head_dim])? / 2;
    if out.size < 4 * expected as u64 {
        let got = (out.size / 4) as usize;
        return Err(Error::Length { argument: "out", got, expected });
    }
    if heads.is_empty() {
        return Ok(());
    }
    let (mut chunks, mut fixes): (Vec<[u32; 3]>, Vec<[u32; 4]>) = (Vec::new(), Vec::new());
    for (number, head) in heads.iter().enumerate() {
        let tokens = head.len().min(KEY_SCALE_CHUNKS * chunk);
        let first = chunks.len();
        for at in (0..tokens).step_by(chunk) {
            let row = chunks.len() as u32;
            let word = (head.start + at) * row_words;
            chunks.push([word as u32, chunk.min(tokens - at) as u32, row]);
        }
        let count = chunks.len() - first;
        fixes.push([first, count, tokens, number * head_dim / 2].map(|n| n as u32));
    }
    let context = rec.context();
    let upload = |bytes: &[u8]| context.upload("wgkv key scales", bytes);
    let lists = (upload(bytemuck::cast_slice(&chunks))?, upload(bytemuck::cast_slice(&fixes))?);
    let sums = check_count("squares", &[chunks.len().max(1), head_dim])?;
    let sums = context.create("wgkv squares", 4 * sums as u64)?;
    let part = |words, count: usize| Part { words, first: 0, count: count as u32 };
    let list = part(Slice::all(&lists.0), chunks.len());
    squares(rec, head_dim, data, dtype, list, Slice::all(&sums))?;
    let list = part(Slice::all(&lists.1), fixes.len());
    fix(rec, head_dim, Slice::all(&sums), list, out)
}
