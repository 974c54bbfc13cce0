// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies the token rows `sources` as f16. f16 keeps its bits; others are rounded to nearest even.
// `beyond[0]` is left at 0, or becomes 0xffffffff less the first copied row that holds a finite value
// beyond f16. Dispatched by src/primitives/gpu/gather.rs; twin src/primitives/cpu/gather.rs.
// A lane takes 8 channels of a row.

struct Params {
    parts: u32,
    token_rows: u32,
    row_parts: u32,
    dtype: u32,
    row_multiplier: u32,
    row_shift1: u32,
    row_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> sources: array<u32>;
@group(0) @binding(3) var<storage, read_write> copied: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> beyond: array<atomic<u32>>;

// Two elements of a word, or one each of two words, as f16; the second word is not 0 when
// a finite one does not fit.
fn gather_pair(first: u32, second: u32) -> vec2<u32> {
    let low_bits = element_bits(first, 0u, params.dtype);
    let high_bits = element_bits(second, 1u, params.dtype);
    let low = element_half(low_bits);
    let high = element_half(high_bits);
    let over = ((low & 0x7fffu) == 0x7c00u && element_finite(low_bits))
        || ((high & 0x7fffu) == 0x7c00u && element_finite(high_bits));
    return vec2<u32>(low | (high << 16u), select(0u, 1u, over));
}

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let index = (workgroup.y * workgroups.x + workgroup.x) * 256u + lane;
    if index < params.parts {
        let row = divide_magic(
            index, params.row_multiplier, params.row_shift1, params.row_shift2);
        let part = index - row * params.row_parts;
        let token = min(sources[row], params.token_rows - 1u);
        let at = token * params.row_parts + part;
        if params.dtype == 1u {
            copied[index] = data[at];
        } else {
            var low = data[at];
            var high = low;
            if params.dtype == 0u {
                low = data[2u * at];
                high = data[2u * at + 1u];
                // Pairs of neighbours, which come one to a word.
                let first = vec4<u32>(low.x, low.z, high.x, high.z);
                high = vec4<u32>(low.y, low.w, high.y, high.w);
                low = first;
            }
            let a = gather_pair(low.x, high.x);
            let b = gather_pair(low.y, high.y);
            let c = gather_pair(low.z, high.z);
            let d = gather_pair(low.w, high.w);
            copied[index] = vec4<u32>(a.x, b.x, c.x, d.x);
            if (a.y | b.y | c.y | d.y) != 0u {
                atomicMax(&beyond[0], 0xffffffffu - row);
            }
        }
    }
}
