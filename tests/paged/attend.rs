//! Attention on a paged cache beside its definition in f64.

use wgkv::Error;
use wgkv::attention::{Causal, PagedAttend};
use wgkv::shape::Dtype;

use crate::model::{Data, Noise};
use crate::twin::Twin;
use crate::world::World;

/// What is asked of attention.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Seeds of the queries of each member, repeated over the members.
    pub seeds: Vec<u64>,
    /// Query heads a KV head.
    pub group: usize,
    /// Query tokens.
    pub tokens: usize,
    pub dtype: Dtype,
    pub scale: Option<f32>,
    pub soft_cap: Option<f32>,
    pub window: Option<u32>,
    /// Whether every query sees all keys.
    pub all: bool,
    /// Positions of the first query tokens, repeated over the members; the newest where none are
    /// given.
    pub first: Option<Vec<u32>>,
}

impl Ask {
    /// So many of the newest tokens, by a group of two query heads.
    pub fn newest(tokens: usize, seeds: &[u64]) -> Self {
        Self {
            seeds: seeds.to_vec(),
            group: 2,
            tokens,
            dtype: Dtype::F32,
            scale: None,
            soft_cap: None,
            window: None,
            all: false,
            first: None,
        }
    }

    /// As the library takes it, for a batch of so many members.
    pub fn with<T>(&self, members: usize, work: impl FnOnce(&PagedAttend<'_>) -> T) -> T {
        let first = self.first.iter().flatten().copied().cycle().take(members);
        let first: Vec<u32> = first.collect();
        let causal = match &self.first {
            _ if self.all => Causal::All,
            None => Causal::Newest,
            Some(_) => Causal::From(&first),
        };
        let Self { scale, soft_cap, window, .. } = *self;
        work(&PagedAttend { scale, causal, soft_cap, window })
    }

    fn sees(&self, stands: i64, position: u32) -> bool {
        let position = i64::from(position);
        let within = self.window.is_none_or(|window| stands - position < i64::from(window));
        self.all || position <= stands && within
    }
}

impl World {
    /// Attends to a batch and checks outputs and logs; returns those of the host, and of the device.
    pub fn attend(&mut self, chosen: &[u8], layer: usize, ask: &Ask) -> Vec<(Vec<f32>, Vec<f32>)> {
        let (places, ids) = self.members(chosen);
        if ids.is_empty() {
            return Vec::new();
        }
        let heads = self.shape.heads * ask.group;
        let [dk, dv] = self.dims;
        let of = |member: usize| {
            let mut noise = Noise::new(ask.seeds[member % ask.seeds.len()]);
            (0..heads * ask.tokens * dk).map(|_| noise.next()).collect::<Vec<f32>>()
        };
        let queries: Vec<f32> = (0..ids.len()).flat_map(of).collect();
        let queries = Data::new(ask.dtype, &queries);
        let newest = ask.first.is_none() && !ask.all;
        if newest && places.iter().any(|place| (self.live[*place].1.seen as usize) < ask.tokens) {
            // There are no such newest tokens.
            let asked = self.on_both(|twin| twin.attend(&ids, layer, ask, &queries).map(drop));
            assert!(matches!(asked, Err(Error::OutOfRange { argument: "query tokens", .. })));
            return Vec::new();
        }
        let asked = |twin: &mut dyn Twin| twin.attend(&ids, layer, ask, &queries);
        let mut results = vec![asked(&mut self.host).unwrap()];
        if let Some(device) = &mut self.device {
            results.push(asked(device).unwrap());
        }
        let queries = queries.floats();
        for (member, place) in places.into_iter().enumerate() {
            let next = self.live[place].1.seen;
            let first = ask.first.as_ref().map_or_else(
                || i64::from(next) - ask.tokens as i64,
                |first| i64::from(first[member % first.len()]),
            );
            for kv in 0..self.shape.heads {
                let head = self.head(place, layer, kv).clone();
                let [keys, values] =
                    [0, 1].map(|side| self.contents.read(&self.shape, &head, side));
                let largest = values.iter().fold(1.0, |top: f32, x| top.max(x.abs()));
                let positions: Vec<u32> = head.rows.iter().map(|row| row.position).collect();
                let of = (member * heads + kv * ask.group) * ask.tokens;
                for at in of..of + ask.group * ask.tokens {
                    let query = &queries[at * dk..(at + 1) * dk];
                    let stands = first + (at % ask.tokens) as i64;
                    let seen = |position: u32| ask.sees(stands, position);
                    let expected = attended(query, &keys, &values, &positions, dv, ask, &seen);
                    for (twin, (out, lse)) in results.iter().enumerate() {
                        let out = &out[at * dv..(at + 1) * dv];
                        let error = distance(out, lse[at], &expected) / f64::from(largest);
                        if error >= 1e-3 {
                            // A device may have packed a row with another code.
                            assert!(twin == 1 && error < 0.3, "{out:?}, not {expected:?}");
                            self.pages.close += 1;
                        }
                    }
                }
            }
        }
        results
    }
}

/// How far an answer is from what it must be, for values of size 1.
fn distance(out: &[f32], lse: f32, expected: &(Vec<f64>, f64)) -> f64 {
    if expected.1 == f64::from(wgkv::attention::NO_KEY) {
        assert!(out.iter().all(|x| *x == 0.0) && lse == wgkv::attention::NO_KEY);
        return 0.0;
    }
    let far = out.iter().zip(&expected.0).map(|(a, b)| (f64::from(*a) - b).abs());
    let log = (f64::from(lse) - expected.1).abs() / (1.0 + expected.1.abs());
    far.fold(log, f64::max)
}

/// Attention of one query in f64, from its definition.
fn attended(
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    positions: &[u32],
    dv: usize,
    ask: &Ask,
    seen: &dyn Fn(u32) -> bool,
) -> (Vec<f64>, f64) {
    let dk = query.len();
    let scale = ask.scale.map_or(1.0 / (dk as f64).sqrt(), f64::from);
    let logit = |at: usize| {
        let key = &keys[at * dk..(at + 1) * dk];
        let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let bent = |cap: f32| f64::from(cap) * (dot * scale / f64::from(cap)).tanh();
        ask.soft_cap.map_or(dot * scale, bent)
    };
    let held = (0..positions.len()).filter(|at| seen(positions[*at]));
    let logits: Vec<(usize, f64)> = held.map(|at| (at, logit(at))).collect();
    let mut out = vec![0.0; dv];
    if logits.is_empty() {
        return (out, f64::from(wgkv::attention::NO_KEY));
    }
    let top = logits.iter().fold(f64::MIN, |top, logit| top.max(logit.1));
    let sum: f64 = logits.iter().map(|logit| (logit.1 - top).exp()).sum();
    for (at, logit) in logits {
        let weight = (logit - top).exp() / sum;
        let value = &values[at * dv..(at + 1) * dv];
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * f64::from(*value));
    }
    (out, top + sum.ln())
}
