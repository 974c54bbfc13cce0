//! The jobs of the library on either path.

use half::f16;
use wgkv::attention::{self, AttendConfig, CacheView, Queries};
use wgkv::nestedkv::{self, EvictConfig, ScoreConfig};
use wgkv::nsnquant::{self, Codec, KeyScales};
use wgkv::shape::{Elements, Tensor};

use crate::device;
use crate::engine::Engine;
use crate::file::Fail;

/// Scores of keys and, where they are asked for, their parts; `[rows, tokens]` each.
#[derive(Debug, Default)]
pub struct Scored {
    pub score: Vec<f32>,
    /// Of the sequence, the block and the window, then their blend.
    pub parts: [Vec<f32>; 4],
}

/// Rows that stay, and where.
#[derive(Debug, Default)]
pub struct Kept {
    pub offsets: Vec<u32>,
    pub positions: Vec<u32>,
    /// Whether the budget was below the sinks, which stay all the same.
    pub sinks_only: bool,
}

impl Engine {
    /// Scores keys.
    pub fn score(&self, keys: &Tensor<'_>, config: &ScoreConfig) -> Result<Scored, Fail> {
        match self {
            Self::Cpu => {
                let scores = nestedkv::cpu::score_batched(keys, config)?;
                let [stable, episodic, current] = scores.scales;
                Ok(Scored { score: scores.score, parts: [stable, episodic, current, scores.blend] })
            }
            Self::Gpu(gpu) => device::score(gpu, keys, config),
        }
    }

    /// Selects by scores `[rows, tokens]`.
    pub fn keep(
        &self,
        scores: &[f32],
        rows: usize,
        tokens: usize,
        config: &EvictConfig,
    ) -> Result<Kept, Fail> {
        match self {
            Self::Cpu => {
                let kept = nestedkv::cpu::keep(scores, rows, tokens, config)?;
                let (offsets, positions) = (kept.offsets, kept.positions);
                Ok(Kept { offsets, positions, sinks_only: kept.sinks_only })
            }
            Self::Gpu(gpu) => device::keep(gpu, scores, rows, tokens, config),
        }
    }

    /// Copies the rows that stay, as f16.
    pub fn gather(&self, data: &Tensor<'_>, kept: &Kept) -> Result<Vec<f16>, Fail> {
        match self {
            Self::Cpu => {
                let kept = nestedkv::cpu::Kept {
                    offsets: kept.offsets.clone(),
                    positions: kept.positions.clone(),
                    sinks_only: kept.sinks_only,
                };
                Ok(nestedkv::cpu::gather(data, &kept)?)
            }
            Self::Gpu(gpu) => device::gather(gpu, data, kept),
        }
    }

    /// Packs the chunks that start at the token rows `starts`, ascending, under key scales if any; the
    /// rows stand at `positions`.
    pub fn encode(
        &self,
        codec: &Codec,
        data: Elements<'_>,
        positions: &[u32],
        starts: &[u32],
        scales: Option<&KeyScales<'_>>,
    ) -> Result<Vec<u32>, Fail> {
        match self {
            Self::Cpu => Ok(nsnquant::cpu::encode_at(codec, data, positions, starts, scales)?),
            Self::Gpu(gpu) => device::encode(gpu, codec, data, positions, starts, scales),
        }
    }

    /// Decodes pages, `[pages * chunk, D]`, that are under key scales if any and whose rows stand at
    /// `positions`.
    pub fn decode(
        &self,
        codec: &Codec,
        pages: &[u32],
        positions: &[u32],
        scales: Option<&KeyScales<'_>>,
    ) -> Result<Vec<f32>, Fail> {
        match self {
            Self::Cpu => Ok(nsnquant::cpu::decode_at(codec, pages, positions, scales)?),
            Self::Gpu(gpu) => device::decode(gpu, codec, pages, positions, scales),
        }
    }

    /// Attends; outputs `[B, Hq, Nq, D of the values]`.
    pub fn attend(
        &self,
        view: &CacheView<'_>,
        queries: &Queries<'_>,
        config: &AttendConfig,
    ) -> Result<Vec<f32>, Fail> {
        match self {
            Self::Cpu => Ok(attention::cpu::attend(view, queries, config)?.out),
            Self::Gpu(gpu) => device::attend(gpu, view, queries, config),
        }
    }
}
