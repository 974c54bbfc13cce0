// SPDX-License-Identifier: MIT OR Apache-2.0
// Prepares queries [queries, d]: q' = q times the power of two that brings its largest element to
// 2^-12 .. 2^-11, H q', how dot products with them become logits (a limit, a factor and a power of
// two), and the last position that the query sees; behind all of them, where rows have key scales,
// H (scale q') of each. Dispatched by src/attention/gpu/rotate.rs; twin:
// src/attention/cpu/rotate.rs.
// One workgroup a query. Needs element.wgsl, divide.wgsl, hadamard.wgsl and key_scale.wgsl.

struct Params {
    queries: u32,
    dtype: u32,
    packed: u32,
    hadamard_scale: f32,
    scale: f32,
    limit: i32,
    // Query tokens, and queries of a member of the batch.
    tokens: u32,
    member: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    member_multiplier: u32,
    member_shift1: u32,
    member_shift2: u32,
    causal: u32,
    // Position of the first query token, or what is added to the member's own.
    first: u32,
    own: u32,
    // Where the scaled queries start, or 0, and the division by the queries of a row.
    scaled_at: u32,
    row_multiplier: u32,
    row_shift1: u32,
    row_shift2: u32,
    // Where scales lie in sink pages of one slab: where the pages are listed, how a page's number is
    // taken apart, the slab and its pages, and where in a page; else words of a page are 0.
    sinks_at: u32,
    sink_shift: u32,
    sink_mask: u32,
    sink_slab: u32,
    sink_pages: u32,
    sink_words: u32,
    sink_offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> queries: array<u32>;
@group(0) @binding(2) var<storage, read> firsts: array<u32>;
// f16 [rows, d], or a slab of sink pages; not read where there are none.
@group(0) @binding(3) var<storage, read> key_scales: array<u32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;
// q' [d], H q' [d], limit, factor, power, last position.
@group(0) @binding(5) var<storage, read_write> prepared: array<u32>;

const STRIDE: u32 = 2u * HEAD_DIM + 4u;
const QUERY_EXPONENT: i32 = -12;
const MIN_EXPONENT: i32 = -100;

var<workgroup> wg_exponent: atomic<u32>;

fn power(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// The stored bits of an element of the query, 0 where it is not finite.
fn query_bits(index: u32) -> u32 {
    let word = queries[element_word(index, params.dtype)];
    let bits = element_bits(word, index, params.dtype);
    return select(0u, bits, element_finite(bits));
}

// The number of these bits times 2^shift, where that is not below f32's normal range; else 0. In
// integers, since the power alone may be beyond f32 and small numbers may read as 0.
fn times_power(bits: u32, shift: i32) -> f32 {
    let mantissa = bits & 0x7fffffu;
    let old = (bits >> 23u) & 255u;
    let whole = bitcast<u32>(f32(mantissa));
    let small = old == 0u;
    let start = select(bits, whole | (bits & 0x80000000u), small);
    let exponent = i32((start >> 23u) & 255u) + shift - select(0, 149, small);
    let moved = (start & 0x807fffffu) | (u32(exponent) << 23u);
    return bitcast<f32>(select(0u, moved, exponent > 0 && (bits & 0x7fffffffu) != 0u));
}

// Where the key scale of a row starts; a row without one has none to be multiplied with.
fn scale_word(row: u32) -> u32 {
    if params.sink_words == 0u {
        return row * (HEAD_DIM >> 1u);
    }
    let page = lists[params.sinks_at + row];
    let index = page & params.sink_mask;
    let held = (page >> params.sink_shift) == params.sink_slab && index < params.sink_pages;
    return select(0u, index * params.sink_words, held) + params.sink_offset;
}

fn last_position(query: u32) -> u32 {
    if params.causal == 0u {
        return 0xffffffffu;
    }
    let head = divide_magic(
        query, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2);
    var first = params.first;
    if params.own != 0u {
        first += firsts[divide_magic(
            query, params.member_multiplier, params.member_shift1, params.member_shift2)];
    }
    return first + (query - head * params.tokens);
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let place = group.y * groups.x + group.x;
    let live = place < params.queries;
    let query = min(place, params.queries - 1u);
    if lane == 0u {
        atomicStore(&wg_exponent, 0u);
    }
    workgroupBarrier();
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        atomicMax(&wg_exponent, (query_bits(query * HEAD_DIM + c) >> 23u) & 255u);
    }
    workgroupBarrier();
    let exponent = max(i32(atomicLoad(&wg_exponent)) - 127, MIN_EXPONENT);
    let base = query * STRIDE;
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        let value = times_power(query_bits(query * HEAD_DIM + c), QUERY_EXPONENT - exponent);
        hadamard_data[c] = value;
        if live {
            prepared[base + c] = bitcast<u32>(value);
        }
    }
    if params.packed != 0u {
        hadamard_forward(lane);
        for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
            if live {
                let rotated = hadamard_data[c] * params.hadamard_scale;
                prepared[base + HEAD_DIM + c] = bitcast<u32>(rotated);
            }
        }
    }
    if params.scaled_at != 0u {
        // All have read what they wrote of the transform before.
        workgroupBarrier();
        let row = divide_magic(
            query, params.row_multiplier, params.row_shift1, params.row_shift2);
        let first = scale_word(row);
        for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
            let value = times_power(query_bits(query * HEAD_DIM + c), QUERY_EXPONENT - exponent);
            hadamard_data[c] = value * key_scale_factor(first, c);
        }
        hadamard_forward(lane);
        for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
            if live {
                let scaled = hadamard_data[c] * params.hadamard_scale;
                prepared[params.scaled_at + query * HEAD_DIM + c] = bitcast<u32>(scaled);
            }
        }
    }
    if lane == 0u && live {
        let lost = exponent - QUERY_EXPONENT;
        let boost = select(0, 64, lost > 60);
        let limit = power(clamp(params.limit - lost, -126, 126));
        prepared[base + 2u * HEAD_DIM] = bitcast<u32>(limit);
        let factor = params.scale * power(lost - boost);
        prepared[base + 2u * HEAD_DIM + 1u] = bitcast<u32>(factor);
        prepared[base + 2u * HEAD_DIM + 2u] = u32(boost);
        prepared[base + 2u * HEAD_DIM + 3u] = last_position(query);
    }
}
