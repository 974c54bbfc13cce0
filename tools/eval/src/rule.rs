//! Which rows of a prompt stay.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use wgkv::nestedkv::cpu::{keep, score_batched};
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig};
use wgkv::shape::{Elements, Tensor};

use crate::model::Shape;

/// How rows are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The library's scores (NestedKV, arXiv 2605.26678).
    Nested { adaptive: bool, plain: bool },
    /// Keys that are least like the mean direction (KeyDiff, arXiv 2504.15364).
    KeyDiff { plain: bool },
    /// The newest.
    Recent,
    /// Any; as many a head as the adaptive budgets of NestedKV or equally many.
    Random { budgets: bool },
}

/// A rule and the share of the prompt that stays.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    name: String,
    kind: Kind,
    share: f64,
    /// First rows, which always stay.
    sinks: u32,
    score: ScoreConfig,
    safeguard: f64,
    /// Of random rows.
    seed: u64,
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.name, self.share)
    }
}

/// Names of rules.
pub const RULES: &str = "nested, nested-adaptive, keydiff, recent, random, random-budgets; after \
    nested, nested-adaptive and keydiff also -plain: by keys before their rotary embedding; after \
    nested and nested-adaptive also -rectify; constants behind a colon, as in \
    nested:tau=0.8,window=32 (window, beta, tau, kappa, stable, episodic, current, safeguard, seed)";

impl Rule {
    /// The rule of a name.
    ///
    /// # Errors
    /// For other names and shares outside 0 to 1.
    pub fn parse(name: &str, share: f64, sinks: usize) -> Result<Self> {
        ensure!(share > 0.0 && share <= 1.0, "a share above 0, at most 1, not {share}");
        let (full, (name, constants)) = (name, name.split_once(':').unwrap_or((name, "")));
        let (rest, rectify) = match name.strip_suffix("-rectify") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let (rest, plain) = match rest.strip_suffix("-plain") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let kind = match rest {
            "nested" => Kind::Nested { adaptive: false, plain },
            "nested-adaptive" => Kind::Nested { adaptive: true, plain },
            "keydiff" if !rectify => Kind::KeyDiff { plain },
            "recent" if rest == name => Kind::Recent,
            "random" if rest == name => Kind::Random { budgets: false },
            "random-budgets" if rest == name => Kind::Random { budgets: true },
            _ => bail!("no rule {name}: {RULES}"),
        };
        let sinks = u32::try_from(sinks)?;
        let score = ScoreConfig { rectify, ..ScoreConfig::default() };
        let mut rule =
            Self { name: full.into(), kind, share, sinks, score, safeguard: 0.2, seed: 0 };
        for constant in constants.split(',').filter(|constant| !constant.is_empty()) {
            let named =
                constant.split_once('=').with_context(|| format!("no value: {constant}"))?;
            let score = &mut rule.score;
            match named {
                ("window", value) => score.window = value.parse()?,
                ("beta", value) => score.beta = value.parse()?,
                ("tau", value) => score.tau = value.parse()?,
                ("kappa", value) => score.kappa = value.parse()?,
                ("stable", value) => score.prior[0] = value.parse()?,
                ("episodic", value) => score.prior[1] = value.parse()?,
                ("current", value) => score.prior[2] = value.parse()?,
                ("safeguard", value) => rule.safeguard = value.parse()?,
                ("seed", value) => rule.seed = value.parse()?,
                _ => bail!("no constant {constant}: {RULES}"),
            }
        }
        Ok(rule)
    }

    /// The positions that stay of each head, ascending, sinks included. Keys of one layer
    /// `[kv_heads, tokens, head_dim]`, after and before their rotary embedding; `seed` differs between
    /// layers.
    ///
    /// # Errors
    /// Those of the library.
    pub fn kept(
        &self,
        shape: &Shape,
        turned: &[f32],
        plain: &[f32],
        seed: u64,
    ) -> Result<Vec<Vec<u32>>> {
        let heads = shape.kv_heads;
        let tokens = turned.len() / heads / shape.head_dim;
        let most = ((self.share * tokens as f64) as u32).max(self.sinks);
        let config = |budget| EvictConfig {
            score: self.score,
            sinks: self.sinks,
            safeguard: self.safeguard,
            ..EvictConfig::new(budget)
        };
        let uniform = Budget::Uniform(most);
        let adaptive = Budget::Adaptive { per_head: most, heads };
        let select = |scores: &[f32], config: &EvictConfig| -> Result<Vec<Vec<u32>>> {
            let kept = keep(scores, scores.len() / tokens, tokens, config)?;
            let rows = kept.offsets.windows(2);
            Ok(rows.map(|w| kept.positions[w[0] as usize..w[1] as usize].to_vec()).collect())
        };
        let nested = |keys: &[f32], config: &EvictConfig| -> Result<Vec<Vec<u32>>> {
            let keys = Tensor::new("keys", Elements::F32(keys), heads, tokens, shape.head_dim)?;
            select(&score_batched(&keys, &config.score)?.score, config)
        };
        let of = |before: bool| if before { plain } else { turned };
        match self.kind {
            Kind::Nested { adaptive: shares, plain } => {
                let budget = if shares { adaptive } else { uniform };
                nested(of(plain), &config(budget))
            }
            Kind::KeyDiff { plain } => {
                let rows = tokens * shape.head_dim;
                let scores: Vec<f32> = of(plain)
                    .chunks_exact(rows)
                    .flat_map(|keys| unlikeness(keys, shape.head_dim))
                    .collect();
                select(&scores, &config(uniform))
            }
            Kind::Recent => {
                let scores: Vec<f32> = (0..heads * tokens).map(|at| (at % tokens) as f32).collect();
                select(&scores, &config(uniform))
            }
            Kind::Random { budgets } => {
                let counts: Vec<u32> = if budgets {
                    let kept = nested(turned, &config(adaptive))?;
                    kept.iter().map(|positions| positions.len() as u32).collect()
                } else {
                    vec![most; heads]
                };
                let mut kept = Vec::new();
                for (head, count) in (0..).zip(counts) {
                    let scores = random((self.seed << 32) + seed * heads as u64 + head, tokens);
                    let config = config(Budget::Uniform(count));
                    kept.push(select(&scores, &config)?.pop().context("a row")?);
                }
                Ok(kept)
            }
        }
    }
}

/// By how much each key differs in direction from the mean direction.
fn unlikeness(keys: &[f32], head_dim: usize) -> Vec<f32> {
    let norm = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    let mut mean = vec![0.0; head_dim];
    for row in keys.chunks_exact(head_dim) {
        let size = norm(row);
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x / size);
    }
    let size = norm(&mean);
    let like = |row: &[f32]| {
        let dot = row.iter().zip(&mean).map(|(a, b)| a * b).sum::<f32>();
        dot / norm(row) / size
    };
    keys.chunks_exact(head_dim).map(|row| -like(row)).collect()
}

/// Numbers from 0 to 1 (splitmix64).
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0xA076_1D64_78BD_642F);
    let mut draw = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| draw()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_their_share() {
        let shape = Shape {
            layers: 1,
            width: 64,
            inner: 64,
            heads: 2,
            kv_heads: 2,
            head_dim: 32,
            vocabulary: 4,
            rope_base: 1e4,
            pairs: None,
            epsilon: 1e-5,
        };
        let keys = random(3, 2 * 80 * 32);
        let names =
            ["nested", "nested-adaptive-plain-rectify", "keydiff-plain", "recent", "random"];
        for name in names.into_iter().chain(["random-budgets"]) {
            let rule = Rule::parse(name, 0.5, 4).unwrap();
            let kept = rule.kept(&shape, &keys, &keys, 1).unwrap();
            assert_eq!(kept.iter().map(Vec::len).sum::<usize>(), 80, "{name}");
            for head in &kept {
                assert_eq!(head[..4], [0, 1, 2, 3], "{name}");
                assert!(head.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
            }
        }
        let rule = Rule::parse("nested:tau=0.8,current=0.5,safeguard=0", 0.5, 4).unwrap();
        assert_eq!((rule.score.tau, rule.score.prior), (0.8, [0.4, 0.4, 0.5]));
        assert_eq!(rule.to_string(), "nested:tau=0.8,current=0.5,safeguard=0 0.5");
        for bad in [
            "nested:tau",
            "nested:tau=x",
            "nested:size=1",
            "",
            "recent-plain",
            "keydiff-rectify",
            "nested-rectify-plain",
            "adaptive",
        ] {
            assert!(Rule::parse(bad, 0.5, 4).is_err(), "{bad}");
        }
        assert!(Rule::parse("recent", 0.0, 4).is_err());
    }
}
