//! Joins ragged rows and as many new items for each row.

use crate::error::{Error, Result};
use crate::gpu::{Binding, Groups, Kernel, Magic, Params, Recorder, Slice, Variant};
use crate::nestedkv::params::AppendParams;
use crate::primitives::gpu::{check_words, size};

/// One word a lane.
pub(crate) static KERNEL: Kernel = Kernel {
    name: "nestedkv/append",
    source: concat!(
        include_str!("../../../wgsl/common/divide.wgsl"),
        include_str!("../../../wgsl/nestedkv/append.wgsl"),
    ),
    bindings: &[
        Binding::Read("held"),
        Binding::Read("offsets"),
        Binding::Read("added"),
        Binding::Write("joined"),
        Binding::Write("starts"),
    ],
    params: AppendParams::LAYOUT,
};

/// Joined rows and where they start.
#[derive(Clone, Debug)]
pub struct Joined {
    /// `[items, width]` words.
    pub items: wgpu::Buffer,
    /// Where each joined row begins and where the last ends, u32 `[rows + 1]`.
    pub starts: wgpu::Buffer,
}

/// Rows to be joined: items of `width` words.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// `[held_items, width]` words.
    pub held: Slice<'a>,
    /// Items held by all rows together.
    pub held_items: usize,
    /// `[rows + 1]` u32 on the device; nothing checks them there, what lies outside reads as the
    /// end.
    pub offsets: Slice<'a>,
    /// `[rows, tokens, width]` words.
    pub added: Slice<'a>,
    /// Number of rows.
    pub rows: usize,
    /// New items of each row.
    pub tokens: usize,
    /// Words of an item.
    pub width: usize,
}

/// Records the join, [`crate::nestedkv::cpu::append()`].
///
/// # Errors
/// [`Error::Empty`] for no rows, tokens or words; [`Error::Length`] for slices that are too short;
/// [`Error::OutOfRange`] when the joined words exceed 32 bits; [`Error::DeviceLimit`].
pub fn record(rec: &mut Recorder<'_>, rows: &Rows<'_>) -> Result<Joined> {
    let Rows { held, held_items, offsets, added, rows, tokens, width } = *rows;
    for (argument, count) in [("rows", rows), ("tokens", tokens), ("width", width)] {
        if count == 0 {
            return Err(Error::Empty { argument });
        }
    }
    let new_items = rows.saturating_mul(tokens);
    check_words("held", held.size, held_items.saturating_mul(width))?;
    check_words("offsets", offsets.size, rows.saturating_add(1))?;
    check_words("added", added.size, new_items.saturating_mul(width))?;
    let words = held_items.saturating_add(new_items).saturating_mul(width);
    let division = Magic::of(width);
    let params = AppendParams {
        rows: size("rows", rows)?,
        width: size("width", width)?,
        tokens: size("tokens", tokens)?,
        held: size("held", held_items)?,
        words: size("joined words", words)?,
        steps: usize::BITS - rows.leading_zeros(),
        width_multiplier: division.multiplier,
        width_shift1: division.shift1,
        width_shift2: division.shift2,
    };
    let items = rec.context().create("joined rows", words as u64 * 4)?;
    let starts = rec.context().create("joined starts", (rows as u64 + 1) * 4)?;
    // At least a lane for each start.
    let lanes = words.max(rows + 1) as u64;
    rec.dispatch(
        &KERNEL,
        &Variant::default(),
        &params,
        &[held, offsets, added, Slice::all(&items), Slice::all(&starts)],
        Groups(lanes.div_ceil(256)),
    )?;
    Ok(Joined { items, starts })
}
