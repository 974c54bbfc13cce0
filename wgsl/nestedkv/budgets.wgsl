// SPDX-License-Identifier: MIT OR Apache-2.0
// How the heads of a sequence share its budget: `budgets` [rows], and the thresholds that take as many
// tokens of every row, `thresholds` [rows] of (key, ties that are taken, 0, 0). Every row is sure of
// what `sure` takes; the rest goes to the highest keys of all, ties to the lower head. Dispatched by
// src/nestedkv/gpu/budgets.rs; twin src/nestedkv/cpu/budgets.rs.
// A workgroup takes one sequence.

struct Params {
    rows: u32,
    longest: u32,
    sinks: u32,
    // Tokens of a sequence beyond what its heads are sure of.
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
@group(0) @binding(1) var<storage, read> floors: array<u32>;
@group(0) @binding(2) var<storage, read> sure: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> states: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> earlier: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> tallies: array<u32>;
@group(0) @binding(6) var<storage, read_write> budgets: array<u32>;
@group(0) @binding(7) var<storage, read_write> thresholds: array<vec4<u32>>;

const WG: u32 = 256u;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let sequence = workgroup.y * workgroups.x + workgroup.x;
    let live = sequence * params.heads < params.rows;
    let line = select(0u, sequence, live);
    // What is left of the rank is the number of ties that are taken, head after head.
    let found = bins_pick(line, 2u, states[3u * line + 2u], lane);
    if lane == 0u && live {
        var ties = found.y;
        for (var head = 0u; head < params.heads; head++) {
            let row = sequence * params.heads + head;
            let own = sure[row];
            let copies = own.z - own.y;
            var budget = floors[row];
            var threshold = own.xy;
            if params.rest > 0u {
                let higher = tallies[2u * row] + select(0u, copies, own.x > found.x);
                let tied = tallies[2u * row + 1u] + select(0u, copies, own.x == found.x);
                let taken = min(tied, ties);
                ties -= taken;
                budget += higher + taken;
                if found.x <= own.x {
                    threshold = vec2<u32>(
                        found.x, taken + select(0u, own.y, own.x == found.x));
                }
            }
            budgets[row] = budget;
            thresholds[row] = vec4<u32>(threshold, 0u, 0u);
        }
    }
}
