// SPDX-License-Identifier: MIT OR Apache-2.0
// Threshold of the `counts[row]` highest keys of every row: `thresholds` is [rows] of (key, ties that
// are taken, keys equal to it, keys above it). Row r has the scores from starts[r] to starts[r + 1],
// and may have none. Dispatched by src/primitives/gpu/select.rs; twin
// src/primitives/cpu/select.rs.
// A workgroup takes one row, WG lanes, fewer for short rows; four passes of 8 bits, or, in rows of up
// to 64 tokens, every token compared with every other.

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

override WG: u32 = 256u;

var<workgroup> wg_keys: array<u32, 64>;
var<workgroup> wg_found: vec4<u32>;

fn row_key(base: u32, token: u32) -> u32 {
    return select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
}

fn select_short(base: u32, tokens: u32, count: u32, lane: u32) -> vec4<u32> {
    let live = lane < tokens;
    let own = row_key(base, select(0u, lane, live));
    if lane < 64u {
        wg_keys[lane] = own;
    }
    workgroupBarrier();
    // A count of 0 finds the highest key and takes none of its ties.
    let rank = max(count, 1u);
    var above = 0u;
    var equal = 0u;
    var first = true;
    for (var token = 0u; token < tokens; token++) {
        let key = wg_keys[token];
        above += select(0u, 1u, key > own);
        equal += select(0u, 1u, key == own);
        first = first && !(key == own && token < lane);
    }
    if live && first && above < rank && rank <= above + equal {
        wg_found = vec4<u32>(own, select(rank - above, 0u, count == 0u), equal, above);
    }
    workgroupBarrier();
    return wg_found;
}

fn select_long(base: u32, tokens: u32, count: u32, lane: u32) -> vec4<u32> {
    var threshold = 0u;
    // A count of 0 finds the highest key and takes none of its ties.
    var rank = max(count, 1u);
    var above = 0u;
    var equal = 0u;
    for (var pass_index = 0u; pass_index < 4u; pass_index++) {
        let shift = 24u - 8u * pass_index;
        radix_clear(lane);
        for (var token = lane; token < tokens; token += WG) {
            radix_count(0u, row_key(base, token), threshold, shift, 1u);
        }
        radix_pick(vec2<u32>(rank, 0u), lane);
        let bin = radix_found[0];
        threshold |= bin.x << shift;
        rank -= bin.y;
        above += bin.y;
        equal = bin.z;
    }
    return vec4<u32>(threshold, select(rank, 0u, count == 0u), equal, above);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let live = place < params.rows;
    let row = min(place, params.rows - 1u);
    let base = starts[row];
    let tokens = select(0u, min(starts[row + 1u] - base, params.longest), live);
    let count = min(counts[row], tokens);

    var found = vec4<u32>(0u);
    if params.longest <= 64u {
        found = select_short(base, tokens, count, lane);
    } else {
        found = select_long(base, tokens, count, lane);
    }
    if lane == 0u && live {
        thresholds[row] = select(found, vec4<u32>(0xffffffffu, 0u, 0u, 0u), tokens == 0u);
    }
}
