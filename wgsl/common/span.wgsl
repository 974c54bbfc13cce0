// Scores of a line as whole levels from its lowest to its highest. Expects the binding `extremes`
// [lines, 2] (nestedkv/anomaly); needs order.wgsl.

const SPAN_TOP: f32 = 4194303.0;

// Lowest score of a line and its span, 0 where it counts as none.
fn span_ends(line: u32, flat_span: f32) -> vec2<f32> {
    let low = order_score(~extremes[2u * line + 1u]);
    let span = order_score(extremes[2u * line]) - low;
    return vec2<f32>(low, select(0.0, span, span > flat_span));
}

// Level of a score of a line with a span: 22 bits.
fn span_level(score: f32, ends: vec2<f32>) -> u32 {
    return u32(round(clamp((score - ends.x) / ends.y, 0.0, 1.0) * SPAN_TOP));
}
