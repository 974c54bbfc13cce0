// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over packed pages, read as they are: for each query and split, the sums of
// weighted means [head_dim_v], the sums of weighted centroids in the Hadamard domain [head_dim_v],
// the largest logit and the sum of the weights. Dispatched by src/attention/gpu/packed.rs; twin:
// src/attention/cpu/packed.rs.
// One workgroup a (row, block of 4 queries, split). Tiles of 64 tokens of a page: first a lane is a
// token, then a lane is a piece of every `groups`-th token. Needs element.wgsl, page.wgsl,
// divide.wgsl and softmax.wgsl.

struct Params {
    kv_rows: u32,
    per_row: u32,
    tokens: u32,
    head_dim_v: u32,
    total: u32,
    chunk: u32,
    causal: u32,
    first: u32,
    blocks: u32,
    splits: u32,
    groups: u32,
    pieces_v: u32,
    norm_k: f32,
    norm_v: f32,
    key_bits: u32,
    value_bits: u32,
    key_words: u32,
    key_sign: u32,
    key_s1: u32,
    key_s2: u32,
    key_o: u32,
    value_words: u32,
    value_sign: u32,
    value_s1: u32,
    value_s2: u32,
    value_o: u32,
    blocks_multiplier: u32,
    blocks_shift1: u32,
    blocks_shift2: u32,
    splits_multiplier: u32,
    splits_shift1: u32,
    splits_shift2: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    pieces_multiplier: u32,
    pieces_shift1: u32,
    pieces_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<f32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> key_pages: array<u32>;
@group(0) @binding(4) var<storage, read> value_pages: array<u32>;
// Centroid i is rows 2i and 2i + 1.
@group(0) @binding(5) var<storage, read> key_book: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> value_book: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> positions: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 64u;
const STRIDE: u32 = 2u * HEAD_DIM + 4u;
const PIECES: u32 = HEAD_DIM / 8u;
const MIN_NORM: f32 = 1e-8;

var<workgroup> wg_query: array<vec4<f32>, HEAD_DIM>;
var<workgroup> wg_weight: array<vec4<f32>, SOFTMAX_LANES>;
var<workgroup> wg_key_square: array<f32, 256>;
var<workgroup> wg_value_square: array<f32, 256>;

fn square_of(low: vec4<f32>, high: vec4<f32>) -> f32 {
    let a = low * low;
    let b = high * high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// Dot products of the rotated queries with the centroids of a token of the page at `page`, brought
// to norm sqrt(d).
fn dot_key(page: u32, token: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    var square = 0.0;
    // A head dimension that is a multiple of 32 has whole words of codes in a token.
    if (PIECES & 3u) == 0u {
        for (var piece = 0u; piece < PIECES; piece += 4u) {
            let word = page + ((token * PIECES + piece) >> 2u);
            let indices = key_pages[word];
            var signs = 0xffffffffu;
            if params.key_bits == 2u {
                signs = key_pages[word + params.key_sign];
            }
            let c = piece * 8u;
            sum += dot_piece(indices & 0xffu, signs, c);
            sum += dot_piece((indices >> 8u) & 0xffu, signs >> 8u, c + 8u);
            sum += dot_piece((indices >> 16u) & 0xffu, signs >> 16u, c + 16u);
            sum += dot_piece(indices >> 24u, signs >> 24u, c + 24u);
            square += wg_key_square[indices & 0xffu];
            square += wg_key_square[(indices >> 8u) & 0xffu];
            square += wg_key_square[(indices >> 16u) & 0xffu];
            square += wg_key_square[indices >> 24u];
        }
    } else {
        for (var piece = 0u; piece < PIECES; piece++) {
            let byte = token * PIECES + piece;
            let word = page + (byte >> 2u);
            let index = page_byte(key_pages[word], byte);
            var signs = 0xffu;
            if params.key_bits == 2u {
                signs = page_byte(key_pages[word + params.key_sign], byte);
            }
            sum += dot_piece(index, signs, piece * 8u);
            square += wg_key_square[index];
        }
    }
    return sum * (params.norm_k / max(sqrt(square), MIN_NORM));
}

// Dot products of the rotated queries' channels from `c` on with a centroid under signs.
fn dot_piece(index: u32, signs: u32, c: u32) -> vec4<f32> {
    let low = page_signed(key_book[2u * index], signs);
    let high = page_signed(key_book[2u * index + 1u], signs >> 4u);
    var sum = wg_query[c] * low.x;
    sum += wg_query[c + 1u] * low.y;
    sum += wg_query[c + 2u] * low.z;
    sum += wg_query[c + 3u] * low.w;
    sum += wg_query[c + 4u] * high.x;
    sum += wg_query[c + 5u] * high.y;
    sum += wg_query[c + 6u] * high.z;
    sum += wg_query[c + 7u] * high.w;
    return sum;
}

// What brings the centroids of a value to norm sqrt(d).
fn value_gain(page: u32, token: u32) -> f32 {
    var square = 0.0;
    if (params.pieces_v & 3u) == 0u {
        for (var piece = 0u; piece < params.pieces_v; piece += 4u) {
            let indices = value_pages[page + ((token * params.pieces_v + piece) >> 2u)];
            square += wg_value_square[indices & 0xffu];
            square += wg_value_square[(indices >> 8u) & 0xffu];
            square += wg_value_square[(indices >> 16u) & 0xffu];
            square += wg_value_square[indices >> 24u];
        }
    } else {
        for (var piece = 0u; piece < params.pieces_v; piece++) {
            let byte = token * params.pieces_v + piece;
            square += wg_value_square[page_byte(value_pages[page + (byte >> 2u)], byte)];
        }
    }
    return params.norm_v / max(sqrt(square), MIN_NORM);
}

fn key_scale(page: u32, token: u32) -> f32 {
    return page_scale(key_pages[page + params.key_s1 + (token >> 1u)], token);
}

fn value_scale(page: u32, token: u32) -> f32 {
    return page_scale(value_pages[page + params.value_s1 + (token >> 1u)], token);
}

fn load(query: vec4<u32>, part: u32) -> vec4<f32> {
    let at = query * STRIDE + vec4<u32>(part);
    return vec4<f32>(prepared[at.x], prepared[at.y], prepared[at.z], prepared[at.w]);
}

fn store(query: vec4<u32>, split: u32, channel: u32, value: vec4<f32>) {
    let stride = 2u * params.head_dim_v + 2u;
    if query.x != 0xffffffffu {
        partials[(query.x * params.splits + split) * stride + channel] = value.x;
    }
    if query.y != 0xffffffffu {
        partials[(query.y * params.splits + split) * stride + channel] = value.y;
    }
    if query.z != 0xffffffffu {
        partials[(query.z * params.splits + split) * stride + channel] = value.z;
    }
    if query.w != 0xffffffffu {
        partials[(query.w * params.splits + split) * stride + channel] = value.w;
    }
}

fn value_mean(page: u32, channel: u32) -> f32 {
    return page_real(value_pages[page + params.value_o + (channel >> 1u)], channel);
}

@compute @workgroup_size(SOFTMAX_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let place = group.y * groups.x + group.x;
    let line = divide_magic(
        place, params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let split = place - line * params.splits;
    let place_row = divide_magic(
        line, params.blocks_multiplier, params.blocks_shift1, params.blocks_shift2);
    let live = place_row < params.kv_rows;
    let row = min(place_row, params.kv_rows - 1u);
    let number = vec4<u32>((line - place_row * params.blocks) * 4u) + vec4<u32>(0u, 1u, 2u, 3u);
    let wanted = (number < vec4<u32>(params.per_row)) & vec4<bool>(live);
    let query = row * params.per_row + min(number, vec4<u32>(params.per_row - 1u));
    let target_query = select(vec4<u32>(0xffffffffu), query, wanted);
    // Query token of each: its number within its head.
    let head = vec4<u32>(
        divide_magic(number.x, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2),
        divide_magic(number.y, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2),
        divide_magic(number.z, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2),
        divide_magic(number.w, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2),
    );
    let last = params.first + number - head * params.tokens;

    for (var c = lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        wg_query[c] = load(query, HEAD_DIM + c);
    }
    for (var i = lane; i < 256u; i += SOFTMAX_LANES) {
        wg_key_square[i] = square_of(key_book[2u * i], key_book[2u * i + 1u]);
        wg_value_square[i] = square_of(value_book[2u * i], value_book[2u * i + 1u]);
    }
    workgroupBarrier();
    let limit = load(query, 2u * HEAD_DIM);
    let factor = load(query, 2u * HEAD_DIM + 1u);
    let boost = vec4<u32>(load(query, 2u * HEAD_DIM + 2u));

    let row_end = min(offsets[row + 1u], params.total);
    let row_begin = min(offsets[row], row_end);
    let length = divide_magic(
        row_end - row_begin + params.splits - 1u,
        params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let begin = min(row_begin + split * length, row_end);
    let end = min(begin + length, row_end);

    let lane_group = divide_magic(
        lane, params.pieces_multiplier, params.pieces_shift1, params.pieces_shift2);
    let piece = lane - lane_group * params.pieces_v;
    let owns = lane_group < params.groups;

    var top = vec4<f32>(SOFTMAX_UNSEEN);
    var weights = vec4<f32>(0.0);
    var sum_0 = vec4<f32>(0.0);
    var sum_1 = vec4<f32>(0.0);
    var sum_2 = vec4<f32>(0.0);
    var sum_3 = vec4<f32>(0.0);
    var sum_4 = vec4<f32>(0.0);
    var sum_5 = vec4<f32>(0.0);
    var sum_6 = vec4<f32>(0.0);
    var sum_7 = vec4<f32>(0.0);
    var mean_0 = vec4<f32>(0.0);
    var mean_1 = vec4<f32>(0.0);
    var mean_2 = vec4<f32>(0.0);
    var mean_3 = vec4<f32>(0.0);
    var mean_4 = vec4<f32>(0.0);
    var mean_5 = vec4<f32>(0.0);
    var mean_6 = vec4<f32>(0.0);
    var mean_7 = vec4<f32>(0.0);
    for (var number_page = begin; number_page < end; number_page++) {
        let key_page = number_page * params.key_words;
        let value_page = number_page * params.value_words;
        var part = vec4<f32>(0.0);
        for (var c = lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
            let mean = page_real(key_pages[key_page + params.key_o + (c >> 1u)], c);
            part += load(query, c) * mean;
        }
        let shared_dot = softmax_sum(lane, part);
        for (var tile = 0u; tile < params.chunk; tile += SOFTMAX_LANES) {
            let token = tile + lane;
            var logit = vec4<f32>(SOFTMAX_UNSEEN);
            var seen = vec4<bool>(false);
            var s1 = 0.0;
            var s2 = 0.0;
            if token < params.chunk {
                seen = wanted;
                if params.causal != 0u {
                    let position = positions[number_page * params.chunk + token];
                    seen = seen & (vec4<u32>(position) <= last);
                }
                let key_s2 = page_real(key_pages[key_page + params.key_s2 + (token >> 1u)], token);
                let inner = key_s2 * dot_key(key_page, token) + shared_dot;
                let dot = key_scale(key_page, token) * inner;
                logit = select(logit, softmax_logit(dot, limit, factor, boost), seen);
                s1 = value_scale(value_page, token);
                s2 = page_real(value_pages[value_page + params.value_s2 + (token >> 1u)], token)
                    * value_gain(value_page, token);
            }
            let new_top = max(top, softmax_max(lane, logit));
            let shrink = softmax_power(top - new_top);
            let power = softmax_power(logit - new_top);
            let weight = select(vec4<f32>(0.0), power * SOFTMAX_FACTOR, seen);
            top = new_top;
            weights = weights * shrink + weight;
            let scaled = weight * s1;
            wg_weight[lane] = scaled * s2;
            // The barriers of the sum also show the weights to all.
            let share = softmax_sum(lane, scaled);
            sum_0 *= shrink;
            sum_1 *= shrink;
            sum_2 *= shrink;
            sum_3 *= shrink;
            sum_4 *= shrink;
            sum_5 *= shrink;
            sum_6 *= shrink;
            sum_7 *= shrink;
            if owns {
                let count = min(params.chunk - tile, SOFTMAX_LANES);
                for (var t = lane_group; t < count; t += params.groups) {
                    let byte = (tile + t) * params.pieces_v + piece;
                    let index = page_byte(value_pages[value_page + (byte >> 2u)], byte);
                    var low = value_book[2u * index];
                    var high = value_book[2u * index + 1u];
                    if params.value_bits == 2u {
                        let signs = page_byte(
                            value_pages[value_page + params.value_sign + (byte >> 2u)], byte);
                        low = page_signed(low, signs);
                        high = page_signed(high, signs >> 4u);
                    }
                    let w = wg_weight[t];
                    sum_0 += w * low.x;
                    sum_1 += w * low.y;
                    sum_2 += w * low.z;
                    sum_3 += w * low.w;
                    sum_4 += w * high.x;
                    sum_5 += w * high.y;
                    sum_6 += w * high.z;
                    sum_7 += w * high.w;
                }
            }
            if lane_group == 0u {
                let c = piece * 8u;
                mean_0 = mean_0 * shrink + share * value_mean(value_page, c);
                mean_1 = mean_1 * shrink + share * value_mean(value_page, c + 1u);
                mean_2 = mean_2 * shrink + share * value_mean(value_page, c + 2u);
                mean_3 = mean_3 * shrink + share * value_mean(value_page, c + 3u);
                mean_4 = mean_4 * shrink + share * value_mean(value_page, c + 4u);
                mean_5 = mean_5 * shrink + share * value_mean(value_page, c + 5u);
                mean_6 = mean_6 * shrink + share * value_mean(value_page, c + 6u);
                mean_7 = mean_7 * shrink + share * value_mean(value_page, c + 7u);
            }
        }
    }

    let total = softmax_sum(lane, weights);
    let all_0 = softmax_groups(lane, sum_0, params.pieces_v, params.groups);
    let all_1 = softmax_groups(lane, sum_1, params.pieces_v, params.groups);
    let all_2 = softmax_groups(lane, sum_2, params.pieces_v, params.groups);
    let all_3 = softmax_groups(lane, sum_3, params.pieces_v, params.groups);
    let all_4 = softmax_groups(lane, sum_4, params.pieces_v, params.groups);
    let all_5 = softmax_groups(lane, sum_5, params.pieces_v, params.groups);
    let all_6 = softmax_groups(lane, sum_6, params.pieces_v, params.groups);
    let all_7 = softmax_groups(lane, sum_7, params.pieces_v, params.groups);
    if lane_group == 0u {
        let c = piece * 8u;
        store(target_query, split, c, mean_0);
        store(target_query, split, c + 1u, mean_1);
        store(target_query, split, c + 2u, mean_2);
        store(target_query, split, c + 3u, mean_3);
        store(target_query, split, c + 4u, mean_4);
        store(target_query, split, c + 5u, mean_5);
        store(target_query, split, c + 6u, mean_6);
        store(target_query, split, c + 7u, mean_7);
        let rotated = params.head_dim_v + c;
        store(target_query, split, rotated, all_0);
        store(target_query, split, rotated + 1u, all_1);
        store(target_query, split, rotated + 2u, all_2);
        store(target_query, split, rotated + 3u, all_3);
        store(target_query, split, rotated + 4u, all_4);
        store(target_query, split, rotated + 5u, all_5);
        store(target_query, split, rotated + 6u, all_6);
        store(target_query, split, rotated + 7u, all_7);
    }
    if lane == 0u {
        store(target_query, split, 2u * params.head_dim_v, top);
        store(target_query, split, 2u * params.head_dim_v + 1u, total);
    }
}
