// SPDX-License-Identifier: MIT OR Apache-2.0
// Threshold of the `counts[row]` highest keys of every short row: `thresholds` is [rows] of (key, ties that
// are taken, keys equal to it, keys above it). Dispatched by src/primitives/gpu/select.rs; twin
// src/primitives/cpu/select.rs.
// A lane takes one row of up to SHORT tokens. Needs order.wgsl.

struct Params {
    rows: u32,
    longest: u32,
    sinks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> thresholds: array<vec4<u32>>;

const WG: u32 = 64u;

fn key_of(base: u32, token: u32) -> u32 {
    return select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let row = (workgroup.y * workgroups.x + workgroup.x) * WG + lane;
    if row >= params.rows {
        return;
    }
    let base = starts[row];
    let tokens = min(min(starts[row + 1u] - base, params.longest), SHORT);
    // A count of 0 finds the highest key and takes none of its ties.
    let rank = max(min(counts[row], tokens), 1u);
    var found = vec4<u32>(0xffffffffu, 0u, 0u, 0u);
    for (var i = 0u; i < tokens; i++) {
        let own = key_of(base, i);
        var above = 0u;
        var equal = 0u;
        for (var j = 0u; j < tokens; j++) {
            let other = key_of(base, j);
            above += select(0u, 1u, other > own);
            equal += select(0u, 1u, other == own);
        }
        if above < rank && rank <= above + equal {
            found = vec4<u32>(own, select(rank - above, 0u, counts[row] == 0u), equal, above);
        }
    }
    thresholds[row] = found;
}
