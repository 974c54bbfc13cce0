// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 2: mean of the normalised keys of every row, from the sums of its runs. Dispatched by
// src/nestedkv/gpu/mean.rs; twin src/nestedkv/cpu/mean.rs.
// A workgroup takes 32 channels of a row: 8 lanes beside each other, every 32nd run each. Three parts of
// the integers add up without overflow and without rounding.

struct Params {
    rows: u32,
    dim: u32,
    runs: u32,
    tokens: f32,
    groups: u32,
    groups_multiplier: u32,
    groups_shift1: u32,
    groups_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sums: array<vec4<i32>>;
@group(0) @binding(2) var<storage, read_write> means: array<vec4<f32>>;

var<workgroup> wg_top: array<vec4<i32>, 256>;
var<workgroup> wg_middle: array<vec4<i32>, 256>;
var<workgroup> wg_bottom: array<vec4<i32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.groups_multiplier, params.groups_shift1, params.groups_shift2);
    let quads = params.dim >> 2u;
    let quad = (place - row * params.groups) * 8u + (lane & 7u);
    let live = row < params.rows && quad < quads;

    var top = vec4<i32>(0);
    var middle = vec4<i32>(0);
    var bottom = vec4<i32>(0);
    if live {
        for (var run = lane >> 3u; run < params.runs; run += 32u) {
            let sum = sums[(row * params.runs + run) * quads + quad];
            top += sum >> vec4<u32>(20u);
            middle += (sum >> vec4<u32>(10u)) & vec4<i32>(0x3ff);
            bottom += sum & vec4<i32>(0x3ff);
        }
    }
    wg_top[lane] = top;
    wg_middle[lane] = middle;
    wg_bottom[lane] = bottom;
    workgroupBarrier();
    for (var half_size = 128u; half_size >= 8u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_top[lane] += wg_top[lane + half_size];
            wg_middle[lane] += wg_middle[lane + half_size];
            wg_bottom[lane] += wg_bottom[lane + half_size];
        }
        workgroupBarrier();
    }
    if lane < 8u && live {
        let whole = (vec4<f32>(wg_top[lane]) * 1024.0 + vec4<f32>(wg_middle[lane])) * 1024.0
            + vec4<f32>(wg_bottom[lane]);
        means[row * quads + quad] = whole * 2.384185791015625e-7 / params.tokens;
    }
}
