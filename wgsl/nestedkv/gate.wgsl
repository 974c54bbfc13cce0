// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 7 and 8: the blend, or the strongest scale where the scales disagree, and -1 for a key row
// that holds NaN or Inf. Dispatched by src/nestedkv/gpu/gate.rs; twin src/nestedkv/cpu/gate.rs.
// A lane takes one token.

struct Params {
    rows: u32,
    tokens: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    tau: f32,
    kappa: f32,
    rectify: u32,
    // Largest span that counts as none.
    flat: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> factors: array<u32>;
@group(0) @binding(2) var<storage, read> surprises: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;
@group(0) @binding(4) var<storage, read> blends: array<f32>;
@group(0) @binding(5) var<storage, read> deviations: array<f32>;
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;

const LOG2_E: f32 = 1.4426950408889634;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 256u + lane;
    let count = params.rows * params.tokens;
    if index < count {
        let row = divide_magic(
            index, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2);
        let found = surprises[row];
        let low = order_score(~found.y);
        let span = order_score(found.x) - low;
        let sum = (f32(found.w) * 65536.0 + f32(found.z)) * 2.384185791015625e-7;
        let mean = sum / f32(params.tokens) - low;
        let flat_row = span <= params.flat;
        let centred = ((deviations[index] - low) - mean) / select(span, 1.0, flat_row);
        let rectified = select(centred, max(centred, 0.0), params.rectify != 0u);
        let surprise = select(rectified, 0.0, flat_row);
        let strongest =
            max(scales[index], max(scales[count + index], scales[2u * count + index]));
        let exponent = clamp(-(params.kappa * (surprise - params.tau)), -87.0, 87.0);
        let alpha = 1.0 / (1.0 + exp2(exponent * LOG2_E));
        let score = clamp((1.0 - alpha) * blends[index] + alpha * strongest, 0.0, 1.0);
        scores[index] = select(score, -1.0, (factors[index] & 0x80000000u) != 0u);
    }
}
