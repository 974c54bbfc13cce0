//! How much channels vary. Twin: `src/nsnquant/cpu/squares.rs`.

use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Params, Recorder, Slice, Variant};
use crate::nsnquant::params::SquaresParams;
use crate::shape::{Dtype, check_head_dim};

static KERNEL: Kernel = Kernel {
    name: "nsnquant/squares",
    source: concat!(
        include_str!("../../../wgsl/common/element.wgsl"),
        include_str!("../../../wgsl/nsnquant/squares.wgsl"),
    ),
    bindings: &[Binding::Read("list"), Binding::Read("data"), Binding::Write("result")],
    params: SquaresParams::LAYOUT,
};

/// The kernel of `wgsl/nsnquant/squares.wgsl`.
pub fn kernel() -> &'static Kernel {
    &KERNEL
}

/// The one variant.
pub fn variants() -> Vec<Variant> {
    vec![Variant::default()]
}

/// A part of a list on the device.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The words of the list, u32.
    pub words: Slice<'a>,
    /// Word of the first entry.
    pub first: u32,
    /// Entries.
    pub count: u32,
}

impl Part<'_> {
    /// Refuses a list that does not hold the entries.
    pub(super) fn check(&self, entry: u64) -> Result<()> {
        let expected = u64::from(self.first) + entry * u64::from(self.count);
        let (got, expected) = ((self.words.size / 4) as usize, expected as usize);
        let fault = Error::Length { argument: "list", got, expected };
        if got >= expected { Ok(()) } else { Err(fault) }
    }
}

/// Records the sums of the squares of the channels of chunks, as
/// [`cpu::squares`](crate::nsnquant::cpu::squares). An entry of the list is the first word of a chunk
/// in `data`, elements of `dtype`; its tokens, which lie one after the other; and the row of `out`,
/// f32 `[rows, head_dim]`, that it gets. Entries that point beyond either are ignored.
///
/// # Errors
/// [`Error::HeadDim`]; [`Error::Length`] for a list that is too short; and as [`Recorder::dispatch`].
pub fn squares(
    rec: &mut Recorder<'_>,
    head_dim: usize,
    data: Slice<'_>,
    dtype: Dtype,
    list: Part<'_>,
    out: Slice<'_>,
) -> Result<()> {
    check_head_dim("head_dim", head_dim)?;
    if list.count == 0 {
        return Ok(());
    }
    list.check(3)?;
    let params = SquaresParams {
        first: list.first,
        count: list.count,
        head_dim: head_dim as u32,
        dtype: dtype.code(),
        row_words: (head_dim * dtype.bytes() / 4) as u32,
        words: (data.size / 4).min(u64::from(u32::MAX)) as u32,
        rows: (out.size / 4 / head_dim as u64) as u32,
    };
    let slices = [list.words, data, out];
    rec.dispatch(&KERNEL, &Variant::default(), &params, &slices, Groups(list.count.into()))
}
