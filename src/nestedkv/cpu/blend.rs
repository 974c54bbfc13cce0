//! Step 6: the scales weighed by how well they tell the tokens of this row apart.

use crate::primitives::math::exp;

/// Step 6: weights of the three scales from their gaps: `softmax(ln prior + beta * gap)`, and the prior
/// itself for a row of one token.
pub fn weights(gaps: [f32; 3], beta: f32, prior: [f32; 3], tokens: usize) -> [f32; 3] {
    if tokens <= 1 {
        return prior;
    }
    let logits = gaps.map(|gap| beta * gap);
    let top = logits.into_iter().fold(logits[0], |a, b| if b > a { b } else { a });
    let mut weights = [0.0; 3];
    for k in 0..3 {
        weights[k] = prior[k] * exp(logits[k] - top);
    }
    let sum = weights[0] + weights[1] + weights[2];
    weights.map(|w| w / sum)
}

/// Step 6: weighted sum of the three scores of each token.
pub fn blend(scales: [&[f32]; 3], weights: [f32; 3], out: &mut [f32]) {
    let [s, e, c] = scales;
    for (((out, s), e), c) in out.iter_mut().zip(s).zip(e).zip(c) {
        *out = weights[0] * s + weights[1] * e + weights[2] * c;
    }
}
