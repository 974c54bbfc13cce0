//! The score as a whole.

use super::{anchor, anomaly, blend, gate, mean, norm, spread, surprise};
use crate::error::{Error, Result};
use crate::gpu::{DeviceTensor, Recorder, Slice, binding_limit};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::plan::{PIECE_TOKENS, SHORT_SUM, block_size_for};

/// Scores on the device: [`crate::nestedkv::cpu::Scores`].
#[derive(Clone, Debug)]
pub struct DeviceScores {
    /// `[rows, tokens]` f32, in `[0, 1]`, or -1 for a key row that holds NaN or Inf.
    pub score: wgpu::Buffer,
    /// Stable, episodic and current scores, `[3, rows, tokens]` f32.
    pub scales: wgpu::Buffer,
    /// Weighted sums of the three, `[rows, tokens]` f32.
    pub blend: wgpu::Buffer,
    /// Factors of the key rows, `[rows, tokens]` f32: negative where a row holds NaN or Inf.
    pub factors: wgpu::Buffer,
}

/// Records the scores of keys.
///
/// # Errors
/// As [`ScoreConfig::validate`]; [`Error::DeviceLimit`] when the keys or a part of the score exceed
/// what the device can bind.
pub fn score(
    rec: &mut Recorder<'_>,
    keys: &DeviceTensor<'_>,
    cfg: &ScoreConfig,
) -> Result<DeviceScores> {
    cfg.validate()?;
    let (rows, tokens) = (keys.rows(), keys.tokens());
    check_limits(rec, keys)?;
    let block = block_size_for(tokens);
    let window = tokens.min(cfg.window as usize);
    let factors = norm::record(rec, keys)?;
    let factors_slice = Slice::all(&factors);
    let blocks = anchor::record(rec, keys, factors_slice, block)?;
    let pieces = if window > SHORT_SUM {
        Some(anchor::record(rec, keys, factors_slice, PIECE_TOKENS)?)
    } else {
        None
    };
    let block_count = tokens.div_ceil(block);
    let means = mean::record(rec, Slice::all(&blocks), rows, block_count, keys.head_dim(), tokens)?;
    let anchors = anomaly::Anchors {
        factors: factors_slice,
        means: Slice::all(&means),
        blocks: Slice::all(&blocks),
        block,
        pieces: pieces.as_ref().map(Slice::all),
        window,
    };
    let scales = anomaly::record(rec, keys, &anchors)?;
    let spreads = spread::record(rec, Slice::all(&scales), 3 * rows, tokens)?;
    let [blend, deviations] =
        blend::record(rec, Slice::all(&scales), Slice::all(&spreads), rows, tokens, cfg)?;
    let surprises = surprise::record(rec, Slice::all(&deviations), rows, tokens)?;
    let parts = gate::Parts {
        factors: factors_slice,
        scales: Slice::all(&scales),
        blends: Slice::all(&blend),
        deviations: Slice::all(&deviations),
        surprises: Slice::all(&surprises),
    };
    let score = gate::record(rec, &parts, rows, tokens, cfg)?;
    Ok(DeviceScores { score, scales, blend, factors })
}

/// Refuses before anything is recorded what a later stage could not bind: the largest are the keys
/// and the three scores of every token.
pub(crate) fn check_limits(rec: &Recorder<'_>, keys: &DeviceTensor<'_>) -> Result<()> {
    let limits = rec.context().device().limits();
    let allowed = binding_limit(&limits).min(limits.max_buffer_size);
    let scales = 12 * (keys.rows() * keys.tokens()) as u64;
    for (argument, needed) in [("keys", keys.slice().size), ("scales", scales)] {
        if needed > allowed {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::DeviceLimit { argument, limit, needed, allowed });
        }
    }
    Ok(())
}
