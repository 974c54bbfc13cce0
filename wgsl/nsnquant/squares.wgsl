// SPDX-License-Identifier: MIT OR Apache-2.0
// How much each channel of a chunk varies: the sums over its tokens of the squares of each channel,
// after every token is brought to norm sqrt(d) and the chunk's mean is taken off. Chunks beyond the
// data or the result are ignored. Dispatched by src/nsnquant/gpu/squares.rs; twin:
// src/nsnquant/cpu/squares.rs, with the same order of sums.
// One workgroup an entry (first word, tokens, row of the result). Needs element.wgsl.

struct Params {
    first: u32,
    count: u32,
    head_dim: u32,
    dtype: u32,
    row_words: u32,
    words: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> data: array<u32>;
@group(0) @binding(3) var<storage, read_write> result: array<f32>;

// Tokens of the longest chunk.
const MAX_CHUNK: u32 = 1024u;
// As in wgsl/common/encode.wgsl.
const MIN_SCALE: f32 = 1e-8;
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
const BELOW_FOUR: f32 = 3.9999998;

var<workgroup> wg_scale: array<f32, MAX_CHUNK>;

// Element `channel` of the row whose first word is `start`.
fn element_at(start: u32, channel: u32) -> f32 {
    let word = data[start + element_word(channel, params.dtype)];
    return element_read(word, channel, params.dtype);
}

fn square_of(start: u32, channel: u32, up: f32) -> f32 {
    let value = element_at(start, channel) * up;
    return value * value;
}

fn row_scale(start: u32) -> f32 {
    var top = 64u << 23u;
    for (var c = 0u; c < params.head_dim; c++) {
        top = max(top, bitcast<u32>(element_at(start, c)) & 0x7fffffffu);
    }
    let exponent = top >> 23u;
    let up = bitcast<f32>((255u - exponent) << 23u);
    let down = bitcast<f32>((exponent - 1u) << 23u);
    var square = 0.0;
    for (var c = 0u; c < params.head_dim; c += 8u) {
        let low = (square_of(start, c, up) + square_of(start, c + 1u, up))
            + (square_of(start, c + 2u, up) + square_of(start, c + 3u, up));
        let high = (square_of(start, c + 4u, up) + square_of(start, c + 5u, up))
            + (square_of(start, c + 6u, up) + square_of(start, c + 7u, up));
        square += low + high;
    }
    return max(min(sqrt(square / f32(params.head_dim)), BELOW_FOUR) * down, MIN_SCALE);
}

fn divided(value: f32, scale: f32) -> f32 {
    let shrink = select(1.0, SHRINK, scale > HUGE);
    return value * shrink / (scale * shrink);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 3u * min(index, params.count - 1u);
    let start = list[entry];
    let wanted = min(list[entry + 1u], MAX_CHUNK);
    let row = list[entry + 2u];
    let inside = start <= params.words && wanted * params.row_words <= params.words - start;
    let live = index < params.count && inside && row < params.rows;
    let tokens = select(0u, wanted, live);
    for (var t = lane; t < tokens; t += 128u) {
        wg_scale[t] = row_scale(start + t * params.row_words);
    }
    workgroupBarrier();
    for (var c = lane; c < params.head_dim; c += 128u) {
        var mean = 0.0;
        for (var t = 0u; t < tokens; t++) {
            mean += divided(element_at(start + t * params.row_words, c), wg_scale[t]);
        }
        mean = mean / f32(max(tokens, 1u));
        var sum = 0.0;
        for (var t = 0u; t < tokens; t++) {
            let rest = divided(element_at(start + t * params.row_words, c), wg_scale[t]) - mean;
            sum += rest * rest;
        }
        if live {
            result[row * params.head_dim + c] = sum;
        }
    }
}
