//! Arithmetic that both paths share: which queries read which row, and the scale of logits.

use super::config::AttendConfig;
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

/// Shape of an attention and how its logits are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) kv_rows: usize,
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
    pub(crate) causal: Option<u32>,
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
        head_dim_k: usize,
        head_dim_v: usize,
        queries: QueryShape,
        elements: usize,
        config: &AttendConfig,
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
        if let Some(first) = config.causal {
            let max = u64::from(u32::MAX).saturating_sub(tokens as u64);
            if u64::from(first) > max {
                let got = u64::from(first);
                return Err(Error::OutOfRange { argument: "causal", got, min: 0, max });
            }
        }
        let scale = f64::from(config.scale_for(head_dim_k)?) * core::f64::consts::LOG2_E;
        let size = (scale as f32).abs();
        // The exponent of an f32 read off its bits; a scale of 0 leaves nothing to limit.
        let exponent = if size == 0.0 { 0 } else { (size.to_bits() >> 23) as i32 - 127 };
        Ok(Self {
            kv_rows,
            per_row: heads / kv_heads * tokens,
            tokens,
            head_dim_k,
            head_dim_v,
            scale: scale as f32,
            limit: LOGIT_EXPONENT - 1 - exponent,
            causal: config.causal,
        })
    }

    /// Last position that a query sees, given its number within its row.
    pub(crate) fn limit_of(&self, query: usize) -> Option<u32> {
        self.causal.map(|first| first + (query % self.tokens) as u32)
    }

    /// All queries.
    pub(crate) fn queries(&self) -> usize {
        self.kv_rows * self.per_row
    }
}
