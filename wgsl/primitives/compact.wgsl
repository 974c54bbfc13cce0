// SPDX-License-Identifier: MIT OR Apache-2.0
// Positions that a threshold takes, ascending, row after row: `positions` within the row, `sources`
// counted over all rows. Dispatched by src/primitives/gpu/compact.rs; twin
// src/primitives/cpu/compact.rs.
// A workgroup takes one row, 4 * WG tokens at a time, a lane 4 neighbours; WG is less for short rows.

struct Params {
    rows: u32,
    tokens: u32,
    sinks: u32,
    total: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> thresholds: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> offsets: array<u32>;
@group(0) @binding(4) var<storage, read_write> positions: array<u32>;
@group(0) @binding(5) var<storage, read_write> sources: array<u32>;

override WG: u32 = 256u;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = min(place, params.rows - 1u);
    let tokens = select(0u, params.tokens, place < params.rows);
    let base = row * params.tokens;
    let threshold = thresholds[row];
    let start = offsets[row];
    let end = min(offsets[row + 1u], params.total);

    var above_before = 0u;
    var ties_before = 0u;
    for (var tile = 0u; tile < tokens; tile += 4u * WG) {
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
