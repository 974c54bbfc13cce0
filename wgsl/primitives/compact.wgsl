// SPDX-License-Identifier: MIT OR Apache-2.0
// Positions that a threshold takes, ascending, row after row: `positions` within the row, `sources`
// counted over all rows. Dispatched by src/primitives/gpu/compact.rs; twin
// src/primitives/cpu/compact.rs.
// A workgroup takes SPAN tokens of a row, 4 * WG at a time, a lane 4 neighbours.

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
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
// Of primitives/compact_count; not read where a row is one part.
@group(0) @binding(4) var<storage, read> counted: array<u32>;
@group(0) @binding(5) var<storage, read_write> positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> sources: array<u32>;

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
    let part = place - group * params.parts;
    let base = row * params.tokens;
    let threshold = thresholds[row];
    let start = offsets[row];
    let end = min(offsets[row + 1u], params.total);
    let begin = part * SPAN;
    let tokens = select(0u, min(begin + SPAN, params.tokens), group < params.rows);

    // What the parts before take.
    var above_before = 0u;
    var ties_before = 0u;
    if params.parts > 1u {
        for (var earlier = lane; earlier < part; earlier += WG) {
            let both = counted[group * params.parts + earlier];
            above_before += both & 0xffffu;
            ties_before += both >> 16u;
        }
        above_before = prefix_sum(above_before, lane).y;
        ties_before = prefix_sum(ties_before, lane).y;
    }
    for (var tile = begin; tile < tokens; tile += 4u * WG) {
        let first = tile + 4u * lane;
        // Above in the low half, equal in the high half: a tile has at most 1024 of each.
        var own = 0u;
        for (var i = 0u; i < 4u; i++) {
            let token = first + i;
            let score = scores[base + min(token, params.tokens - 1u)];
            let key = select(order_key(score), ORDER_SINK, token < params.sinks);
            let live = token < tokens;
            own += select(0u, 1u, live && key > threshold.x);
            own += select(0u, 0x10000u, live && key == threshold.x);
        }
        let sums = prefix_sum(own, lane);
        let exclusive = sums.x;
        let all = sums.y;
        var above = above_before + (exclusive & 0xffffu);
        var ties = ties_before + (exclusive >> 16u);
        for (var i = 0u; i < 4u; i++) {
            let token = first + i;
            let score = scores[base + min(token, params.tokens - 1u)];
            let key = select(order_key(score), ORDER_SINK, token < params.sinks);
            let live = token < tokens;
            let higher = live && key > threshold.x;
            let equal = live && key == threshold.x;
            let at = start + above + min(ties, threshold.y);
            if (higher || (equal && ties < threshold.y)) && at < end {
                positions[at] = token;
                sources[at] = base + token;
            }
            above += select(0u, 1u, higher);
            ties += select(0u, 1u, equal);
        }
        above_before += all & 0xffffu;
        ties_before += all >> 16u;
    }
}
