//! Arithmetic that both paths share: which queries read which row and see which keys, and the scale
//! of logits.

use core::ops::RangeInclusive;

use super::config::{AttendConfig, Causal, PagedAttend, check_cap, check_window, scale_for};
use super::view::{length, same};
use crate::error::{Error, Result};
use crate::shape::next_multiple;

/// Exponent that a query's largest element is brought to.
pub(crate) const QUERY_EXPONENT: i32 = -12;
/// Smallest exponent of a query's largest element that is told from 0.
pub(crate) const MIN_EXPONENT: i32 = -100;
/// Logits to base 2 are limited to 2 to this power.
pub(crate) const LOGIT_EXPONENT: i32 = 126;
/// Every weight carries the factor 2 to minus this power.
pub(crate) const WEIGHT_SHIFT: f32 = 20.0;
/// A logit of no key: below any logit, and finite even less the largest logit.
pub(crate) const UNSEEN: f32 = -1.701_411_8e38;

/// Where the first query tokens stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Firsts {
    /// Attention is not causal.
    None,
    /// At one position in all members of the batch.
    One(u32),
    /// At a position of its own in each member.
    Each(Vec<u32>),
}

/// A soft cap of logits to base 2, and its inverse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cap {
    pub(crate) cap: f32,
    pub(crate) inverse: f32,
}

/// Settings, whatever the rows lie in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) scale: Option<f32>,
    pub(crate) soft_cap: Option<f32>,
    pub(crate) window: Option<u32>,
    pub(crate) firsts: Firsts,
}

impl From<&AttendConfig> for Settings {
    fn from(config: &AttendConfig) -> Self {
        let AttendConfig { scale, causal, soft_cap, window } = *config;
        Self { scale, soft_cap, window, firsts: causal.map_or(Firsts::None, Firsts::One) }
    }
}

impl Settings {
    /// The settings of a batch whose members have these next positions, for so many query tokens.
    pub(crate) fn paged(config: &PagedAttend<'_>, next: &[u32], tokens: usize) -> Result<Self> {
        let PagedAttend { scale, causal, soft_cap, window } = *config;
        let firsts = match causal {
            Causal::All => Firsts::None,
            Causal::From(firsts) => {
                length("first positions", firsts.len(), next.len())?;
                Firsts::Each(firsts.to_vec())
            }
            Causal::Newest => {
                let first = |next: &u32| {
                    let fault = || Error::OutOfRange {
                        argument: "query tokens",
                        got: tokens as u64,
                        min: 1,
                        max: u64::from(*next),
                    };
                    u32::try_from(tokens).ok().and_then(|n| next.checked_sub(n)).ok_or_else(fault)
                };
                Firsts::Each(next.iter().map(first).collect::<Result<_>>()?)
            }
        };
        Ok(Self { scale, soft_cap, window, firsts })
    }
}

/// Shape of an attention and how its logits are scaled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) kv_rows: usize,
    /// KV heads: rows of a member of the batch.
    pub(crate) kv_heads: usize,
    /// Queries that read one row: those of its query heads, head after head.
    pub(crate) per_row: usize,
    /// Query tokens.
    pub(crate) tokens: usize,
    pub(crate) head_dim_k: usize,
    pub(crate) head_dim_v: usize,
    /// Scale of logits times log2 e.
    pub(crate) scale: f32,
    /// Exponent of the limit of a dot product before it is scaled, for a query as it came.
    pub(crate) limit: i32,
    pub(crate) cap: Option<Cap>,
    pub(crate) firsts: Firsts,
    /// Positions that a query sees, its own counted.
    pub(crate) window: u32,
}

/// Shape of queries `[batch, heads, tokens, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryShape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) tokens: usize,
    pub(crate) head_dim: usize,
}

impl Plan {
    /// Checks queries of a shape, `elements` of them, against a cache.
    pub(crate) fn new(
        kv_rows: usize,
        [head_dim_k, head_dim_v]: [usize; 2],
        queries: QueryShape,
        elements: usize,
        settings: Settings,
    ) -> Result<Self> {
        let QueryShape { batch, heads, tokens, head_dim } = queries;
        if batch == 0 {
            return Err(Error::Empty { argument: "batch" });
        }
        if tokens == 0 {
            return Err(Error::Empty { argument: "query tokens" });
        }
        if !kv_rows.is_multiple_of(batch) {
            let expected = next_multiple(kv_rows, batch);
            return Err(Error::Mismatch {
                argument: "kv_rows",
                got: kv_rows,
                expected,
                reference: "a multiple of the batch",
            });
        }
        let kv_heads = kv_rows / batch;
        if heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(Error::QueryHeads { query_heads: heads, kv_heads });
        }
        same("head_dim of the queries", head_dim, head_dim_k, "head_dim_k")?;
        let expected = [heads, tokens, head_dim]
            .iter()
            .try_fold(batch, |n, part| n.checked_mul(*part))
            .unwrap_or(usize::MAX);
        length("queries", elements, expected)?;
        let positions = match &settings.firsts {
            Firsts::None => &[],
            Firsts::One(first) => core::slice::from_ref(first),
            Firsts::Each(firsts) => firsts.as_slice(),
        };
        let max = u64::from(u32::MAX).saturating_sub(tokens as u64);
        if let Some(first) = positions.iter().find(|first| u64::from(**first) > max) {
            let got = u64::from(*first);
            return Err(Error::OutOfRange { argument: "causal", got, min: 0, max });
        }
        let causal = settings.firsts != Firsts::None;
        let window = settings.window.map(|window| check_window(window, causal)).transpose()?;
        let cap = settings.soft_cap.map(check_cap).transpose()?;
        let cap = cap.map(|cap| {
            let cap = f64::from(cap) * core::f64::consts::LOG2_E;
            Cap { cap: cap as f32, inverse: (1.0 / cap) as f32 }
        });
        let scale = scale_for(settings.scale, head_dim_k)?;
        let scale = f64::from(scale) * core::f64::consts::LOG2_E;
        let size = (scale as f32).abs();
        // The exponent of an f32 read off its bits; a scale of 0 leaves nothing to limit.
        let exponent = if size == 0.0 { 0 } else { (size.to_bits() >> 23) as i32 - 127 };
        Ok(Self {
            kv_rows,
            kv_heads,
            per_row: heads / kv_heads * tokens,
            tokens,
            head_dim_k,
            head_dim_v,
            scale: scale as f32,
            limit: LOGIT_EXPONENT - 1 - exponent,
            cap,
            firsts: settings.firsts,
            window: window.unwrap_or(u32::MAX),
        })
    }

    /// Whether positions matter.
    pub(crate) fn causal(&self) -> bool {
        self.firsts != Firsts::None
    }

    /// Positions that a query sees, given its row and its number within the row; `None` where it
    /// sees all.
    pub(crate) fn sight(&self, row: usize, query: usize) -> Option<RangeInclusive<u32>> {
        let first = match &self.firsts {
            Firsts::None => return None,
            Firsts::One(first) => *first,
            Firsts::Each(firsts) => firsts[row / self.kv_heads],
        };
        let last = first + (query % self.tokens) as u32;
        Some(last.saturating_sub(self.window - 1)..=last)
    }

    /// All queries.
    pub(crate) fn queries(&self) -> usize {
        self.kv_rows * self.per_row
    }
}
