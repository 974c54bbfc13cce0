//! The score as a whole.

use super::{anchor, anomaly, blend, gate, mean, spread};
use crate::error::{Error, Result};
use crate::gpu::{DeviceTensor, Recorder, Slice, binding_limit};
use crate::nestedkv::config::ScoreConfig;
use crate::nestedkv::plan::{Cut, block_size_for};

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

/// Records the scores of keys: all steps of [`crate::nestedkv`] (arXiv 2605.26678).
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
    let anchored = anchor::record(rec, keys, block)?;
    let runs = Cut { tokens, block }.runs();
    let sums = Slice::all(&anchored.sums);
    let means = mean::record(rec, sums, rows, runs, keys.head_dim(), tokens)?;
    let anchors =
        anomaly::Anchors { anchored: &anchored, means: Slice::all(&means), block, window };
    let anomaly::Anomalies { scales, extremes } = anomaly::record(rec, keys, &anchors)?;
    let (lines, ends) = (Slice::all(&scales), Slice::all(&extremes));
    let spreads = spread::record(rec, lines, ends, 3 * rows, tokens)?;
    let blended = blend::record(rec, lines, Slice::all(&spreads), rows, tokens, cfg)?;
    let parts = gate::Parts {
        factors: Slice::all(&anchored.factors),
        scales: lines,
        blends: Slice::all(&blended.blends),
        deviations: Slice::all(&blended.deviations),
        surprises: Slice::all(&blended.surprises),
    };
    let score = gate::record(rec, &parts, rows, tokens, cfg)?;
    Ok(DeviceScores { score, scales, blend: blended.blends, factors: anchored.factors })
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
