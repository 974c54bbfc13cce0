// SPDX-License-Identifier: MIT OR Apache-2.0
// Unpacks the first rows of packed pages: keys or values of each, into a raw page or into rows of a
// dense tensor, which is taken as pages of one row. With `position_rows` > 0 positions are copied
// too. Pages outside the slab and rows outside the result are ignored.
// Dispatched by src/cache/gpu/restore.rs; twin src/cache/cpu/restore.rs.
// One workgroup an entry (from, to, rows, key scale). Needs element.wgsl, page.wgsl, hadamard.wgsl,
// grid.wgsl, divide.wgsl, rope.wgsl, key_scale.wgsl and decode.wgsl of common.

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
    dense: u32,
    position_rows: u32,
    chunk: u32,
    dtype: u32,
    sign_offset: u32,
    s1_offset: u32,
    s2_offset: u32,
    o_offset: u32,
    grid_offset: u32,
    scale: f32,
    norm: f32,
    last_scale: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> pages: array<u32>;
// Centroids of 8, 4 or 2 channels, one after the other.
@group(0) @binding(3) var<storage, read> book: array<vec4<f32>>;
// Key scales; not read without KEY_SCALED.
@group(0) @binding(4) var<storage, read> key_scales: array<u32>;
// The embedding.
@group(0) @binding(5) var<uniform> rope: array<vec4<u32>, ROPE_FOURS>;
@group(0) @binding(6) var<storage, read_write> rows: array<u32>;

fn decode_position(place: u32) -> u32 {
    return pages[place];
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 4u * min(index, params.count - 1u);
    let start = list[entry] - params.from_base;
    let end = list[entry + 1u] - params.to_base;
    let live = index < params.count && start < params.from_pages && end < params.to_pages;
    let read = select(0u, start * params.from_words, live);
    let write = select(0u, end * params.to_words, live);
    let room = select(params.chunk, min(params.chunk, params.to_pages - end), params.dense == 1u);
    let count = select(0u, min(list[entry + 2u], room), live);
    for (var i = lane; i < min(count, params.position_rows); i += HADAMARD_LANES) {
        rows[write + params.to_positions + i] = pages[read + params.from_positions + i];
    }
    let places = read + params.from_positions;
    let key_scale = min(list[entry + 3u], params.last_scale) * (HEAD_DIM >> 1u);
    decode_chunk(lane, count, read + params.from_side, places, write + params.to_side, key_scale);
}
