// SPDX-License-Identifier: MIT OR Apache-2.0
// Packs chunks of token rows [total_rows, d] into pages, as wgsl/common/encode.wgsl does one. Dispatched
// by src/nsnquant/gpu/encode.rs; twin: src/nsnquant/cpu/encode.rs.
// One workgroup a page. Needs element.wgsl, hadamard.wgsl, turn.wgsl, grid.wgsl, quantise.wgsl,
// divide.wgsl, rope.wgsl, key_scale.wgsl, nearest.wgsl, coarse.wgsl, pieces.wgsl and encode.wgsl of common.

struct Params {
    pages: u32,
    chunk: u32,
    last_start: u32,
    dtype: u32,
    page_words: u32,
    sign_offset: u32,
    s1_offset: u32,
    s2_offset: u32,
    o_offset: u32,
    grid_offset: u32,
    scale: f32,
    last_scale: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
// Centroids of 8, 4 or 2 channels, one after the other.
@group(0) @binding(3) var<uniform> book: array<vec4<f32>, BOOK_FOURS>;
// Key scales, and the number of each page's; not read without KEY_SCALED.
@group(0) @binding(4) var<storage, read> key_scales: array<u32>;
@group(0) @binding(5) var<storage, read> scale_of: array<u32>;
// Positions of the token rows, and the embedding.
@group(0) @binding(6) var<storage, read> positions: array<u32>;
@group(0) @binding(7) var<uniform> rope: array<vec4<u32>, ROPE_FOURS>;
// The centroids again, for lanes that read different ones.
@group(0) @binding(8) var<storage, read> centroids: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read_write> pages: array<u32>;

fn encode_words(word: u32) -> vec4<u32> {
    return data[word >> 2u];
}

fn encode_position(place: u32) -> u32 {
    return positions[place];
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let page = group.y * groups.x + group.x;
    let chunk = select(0u, params.chunk, page < params.pages);
    let start = min(starts[min(page, params.pages - 1u)], params.last_start);
    var key_scale = 0u;
    if KEY_SCALED == 1u {
        let number = min(scale_of[min(page, params.pages - 1u)], params.last_scale);
        key_scale = number * (HEAD_DIM >> 1u);
    }
    encode_chunk(lane, chunk, start * HEAD_DIM, start, page * params.page_words, key_scale);
}
