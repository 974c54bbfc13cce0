// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies the token rows `sources` as f16, two to a word. f16 keeps its bits; others are rounded to
// nearest even. `beyond[0]` is left at 0, or becomes 0xffffffff less the first copied row that holds
// a finite value beyond f16. Dispatched by src/primitives/gpu/gather.rs; twin
// src/primitives/cpu/gather.rs.
// A lane takes one word.

struct Params {
    words: u32,
    token_rows: u32,
    dim: u32,
    dtype: u32,
    pairs_multiplier: u32,
    pairs_shift1: u32,
    pairs_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> sources: array<u32>;
@group(0) @binding(3) var<storage, read_write> copied: array<u32>;
@group(0) @binding(4) var<storage, read_write> beyond: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let word = (workgroup.y * workgroups.x + workgroup.x) * 256u + lane;
    if word < params.words {
        let row = divide_magic(
            word, params.pairs_multiplier, params.pairs_shift1, params.pairs_shift2);
        let pair = word - row * (params.dim >> 1u);
        let token = min(sources[row], params.token_rows - 1u);
        let index = token * params.dim + 2u * pair;
        let first = data[element_word(index, params.dtype)];
        let second = data[element_word(index + 1u, params.dtype)];
        let low_bits = element_bits(first, index, params.dtype);
        let high_bits = element_bits(second, index + 1u, params.dtype);
        let low = element_half(low_bits);
        let high = element_half(high_bits);
        let is_half = params.dtype == 1u;
        copied[word] = select(low | (high << 16u), first, is_half);
        let over = ((low & 0x7fffu) == 0x7c00u && element_finite(low_bits))
            || ((high & 0x7fffu) == 0x7c00u && element_finite(high_bits));
        if over && !is_half {
            atomicMax(&beyond[0], 0xffffffffu - row);
        }
    }
}
