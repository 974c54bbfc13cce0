// SPDX-License-Identifier: MIT OR Apache-2.0
// Unpacks pages into token rows [rows, d] from row starts[p] on, as wgsl/common/decode.wgsl does one.
// Dispatched by src/nsnquant/gpu/decode.rs; twin: src/nsnquant/cpu/decode.rs.
// One workgroup a page. Needs element.wgsl, page.wgsl, hadamard.wgsl, grid.wgsl, divide.wgsl, rope.wgsl,
// key_scale.wgsl and decode.wgsl of common.

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
    norm: f32,
    last_scale: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> pages: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
// Centroids of 8, 4 or 2 channels, one after the other.
@group(0) @binding(3) var<storage, read> book: array<vec4<f32>>;
// Key scales, and the number of each page's; not read without KEY_SCALED.
@group(0) @binding(4) var<storage, read> key_scales: array<u32>;
@group(0) @binding(5) var<storage, read> scale_of: array<u32>;
// Positions of the tokens of each page, and the embedding.
@group(0) @binding(6) var<storage, read> positions: array<u32>;
@group(0) @binding(7) var<uniform> rope: array<vec4<u32>, ROPE_FOURS>;
@group(0) @binding(8) var<storage, read_write> rows: array<u32>;

fn decode_position(place: u32) -> u32 {
    return positions[place];
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let index = group.y * groups.x + group.x;
    let chunk = select(0u, params.chunk, index < params.pages);
    let page = min(index, params.pages - 1u);
    let start = min(starts[page], params.last_start) * HEAD_DIM;
    let out = select(start >> 1u, start, params.dtype == 0u);
    var key_scale = 0u;
    if KEY_SCALED == 1u {
        key_scale = min(scale_of[page], params.last_scale) * (HEAD_DIM >> 1u);
    }
    decode_chunk(lane, chunk, page * params.page_words, page * params.chunk, out, key_scale);
}
