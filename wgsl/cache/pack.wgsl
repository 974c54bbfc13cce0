// SPDX-License-Identifier: MIT OR Apache-2.0
// Packs raw pages: keys or values of each into those of a packed page, and with `rows` > 0 the
// positions too. Pages outside the slabs are ignored. Dispatched by src/cache/gpu/pack.rs; twin
// src/cache/cpu/pack.rs.
// One workgroup an entry (from, to, key scale). Needs element.wgsl, hadamard.wgsl, turn.wgsl,
// grid.wgsl, quantise.wgsl, divide.wgsl, rope.wgsl, key_scale.wgsl, nearest.wgsl, coarse.wgsl, pieces.wgsl and
// encode.wgsl of common.

struct Params {
    first: u32,
    count: u32,
    from_base: u32,
    from_pages: u32,
    from_words: u32,
    from_side: u32,
    from_positions: u32,
    to_base: u32,
    to_pages: u32,
    to_words: u32,
    to_side: u32,
    to_positions: u32,
    rows: u32,
    chunk: u32,
    dtype: u32,
    sign_offset: u32,
    s1_offset: u32,
    s2_offset: u32,
    o_offset: u32,
    grid_offset: u32,
    scale: f32,
    last_scale: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
// Centroids of 8, 4 or 2 channels, one after the other.
@group(0) @binding(3) var<uniform> book: array<vec4<f32>, BOOK_FOURS>;
// Key scales; not read without KEY_SCALED.
@group(0) @binding(4) var<storage, read> key_scales: array<u32>;
// The embedding.
@group(0) @binding(5) var<uniform> rope: array<vec4<u32>, ROPE_FOURS>;
// The centroids again, for lanes that read different ones.
@group(0) @binding(6) var<storage, read> centroids: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> pages: array<u32>;

fn encode_words(word: u32) -> vec4<u32> {
    return vec4<u32>(data[word], data[word + 1u], data[word + 2u], data[word + 3u]);
}

fn encode_position(place: u32) -> u32 {
    return data[place];
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 3u * min(index, params.count - 1u);
    let start = list[entry] - params.from_base;
    let end = list[entry + 1u] - params.to_base;
    let live = index < params.count && start < params.from_pages && end < params.to_pages;
    let read = select(0u, start * params.from_words, live);
    let write = select(0u, end * params.to_words, live);
    let rows = select(0u, params.rows, live);
    for (var i = lane; i < rows; i += HADAMARD_LANES) {
        pages[write + params.to_positions + i] = data[read + params.from_positions + i];
    }
    let chunk = select(0u, params.chunk, live);
    let places = read + params.from_positions;
    let side = 2u * (read + params.from_side);
    let key_scale = min(list[entry + 2u], params.last_scale) * (HEAD_DIM >> 1u);
    encode_chunk(lane, chunk, side, places, write + params.to_side, key_scale);
}
