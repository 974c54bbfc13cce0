//! Step 8: the blend, or the strongest scale where the scales disagree.

use crate::primitives::math::exp;

/// Step 8: turns the surprise in `out` into scores: `(1 - alpha) * blend + alpha * max(scales)`, with
/// `alpha = sigmoid(kappa * (surprise - tau))`. Scores stay within 0 and 1.
pub fn gate(scales: [&[f32]; 3], blend: &[f32], tau: f32, kappa: f32, out: &mut [f32]) {
    let [s, e, c] = scales;
    for ((((out, &s), &e), &c), &blend) in out.iter_mut().zip(s).zip(e).zip(c).zip(blend) {
        let strongest = if e > s { e } else { s };
        let strongest = if c > strongest { c } else { strongest };
        let alpha = 1.0 / (1.0 + exp(-(kappa * (*out - tau))));
        let score = (1.0 - alpha) * blend + alpha * strongest;
        *out = score.clamp(0.0, 1.0);
    }
}
