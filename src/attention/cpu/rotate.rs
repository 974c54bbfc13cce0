//! Prepares queries: brings each to a fixed size by a power of two and makes `H q` of it, and with key
//! scales `H` of the scaled one.

use core::ops::Range;

use half::f16;

use super::math::{power, soft_cap, times_power};
use super::{BLOCK, TILE};
use crate::attention::plan::{Cap, MIN_EXPONENT, Plan, QUERY_EXPONENT, UNSEEN};
use crate::nsnquant::Codec;
use crate::primitives::parallel::map;
use crate::shape::Elements;

/// How the dot products of one query become logits to base 2: limited to ±`limit`, then times
/// `factor`, then times `boost`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// Limit of a dot product.
    pub limit: f32,
    /// First factor.
    pub factor: f32,
    /// Second factor, a power of two: both together may be beyond f32.
    pub boost: f32,
    /// What bends the logit.
    pub cap: Option<Cap>,
}

impl Scale {
    /// The logit of a dot product.
    pub(super) fn logit(&self, dot: f32) -> f32 {
        let logit = dot.clamp(-self.limit, self.limit) * self.factor * self.boost;
        self.cap.map_or(logit, |Cap { cap, inverse }| soft_cap(logit, cap, inverse))
    }
}

/// Queries ready for use.
pub(super) struct Prepared {
    plain: Vec<f32>,
    rotated: Vec<f32>,
    scaled: Option<Vec<f32>>,
    scales: Vec<Scale>,
}

/// Queries of one block.
pub(super) struct Block<'a> {
    /// Their row.
    pub(super) row: usize,
    /// Number within the row of each query.
    pub(super) queries: Range<usize>,
    /// The queries `[queries, head_dim_k]`.
    pub(super) plain: &'a [f32],
    /// `H q` of each, `[queries, head_dim_k]`; empty where nothing is packed.
    pub(super) rotated: &'a [f32],
    /// What meets the centroids of keys: `H` of each times the row's key scale where there is one,
    /// else `rotated`.
    pub(super) shown: &'a [f32],
    /// How their dot products become logits.
    pub(super) scales: &'a [Scale],
}

impl Prepared {
    /// The queries of a row in a range.
    pub(super) fn block(&self, plan: &Plan, row: usize, queries: Range<usize>) -> Block<'_> {
        let all = row * plan.per_row + queries.start..row * plan.per_row + queries.end;
        let values = all.start * plan.head_dim_k..all.end * plan.head_dim_k;
        let part = |all: &'_ Vec<f32>| if all.is_empty() { 0..0 } else { values.clone() };
        let shown = self.scaled.as_ref().unwrap_or(&self.rotated);
        Block {
            row,
            queries,
            plain: &self.plain[values.clone()],
            rotated: &self.rotated[part(&self.rotated)],
            shown: &shown[part(shown)],
            scales: &self.scales[all],
        }
    }
}

impl Block<'_> {
    /// The logits of a tile from its dot products `[queries][tokens]`, in their place; `UNSEEN`
    /// where a query does not see a token.
    pub(super) fn logits(
        &self,
        plan: &Plan,
        dots: &mut [[f32; TILE]; BLOCK],
        positions: &[u32],
        tokens: usize,
    ) {
        for (query, dots) in dots[..self.scales.len()].iter_mut().enumerate() {
            let sight = plan.sight(self.row, self.queries.start + query);
            let scale = &self.scales[query];
            for (token, dot) in dots[..tokens].iter_mut().enumerate() {
                let seen = sight.as_ref().is_none_or(|sight| sight.contains(&positions[token]));
                *dot = if seen { scale.logit(*dot) } else { UNSEEN };
            }
        }
    }

    /// Whether any query may see tokens whose positions ascend from a first to a last.
    pub(super) fn reaches(&self, plan: &Plan, positions: &[u32]) -> bool {
        let (Some(first), Some(last)) = (positions.first(), positions.last()) else {
            return !plan.causal();
        };
        self.queries.clone().any(|query| {
            let sight = plan.sight(self.row, query);
            sight.is_none_or(|sight| first <= sight.end() && last >= sight.start())
        })
    }
}

/// Prepares all queries; `H q` is made where there is a codec. `key_scales` are those of the rows
/// `[kv_rows, head_dim_k]`.
pub(super) fn prepare(
    plan: &Plan,
    data: Elements<'_>,
    codec: Option<&Codec>,
    key_scales: Option<&[f16]>,
) -> Prepared {
    let key_scales = key_scales.filter(|_| codec.is_some());
    let dim = plan.head_dim_k;
    let rows = map((0..plan.queries()).collect(), |query| {
        let mut plain = vec![0.0; dim];
        data.read(query * dim, &mut plain);
        let exponent = plain
            .iter()
            .fold(MIN_EXPONENT, |top, x| top.max((x.to_bits() >> 23 & 255) as i32 - 127));
        for x in &mut plain {
            *x = times_power(*x, QUERY_EXPONENT - exponent);
        }
        let (mut rotated, mut scaled) = (Vec::new(), Vec::new());
        if let Some(codec) = codec {
            rotated.clone_from(&plain);
            codec.hadamard().forward(&mut rotated);
            if let Some(key_scales) = key_scales {
                let own = &key_scales[query / plan.per_row * dim..][..dim];
                scaled.extend(plain.iter().zip(own).map(|(x, factor)| x * factor.to_f32()));
                codec.hadamard().forward(&mut scaled);
            }
        }
        (plain, rotated, scaled, scale(plan, exponent))
    });
    let mut prepared = Prepared {
        plain: Vec::with_capacity(plan.queries() * dim),
        rotated: Vec::new(),
        scaled: key_scales.map(|_| Vec::new()),
        scales: Vec::with_capacity(plan.queries()),
    };
    for (plain, rotated, scaled, scale) in rows {
        prepared.plain.extend(plain);
        prepared.rotated.extend(rotated);
        if let Some(all) = &mut prepared.scaled {
            all.extend(scaled);
        }
        prepared.scales.push(scale);
    }
    prepared
}

/// The scale for a query whose largest element has an exponent.
fn scale(plan: &Plan, exponent: i32) -> Scale {
    let lost = exponent - QUERY_EXPONENT;
    let boosted = lost > 60;
    Scale {
        limit: power((plan.limit - lost).clamp(-126, 126)),
        factor: plan.scale * power(if boosted { lost - 64 } else { lost }),
        boost: if boosted { power(64) } else { 1.0 },
        cap: plan.cap,
    }
}
