// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 4, 6 and 7: scores of the three scales stretched to [0, 1] in place, their sum weighed by
// softmax(ln prior + beta * gap), and their standard deviation. Of the deviations of every row the
// highest key (order.wgsl), the highest of the keys' complements, and the sum in multiples of 2^-22, the
// low 16 bits first: `surprises` [rows, 4], 0 before. Dispatched by src/nestedkv/gpu/blend.rs; twins
// src/nestedkv/cpu/blend.rs and surprise.rs.
// A workgroup takes SPAN tokens of a row.

struct Params {
    rows: u32,
    tokens: u32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
    beta: f32,
    prior_s: f32,
    prior_e: f32,
    prior_c: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> spreads: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> scales: array<f32>;
@group(0) @binding(3) var<storage, read_write> blends: array<f32>;
@group(0) @binding(4) var<storage, read_write> deviations: array<u32>;
@group(0) @binding(5) var<storage, read_write> surprises: array<atomic<u32>>;

const LOG2_E: f32 = 1.4426950408889634;
const WG: u32 = 256u;
const SPAN: u32 = 1024u;

// Highest key, highest complement, and sum of the deviations of a lane.
var<workgroup> wg_found: array<vec4<u32>, 256>;

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
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.parts_multiplier, params.parts_shift1, params.parts_shift2);
    let first = (place - row * params.parts) * SPAN;
    let last = select(0u, min(first + SPAN, params.tokens), row < params.rows);
    let count = params.rows * params.tokens;
    let own_row = min(row, params.rows - 1u);
    let stable = spreads[own_row];
    let episodic = spreads[params.rows + own_row];
    let current = spreads[2u * params.rows + own_row];

    let logit_s = params.beta * stable.z;
    let logit_e = params.beta * episodic.z;
    let logit_c = params.beta * current.z;
    let top = max(logit_s, max(logit_e, logit_c));
    let plain = params.tokens <= 1u;
    let w_s = params.prior_s * select(exp2(max(logit_s - top, -87.0) * LOG2_E), 1.0, plain);
    let w_e = params.prior_e * select(exp2(max(logit_e - top, -87.0) * LOG2_E), 1.0, plain);
    let w_c = params.prior_c * select(exp2(max(logit_c - top, -87.0) * LOG2_E), 1.0, plain);
    let total = select(w_s + w_e + w_c, 1.0, plain);

    var found = vec4<u32>(0u);
    for (var token = first + lane; token < last; token += WG) {
        let index = row * params.tokens + token;
        let s = stretched(scales[index], stable);
        let e = stretched(scales[count + index], episodic);
        let c = stretched(scales[2u * count + index], current);
        let mean = (s + e + c) * (1.0 / 3.0);
        let d_s = s - mean;
        let d_e = e - mean;
        let d_c = c - mean;
        let deviation = sqrt((d_s * d_s + d_e * d_e + d_c * d_c) * (1.0 / 3.0));
        scales[index] = s;
        scales[count + index] = e;
        scales[2u * count + index] = c;
        blends[index] = (w_s / total) * s + (w_e / total) * e + (w_c / total) * c;
        let bits = bitcast<u32>(deviation);
        deviations[index] = bits;
        let key = order_key(bits);
        // At most 1/2 each, so the sum of SPAN of them fits.
        found = vec4<u32>(
            max(found.x, key), max(found.y, ~key),
            found.z + u32(round(deviation * 4194304.0)), 0u);
    }
    wg_found[lane] = found;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            let a = wg_found[lane];
            let b = wg_found[lane + half_size];
            wg_found[lane] = vec4<u32>(max(a.x, b.x), max(a.y, b.y), a.z + b.z, 0u);
        }
        workgroupBarrier();
    }
    if lane == 0u && first < last {
        let all = wg_found[0];
        atomicMax(&surprises[4u * row], all.x);
        atomicMax(&surprises[4u * row + 1u], all.y);
        atomicAdd(&surprises[4u * row + 2u], all.z & 0xffffu);
        atomicAdd(&surprises[4u * row + 3u], all.z >> 16u);
    }
}
