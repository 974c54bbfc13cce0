// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 4, 6 and 7: scores of the three scales stretched to [0, 1] in place, their sum weighed by
// softmax(ln prior + beta * gap), and their standard deviation. Dispatched by
// src/nestedkv/gpu/blend.rs; twins src/nestedkv/cpu/blend.rs and surprise.rs.
// A lane takes one token.

struct Params {
    rows: u32,
    tokens: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    beta: f32,
    prior_s: f32,
    prior_e: f32,
    prior_c: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> spreads: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> blends: array<f32>;
@group(0) @binding(4) var<storage, read_write> deviations: array<f32>;

const LOG2_E: f32 = 1.4426950408889634;

fn stretched(raw: f32, spread: vec4<f32>) -> f32 {
    let flat_scale = spread.y == 0.0;
    let value = (raw - spread.x) / select(spread.y, 1.0, flat_scale);
    return select(clamp(value, 0.0, 1.0), 0.0, flat_scale);
}

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
        let stable = spreads[row];
        let episodic = spreads[params.rows + row];
        let current = spreads[2u * params.rows + row];
        let s = stretched(scales[index], stable);
        let e = stretched(scales[count + index], episodic);
        let c = stretched(scales[2u * count + index], current);

        let logit_s = params.beta * stable.z;
        let logit_e = params.beta * episodic.z;
        let logit_c = params.beta * current.z;
        let top = max(logit_s, max(logit_e, logit_c));
        let plain = params.tokens <= 1u;
        let w_s = params.prior_s * select(exp2(max(logit_s - top, -87.0) * LOG2_E), 1.0, plain);
        let w_e = params.prior_e * select(exp2(max(logit_e - top, -87.0) * LOG2_E), 1.0, plain);
        let w_c = params.prior_c * select(exp2(max(logit_c - top, -87.0) * LOG2_E), 1.0, plain);
        let total = select(w_s + w_e + w_c, 1.0, plain);

        let mean = (s + e + c) * (1.0 / 3.0);
        let d_s = s - mean;
        let d_e = e - mean;
        let d_c = c - mean;
        scales[index] = s;
        scales[count + index] = e;
        scales[2u * count + index] = c;
        blends[index] = (w_s / total) * s + (w_e / total) * e + (w_c / total) * c;
        deviations[index] = sqrt((d_s * d_s + d_e * d_e + d_c * d_c) * (1.0 / 3.0));
    }
}
