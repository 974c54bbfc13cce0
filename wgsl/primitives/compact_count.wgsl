// SPDX-License-Identifier: MIT OR Apache-2.0
// Keys above the threshold (low half) and equal to it (high half) in every part of SPAN tokens of a row:
// `parts` [rows, parts]. Dispatched by src/primitives/gpu/compact.rs; twin
// src/primitives/cpu/compact.rs.
// A workgroup takes one part.

struct Params {
    rows: u32,
    tokens: u32,
    sinks: u32,
    total: u32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> thresholds: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> parts: array<u32>;

const WG: u32 = 256u;
const SPAN: u32 = 4096u;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let group = divide_magic(
        place, params.parts_multiplier, params.parts_shift1, params.parts_shift2);
    let row = min(group, params.rows - 1u);
    let first = (place - group * params.parts) * SPAN;
    let last = min(first + SPAN, params.tokens);
    let threshold = thresholds[row].x;
    var own = 0u;
    for (var token = first + lane; token < last; token += WG) {
        let score = scores[row * params.tokens + token];
        let key = select(order_key(score), ORDER_SINK, token < params.sinks);
        own += select(0u, 1u, key > threshold) + select(0u, 0x10000u, key == threshold);
    }
    let sums = prefix_sum(own, lane);
    if lane == 0u && group < params.rows {
        parts[place] = sums.y;
    }
}
