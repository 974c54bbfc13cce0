// SPDX-License-Identifier: MIT OR Apache-2.0
// Tokens of every row above the border of its sequence and equal to it, of those that compete: `tallies`
// [rows, 2], 0 before. Dispatched by src/nestedkv/gpu/budgets.rs; twin src/nestedkv/cpu/budgets.rs.
// A workgroup takes SPAN tokens of a row.

struct Params {
    rows: u32,
    longest: u32,
    sinks: u32,
    rest: u32,
    heads: u32,
    heads_multiplier: u32,
    heads_shift1: u32,
    heads_shift2: u32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> sure: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> states: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> earlier: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> tallies: array<atomic<u32>>;

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
    let live = group < params.rows;
    let row = min(group, params.rows - 1u);
    let first = (place - group * params.parts) * SPAN;
    let line = divide_magic(
        row, params.heads_multiplier, params.heads_shift1, params.heads_shift2);
    let border = bins_pick(line, 2u, states[3u * line + 2u], lane).x;
    let base = starts[row];
    let tokens = select(0u, min(starts[row + 1u] - base, params.longest), live);
    let last = min(first + SPAN, tokens);
    let limit = sure[row].x;
    // Above in the low half, equal in the high half.
    var own = 0u;
    for (var token = first + lane; token < last; token += WG) {
        let key = select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
        own += select(0u, 1u, key < limit && key > border);
        own += select(0u, 0x10000u, key < limit && key == border);
    }
    let all = prefix_sum(own, lane).y;
    if lane == 0u && all > 0u {
        atomicAdd(&tallies[2u * row], all & 0xffffu);
        atomicAdd(&tallies[2u * row + 1u], all >> 16u);
    }
}
