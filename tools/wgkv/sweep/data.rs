//! The data of a shape, and what the CPU path makes of it.

use half::f16;
use rayon::prelude::*;
use wgkv::attention::{AttendConfig, CacheView, PackedView, Queries, cpu as attention};
use wgkv::nestedkv::{Budget, EvictConfig, cpu as nestedkv};
use wgkv::nsnquant::{Codebook, Codec, cpu as nsnquant};
use wgkv::primitives::cpu::{compact, select};
use wgkv::primitives::order::order_key;
use wgkv::shape::{Elements, Tensor};

use super::case::{Case, Method, Shape};
use super::pages::HostPages;
use crate::file::{Fail, room};

/// Keys, values and queries.
pub struct Data {
    pub shape: Shape,
    pub keys: Vec<f16>,
    pub values: Vec<f16>,
}

/// Reproducible elements, roughly normal; an error where there is no memory for them.
fn noise(count: usize, seed: u64) -> Result<Vec<f16>, Fail> {
    let mut elements = room(count).map_err(|_| no_memory(count))?;
    elements.resize(count, f16::ZERO);
    elements.par_chunks_mut(1 << 16).enumerate().for_each(|(at, part)| {
        let mut state = ((at as u64) << 8 | seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for element in part {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let parts = [state >> 48, state >> 32 & 0xffff, state >> 16 & 0xffff];
            *element = f16::from_f32(parts.iter().sum::<u64>() as f32 / 32768.0 - 3.0);
        }
    });
    Ok(elements)
}

fn no_memory(count: usize) -> Fail {
    Fail::input(format!("a shape of {count} elements does not fit in memory"))
}

impl Data {
    pub fn new(shape: Shape) -> Result<Self, Fail> {
        let count = shape.elements();
        // Only a trial, before anything is filled: two more of each for copies and answers.
        room::<[f16; 6]>(count).map_err(|_| no_memory(count))?;
        Ok(Self { shape, keys: noise(count, 1)?, values: noise(count, 2)? })
    }

    fn tensor<'a>(&self, name: &'static str, data: &'a [f16]) -> Result<Tensor<'a>, Fail> {
        let Shape { tokens, dim, .. } = self.shape;
        Ok(Tensor::new(name, Elements::F16(data), self.shape.rows(), tokens, dim)?)
    }

    /// Queries of `group` heads a KV head.
    pub fn queries(&self, group: usize) -> Result<Vec<f16>, Fail> {
        noise(self.shape.rows() * group * self.shape.dim, 3)
    }
}

/// The selection that a case asks for.
pub fn eviction(case: &Case) -> EvictConfig {
    let kept = case.kept.unwrap_or(0) as u32;
    EvictConfig::new(match case.adaptive {
        Some(true) => Budget::Adaptive { per_head: kept, heads: case.shape.heads },
        _ => Budget::Uniform(kept),
    })
}

/// The codecs of keys and values that a case asks for.
pub fn codecs(case: &Case) -> Result<[Codec; 2], Fail> {
    let packing = case.pages_of.ok_or_else(|| Fail::input("no bits"))?;
    let codec = |layout| Codec::new(layout, Codebook::builtin());
    Ok([codec(packing.keys)?, codec(packing.values)?])
}

/// First token row of every page, row after row.
pub fn starts(case: &Case) -> Vec<u32> {
    let chunk = case.pages_of.map_or(1, |packing| packing.keys.chunk());
    let tokens = case.shape.tokens;
    (0..case.shape.rows())
        .flat_map(|row| (0..tokens / chunk).map(move |page| (row * tokens + page * chunk) as u32))
        .collect()
}

/// `count` items a row.
pub fn offsets(rows: usize, count: usize) -> Vec<u32> {
    (0..=rows).map(|row| (row * count) as u32).collect()
}

/// A result of the CPU path.
pub enum Answer {
    Reals(Vec<f32>),
    Words(Vec<u32>),
}

/// What stages before a case would hand to it.
pub enum Before {
    Nothing,
    Scores(Vec<f32>),
    Packed(Box<[Codec; 2]>, [Vec<u32>; 2]),
    Paged(Box<HostPages>),
}

/// Runs the stages before a case.
pub fn before(data: &Data, case: &Case) -> Result<Before, Fail> {
    Ok(match case.method {
        Method::Select | Method::Compact | Method::Keep => {
            let keys = data.tensor("keys", &data.keys)?;
            Before::Scores(nestedkv::score_batched(&keys, &Default::default())?.score)
        }
        Method::AttendPacked => {
            let codecs = codecs(case)?;
            let starts = starts(case);
            let pack = |codec, data| nsnquant::encode(codec, Elements::F16(data), &starts);
            let pages = [pack(&codecs[0], &data.keys)?, pack(&codecs[1], &data.values)?];
            Before::Packed(Box::new(codecs), pages)
        }
        Method::AttendPaged => Before::Paged(Box::new(HostPages::new(data, case)?)),
        _ => Before::Nothing,
    })
}

/// Runs a case on the CPU.
pub fn run(data: &Data, case: &Case, before: &Before) -> Result<Answer, Fail> {
    let Shape { batch, heads, dim, tokens } = case.shape;
    let rows = case.shape.rows();
    let keys = data.tensor("keys", &data.keys)?;
    Ok(match (case.method, before) {
        (Method::Score, _) => {
            Answer::Reals(nestedkv::score_batched(&keys, &Default::default())?.score)
        }
        (Method::Select | Method::Compact, Before::Scores(scores)) => {
            let kept = case.kept.unwrap_or(0);
            let mut words = Vec::new();
            for row in scores.chunks(tokens) {
                let keys: Vec<u32> = row.iter().map(|&score| order_key(score)).collect();
                let found = select::threshold(&keys, kept);
                if case.method == Method::Select {
                    words.extend([found.key, found.ties, found.equal, found.above]);
                } else {
                    let mut positions = vec![0; kept];
                    compact::compact(&keys, found, &mut positions);
                    words.extend(positions);
                }
            }
            Answer::Words(words)
        }
        (Method::Keep, Before::Scores(scores)) => {
            Answer::Words(nestedkv::keep(scores, rows, tokens, &eviction(case))?.positions)
        }
        (Method::Evict, _) => {
            let values = data.tensor("values", &data.values)?;
            let evicted = nestedkv::compress_prefill(&keys, &values, &eviction(case))?;
            Answer::Words(evicted.kept.positions)
        }
        (Method::Encode, _) => {
            let [codec, _] = codecs(case)?;
            Answer::Words(nsnquant::encode(&codec, Elements::F16(&data.keys), &starts(case))?)
        }
        (Method::AttendRaw | Method::AttendPacked | Method::AttendPaged, before) => {
            let group = case.group.unwrap_or(1);
            let queries = data.queries(group)?;
            let queries = Queries {
                data: Elements::F16(&queries),
                batch,
                heads: heads * group,
                tokens: 1,
                head_dim: dim,
            };
            if let Before::Paged(pages) = before {
                return pages.attend(&queries).map(Answer::Reals);
            }
            let pages = case.pages() / rows.max(1);
            let page_offsets = offsets(rows, pages);
            let packed = match before {
                Before::Packed(codecs, [key_pages, value_pages]) => Some(PackedView {
                    keys: &codecs[0],
                    values: &codecs[1],
                    page_offsets: &page_offsets,
                    key_pages,
                    value_pages,
                    page_positions: &[],
                    key_scales: None,
                }),
                _ => None,
            };
            let raw = if packed.is_some() { 0 } else { tokens };
            let view = CacheView {
                kv_rows: rows,
                head_dim_k: dim,
                head_dim_v: dim,
                raw_offsets: &offsets(rows, raw),
                raw_keys: Elements::F16(&data.keys[..rows * raw * dim]),
                raw_values: Elements::F16(&data.values[..rows * raw * dim]),
                raw_positions: &[],
                packed,
            };
            Answer::Reals(attention::attend(&view, &queries, &AttendConfig::default())?.out)
        }
        _ => return Err(Fail::input("a stage before is missing")),
    })
}

/// How far two answers to a case lie apart, and how far they may: for scores the largest difference,
/// for words the share of them that differs, for attention the relative root mean square, more of it where
/// integers are multiplied.
pub fn apart(case: &Case, got: &Answer, want: &Answer, integers: bool) -> (f64, f64) {
    match (got, want) {
        (Answer::Reals(got), Answer::Reals(want)) if got.len() == want.len() => {
            let both = || got.iter().zip(want).map(|(a, b)| (f64::from(*a), f64::from(*b)));
            if case.method == Method::Score {
                // The surprise is stretched by the spread of the deviations, which takes digits.
                return (both().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max), 2e-4);
            }
            let error = both().map(|(a, b)| (a - b).powi(2)).sum::<f64>();
            let size = both().map(|(_, b)| b.powi(2)).sum::<f64>();
            // Keys and values are packed on each path, and a code whose distances are nearly equal may go
            // either way: then one piece of one token differs by up to the norm of a piece, which is up
            // to 4 / sqrt(elements) of the outputs.
            let codes = match case.method {
                Method::AttendRaw => 0.0,
                _ => 4.0 / (case.shape.elements() as f64).sqrt(),
            };
            // Values at random nearly cancel, and what rounds their weights does not.
            let rounded = if integers { 6e-2 } else { 2e-3 };
            ((error / size.max(f64::MIN_POSITIVE)).sqrt(), rounded + codes)
        }
        (Answer::Words(got), Answer::Words(want)) if got.len() == want.len() => {
            let differ = match case.method {
                // One other choice moves all that follow.
                Method::Evict => apart_as_sets(got, want),
                _ => got.iter().zip(want).filter(|(a, b)| a != b).count(),
            };
            // Codes and choices whose distances or scores are nearly equal may go either way.
            let allowed = if case.method == Method::Encode { 0.02 } else { 0.01 };
            let exact = matches!(case.method, Method::Select | Method::Compact | Method::Keep);
            let allowed = if exact { 0.0 } else { allowed };
            (differ as f64 / got.len().max(1) as f64, allowed)
        }
        _ => (f64::INFINITY, 0.0),
    }
}

/// Members of one list that the other lacks.
fn apart_as_sets(got: &[u32], want: &[u32]) -> usize {
    let (mut got, mut want) = (got.to_vec(), want.to_vec());
    got.sort_unstable();
    want.sort_unstable();
    let (mut at, mut common) = (0, 0);
    for x in &got {
        while at < want.len() && want[at] < *x {
            at += 1;
        }
        if want.get(at) == Some(x) {
            at += 1;
            common += 1;
        }
    }
    got.len() - common
}
