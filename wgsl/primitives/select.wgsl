// SPDX-License-Identifier: MIT OR Apache-2.0
// Threshold of the `counts[row]` highest keys of every row: `thresholds` is [rows] of (key, ties that
// are taken, keys equal to it, keys above it). Row r has the scores from starts[r] to starts[r + 1],
// and may have none. Dispatched by src/primitives/gpu/select.rs; twin
// src/primitives/cpu/select.rs.
// A workgroup takes one row; four passes of 8 bits.

struct Params {
    rows: u32,
    sinks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> thresholds: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let live = place < params.rows;
    let row = min(place, params.rows - 1u);
    let base = starts[row];
    let tokens = select(0u, starts[row + 1u] - base, live);
    let count = min(counts[row], tokens);

    var threshold = 0u;
    // A count of 0 finds the highest key and takes none of its ties.
    var rank = max(count, 1u);
    var above = 0u;
    var equal = 0u;
    for (var pass_index = 0u; pass_index < 4u; pass_index++) {
        let shift = 24u - 8u * pass_index;
        radix_clear(lane);
        for (var token = lane; token < tokens; token += 256u) {
            let key = select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
            radix_count(0u, key, threshold, shift, 1u);
        }
        let bin = radix_pick(0u, rank, lane);
        threshold |= bin.x << shift;
        rank -= bin.y;
        above += bin.y;
        equal = bin.z;
    }
    if lane == 0u && live {
        let found = vec4<u32>(threshold, select(rank, 0u, count == 0u), equal, above);
        thresholds[row] = select(found, vec4<u32>(0xffffffffu, 0u, 0u, 0u), tokens == 0u);
    }
}
