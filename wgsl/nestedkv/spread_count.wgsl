// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 5, first of three: how many scores of every line lie in each of 2048 bins between its ends.
// `counts` [lines, 2048] is 0 before. Dispatched by src/nestedkv/gpu/spread.rs; twin
// src/nestedkv/cpu/spread.rs.
// A workgroup takes SPAN tokens of a line.

struct Params {
    lines: u32,
    tokens: u32,
    group: u32,
    flat: f32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read> extremes: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<atomic<u32>>;

const WG: u32 = 256u;
const SPAN: u32 = 4096u;
const BINS: u32 = 2048u;

var<workgroup> wg_bins: array<atomic<u32>, 2048>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let line = divide_magic(
        place, params.parts_multiplier, params.parts_shift1, params.parts_shift2);
    let live = line < params.lines;
    let first = (place - line * params.parts) * SPAN;
    let last = select(0u, min(first + SPAN, params.tokens), live);
    let ends = span_ends(select(0u, line, live), params.flat);
    for (var bin = lane; bin < BINS; bin += WG) {
        atomicStore(&wg_bins[bin], 0u);
    }
    workgroupBarrier();
    // A line without a span has no groups to tell apart.
    if ends.y > 0.0 {
        for (var token = first + lane; token < last; token += 4u * WG) {
            let four = scores_ahead(line * params.tokens, token, last);
            for (var i = 0u; i < 4u; i++) {
                let level = span_level(four[i], ends);
                if token + i * WG < last {
                    atomicAdd(&wg_bins[level >> 11u], 1u);
                }
            }
        }
    }
    workgroupBarrier();
    if live {
        for (var bin = lane; bin < BINS; bin += WG) {
            let count = atomicLoad(&wg_bins[bin]);
            if count > 0u {
                atomicAdd(&counts[line * BINS + bin], count);
            }
        }
    }
}
