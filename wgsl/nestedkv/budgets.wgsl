// SPDX-License-Identifier: MIT OR Apache-2.0
// Shares the tokens of a sequence out over its heads: each is sure of the `floors[row]` tokens that
// `thresholds` takes, the `rest` goes to the highest keys of all heads; equal keys: the lower head,
// then the lower position. Dispatched by src/nestedkv/gpu/budgets.rs; twin
// src/nestedkv/cpu/budgets.rs.
// A workgroup takes one sequence; WG lanes, fewer for short rows.

struct Params {
    sequences: u32,
    heads: u32,
    sinks: u32,
    rest: u32,
    longest: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
// Row r has the scores from starts[r] to starts[r + 1], and may have none.
@group(0) @binding(2) var<storage, read> starts: array<u32>;
@group(0) @binding(3) var<storage, read> floors: array<u32>;
@group(0) @binding(4) var<storage, read> thresholds: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> budgets: array<u32>;

override WG: u32 = 256u;

var<workgroup> wg_above: atomic<u32>;
var<workgroup> wg_equal: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let sequence = workgroup.y * workgroups.x + workgroup.x;
    let heads = select(0u, params.heads, sequence < params.sequences && params.rest > 0u);
    let first_row = sequence * params.heads;

    var border = 0u;
    var rank = params.rest;
    for (var pass_index = 0u; pass_index < 4u; pass_index++) {
        let shift = 24u - 8u * pass_index;
        radix_clear(lane);
        for (var head = 0u; head < heads; head++) {
            let sure = thresholds[first_row + head];
            let base = starts[first_row + head];
            let tokens = min(starts[first_row + head + 1u] - base, params.longest);
            for (var token = lane; token < tokens; token += WG) {
                let key = select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
                radix_count(0u, key, border, shift, select(0u, 1u, key < sure.x));
            }
            if lane == 0u {
                radix_count(0u, sure.x, border, shift, sure.z - sure.y);
            }
        }
        radix_pick(vec2<u32>(rank, 0u), lane);
        let bin = radix_found[0];
        border |= bin.x << shift;
        rank -= min(bin.y, rank);
    }

    // What is left of the rank is the number of ties that are taken, head after head.
    var ties = rank;
    for (var head = 0u; head < heads; head++) {
        if lane == 0u {
            atomicStore(&wg_above, 0u);
            atomicStore(&wg_equal, 0u);
        }
        workgroupBarrier();
        let sure = thresholds[first_row + head];
        let base = starts[first_row + head];
        let tokens = min(starts[first_row + head + 1u] - base, params.longest);
        var above = 0u;
        var equal = 0u;
        for (var token = lane; token < tokens; token += WG) {
            let key = select(order_key(scores[base + token]), ORDER_SINK, token < params.sinks);
            above += select(0u, 1u, key < sure.x && key > border);
            equal += select(0u, 1u, key < sure.x && key == border);
        }
        atomicAdd(&wg_above, above);
        atomicAdd(&wg_equal, equal);
        workgroupBarrier();
        if lane == 0u {
            let copies = sure.z - sure.y;
            let higher = atomicLoad(&wg_above) + select(0u, copies, sure.x > border);
            let tied = atomicLoad(&wg_equal) + select(0u, copies, sure.x == border);
            let taken = min(tied, ties);
            ties -= taken;
            budgets[first_row + head] = floors[first_row + head] + higher + taken;
        }
        workgroupBarrier();
    }
    if params.rest == 0u && sequence < params.sequences {
        for (var head = lane; head < params.heads; head += WG) {
            budgets[first_row + head] = floors[first_row + head];
        }
    }
}
