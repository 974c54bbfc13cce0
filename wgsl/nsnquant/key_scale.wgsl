// SPDX-License-Identifier: MIT OR Apache-2.0
// Fixes key scales: f16 factors of the channels of one head each, from the squares of its chunks.
// Entries whose chunks or whose place are not there are ignored. Dispatched by
// src/nsnquant/gpu/key_scale.rs; twin: src/nsnquant/cpu/key_scale.rs, with the same order of sums.
// One workgroup an entry (first row of squares, chunks, tokens, word of the result). Needs
// element.wgsl.

struct Params {
    first: u32,
    count: u32,
    head_dim: u32,
    rows: u32,
    words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> squares: array<f32>;
@group(0) @binding(3) var<storage, read_write> result: array<u32>;

const MAX_DIM: u32 = 512u;
// Tokens that the average of all channels counts as.
const PRIOR: f32 = 8.0;
// Smallest mean square of a chunk that is not all mean.
const NOTHING: f32 = 1e-12;

var<workgroup> wg_sum: array<f32, MAX_DIM>;

fn factor(square: f32, average: f32, tokens: f32) -> u32 {
    if average > NOTHING {
        let share = (square + PRIOR * average) / ((tokens + PRIOR) * average);
        return element_half(bitcast<u32>(sqrt(sqrt(share))));
    }
    return 0x3c00u;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 4u * min(index, params.count - 1u);
    let row = list[entry];
    let chunks = list[entry + 1u];
    let tokens = f32(list[entry + 2u]);
    let at = list[entry + 3u];
    let dim = min(params.head_dim, MAX_DIM);
    let inside = row <= params.rows && chunks <= params.rows - row;
    let room = at <= params.words && (dim >> 1u) <= params.words - at;
    let live = index < params.count && inside && room;
    let count = select(0u, chunks, live);
    for (var c = lane; c < dim; c += 64u) {
        var sum = 0.0;
        for (var k = 0u; k < count; k++) {
            sum += squares[(row + k) * dim + c];
        }
        wg_sum[c] = sum;
    }
    workgroupBarrier();
    var total = 0.0;
    for (var c = 0u; c < dim; c++) {
        total += wg_sum[c];
    }
    let average = total / (f32(dim) * max(tokens, 1.0));
    for (var pair = lane; 2u * pair < dim; pair += 64u) {
        let low = factor(wg_sum[2u * pair], average, tokens);
        let high = factor(wg_sum[2u * pair + 1u], average, tokens);
        if live {
            result[at + pair] = low | (high << 16u);
        }
    }
}
