// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 7: of every row the lowest deviation, the span (0 where it is at most `flat`) and the mean
// above the lowest: `surprises` is [rows] of (low, span, mean, 0). Dispatched by
// src/nestedkv/gpu/surprise.rs; twin src/nestedkv/cpu/surprise.rs.
// A workgroup takes one row; WG lanes, fewer for short rows. A row of up to 64 tokens is walked by one
// lane.

struct Params {
    rows: u32,
    tokens: u32,
    flat: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> deviations: array<u32>;
@group(0) @binding(2) var<storage, read_write> surprises: array<vec4<f32>>;

override WG: u32 = 256u;

var<workgroup> wg_low: array<u32, 256>;
var<workgroup> wg_high: array<u32, 256>;
var<workgroup> wg_sum: array<f32, 256>;

// What is written of a row.
fn surprise_of(low: f32, span: f32, sum: f32) -> vec4<f32> {
    let spread = span > params.flat;
    return vec4<f32>(low, select(0.0, span, spread), sum / f32(params.tokens), 0.0);
}

fn surprise_short(row: u32) {
    let base = row * params.tokens;
    var lowest = 0xffffffffu;
    var highest = 0u;
    for (var token = 0u; token < params.tokens; token++) {
        let key = order_key(deviations[base + token]);
        lowest = min(lowest, key);
        highest = max(highest, key);
    }
    let low = order_score(lowest);
    var sum = 0.0;
    for (var token = 0u; token < params.tokens; token++) {
        sum += bitcast<f32>(deviations[base + token]) - low;
    }
    surprises[row] = surprise_of(low, order_score(highest) - low, sum);
}

fn surprise_long(row: u32, lane: u32) {
    let tokens = select(0u, params.tokens, row < params.rows);
    let base = row * params.tokens;

    var lowest = 0xffffffffu;
    var highest = 0u;
    for (var token = lane; token < tokens; token += WG) {
        let key = order_key(deviations[base + token]);
        lowest = min(lowest, key);
        highest = max(highest, key);
    }
    wg_low[lane] = lowest;
    wg_high[lane] = highest;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_low[lane] = min(wg_low[lane], wg_low[lane + half_size]);
            wg_high[lane] = max(wg_high[lane], wg_high[lane + half_size]);
        }
        workgroupBarrier();
    }
    let low = order_score(wg_low[0]);
    let span = order_score(wg_high[0]) - low;

    var sum = 0.0;
    for (var token = lane; token < tokens; token += WG) {
        sum += bitcast<f32>(deviations[base + token]) - low;
    }
    wg_sum[lane] = sum;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_sum[lane] += wg_sum[lane + half_size];
        }
        workgroupBarrier();
    }
    if lane == 0u && row < params.rows {
        surprises[row] = surprise_of(low, span, wg_sum[0]);
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let row = workgroup.y * workgroups.x + workgroup.x;
    if params.tokens > 64u {
        surprise_long(row, lane);
    } else if lane == 0u && row < params.rows {
        surprise_short(row);
    }
}
