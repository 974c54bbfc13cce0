// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies token rows from one dense tensor [rows, from_tokens, D] into another [rows, to_tokens, D],
// `tokens` of each row from `from_first` to `to_first`, and changes the element type on the way where
// the two differ: to f16 and bf16 by round-to-nearest-even, finite values beyond the range as the
// largest of the type. Equal types keep their bits.
// Dispatched by src/cache/gpu/rows.rs; its twin is src/cache/cpu/rows.rs.
// One thread a word of `to`; 256 threads a workgroup. Needs element.wgsl, narrow.wgsl and divide.wgsl.

struct Params {
    total: u32,
    words: u32,
    words_multiplier: u32,
    words_shift1: u32,
    words_shift2: u32,
    tokens: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    head_dim: u32,
    from_tokens: u32,
    from_first: u32,
    to_tokens: u32,
    to_first: u32,
    from_dtype: u32,
    to_dtype: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = (group.y * groups.x + group.x) * 256u + lane;
    if place < params.total {
        let flat = divide_magic(place, params.words_multiplier, params.words_shift1, params.words_shift2);
        let word = place - flat * params.words;
        let row = divide_magic(flat, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2);
        let token = flat - row * params.tokens;
        let from_token = row * params.from_tokens + params.from_first + token;
        let to_token = row * params.to_tokens + params.to_first + token;
        var value: u32;
        if params.from_dtype == params.to_dtype {
            value = source[from_token * params.words + word];
        } else if params.to_dtype == 0u {
            let element = from_token * params.head_dim + word;
            let held = source[element_word(element, params.from_dtype)];
            value = narrow_wide(held, element, params.from_dtype);
        } else {
            let element = from_token * params.head_dim + 2u * word;
            let first = source[element_word(element, params.from_dtype)];
            let second = source[element_word(element + 1u, params.from_dtype)];
            value = narrow_pair(first, second, element, params.from_dtype, params.to_dtype);
        }
        result[to_token * params.words + word] = value;
    }
}
