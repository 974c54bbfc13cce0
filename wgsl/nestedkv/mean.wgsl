// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 2: mean of the normalised keys of a row, from the sums of its blocks: [rows, dim]. Dispatched
// by src/nestedkv/gpu/mean.rs; twin src/nestedkv/cpu/mean.rs.
// A lane takes one channel of one row; blocks add up 16 at a time.

struct Params {
    count: u32,
    dim: u32,
    dim_multiplier: u32,
    dim_shift1: u32,
    dim_shift2: u32,
    blocks: u32,
    tokens: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sums: array<i32>;
@group(0) @binding(2) var<storage, read_write> means: array<f32>;

const BLOCKS_PER_TASK: u32 = 16u;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let index = place * 64u + lane;
    if index < params.count {
        let row = divide_magic(
            index, params.dim_multiplier, params.dim_shift1, params.dim_shift2);
        let channel = index - row * params.dim;
        let base = row * params.blocks * params.dim + channel;
        var total = 0.0;
        for (var first = 0u; first < params.blocks; first += BLOCKS_PER_TASK) {
            let last = min(first + BLOCKS_PER_TASK, params.blocks);
            var part = 0.0;
            for (var block = first; block < last; block++) {
                part += f32(sums[base + block * params.dim]) * 2.384185791015625e-7;
            }
            total += part;
        }
        means[index] = total / params.tokens;
    }
}
