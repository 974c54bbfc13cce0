// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over raw tokens: for each query and split, the sums of weighted values
// [head_dim_v], the largest logit and the sum of the weights. Dispatched by
// src/attention/gpu/raw.rs; twin: src/attention/cpu/raw.rs.
// One workgroup a (row, block of 4 queries, split). Tiles of 128 tokens: first a lane is a token,
// then a lane is a pair of channels of every `groups`-th token. Needs element.wgsl, divide.wgsl and
// softmax.wgsl.

struct Params {
    kv_rows: u32,
    per_row: u32,
    tokens: u32,
    head_dim_v: u32,
    total: u32,
    key_dtype: u32,
    value_dtype: u32,
    causal: u32,
    first: u32,
    blocks: u32,
    splits: u32,
    groups: u32,
    blocks_multiplier: u32,
    blocks_shift1: u32,
    blocks_shift2: u32,
    splits_multiplier: u32,
    splits_shift1: u32,
    splits_shift2: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    pairs_multiplier: u32,
    pairs_shift1: u32,
    pairs_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<f32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
@group(0) @binding(5) var<storage, read> positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 128u;
const STRIDE: u32 = 2u * HEAD_DIM + 4u;

var<workgroup> wg_query: array<vec4<f32>, HEAD_DIM>;
var<workgroup> wg_weight: array<vec4<f32>, SOFTMAX_LANES>;

// Dot products of the block's queries with the key of a token.
fn dot_key(token: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    if params.key_dtype == 0u {
        let base = token * HEAD_DIM;
        for (var c = 0u; c < HEAD_DIM; c += 4u) {
            let a = keys[base + c];
            let b = keys[base + c + 1u];
            let d = keys[base + c + 2u];
            let e = keys[base + c + 3u];
            sum += wg_query[c] * element_read(a, 0u, 0u);
            sum += wg_query[c + 1u] * element_read(b, 0u, 0u);
            sum += wg_query[c + 2u] * element_read(d, 0u, 0u);
            sum += wg_query[c + 3u] * element_read(e, 0u, 0u);
        }
        return sum;
    }
    let base = token * (HEAD_DIM / 2u);
    for (var c = 0u; c < HEAD_DIM; c += 8u) {
        let word = base + (c >> 1u);
        let a = keys[word];
        let b = keys[word + 1u];
        let d = keys[word + 2u];
        let e = keys[word + 3u];
        sum += wg_query[c] * element_read(a, 0u, params.key_dtype);
        sum += wg_query[c + 1u] * element_read(a, 1u, params.key_dtype);
        sum += wg_query[c + 2u] * element_read(b, 0u, params.key_dtype);
        sum += wg_query[c + 3u] * element_read(b, 1u, params.key_dtype);
        sum += wg_query[c + 4u] * element_read(d, 0u, params.key_dtype);
        sum += wg_query[c + 5u] * element_read(d, 1u, params.key_dtype);
        sum += wg_query[c + 6u] * element_read(e, 0u, params.key_dtype);
        sum += wg_query[c + 7u] * element_read(e, 1u, params.key_dtype);
    }
    return sum;
}

// Channels 2 * pair and 2 * pair + 1 of the value of a token.
fn value_pair(token: u32, pair: u32) -> vec2<f32> {
    let index = token * params.head_dim_v + 2u * pair;
    let word = element_word(index, params.value_dtype);
    let low = values[word];
    let high = values[element_word(index + 1u, params.value_dtype)];
    return vec2<f32>(
        element_read(low, 0u, params.value_dtype),
        element_read(high, 1u, params.value_dtype),
    );
}

fn store(query: vec4<u32>, split: u32, channel: u32, value: vec4<f32>) {
    let stride = params.head_dim_v + 2u;
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

fn scale_of(query: vec4<u32>, part: u32) -> vec4<f32> {
    let at = query * STRIDE + vec4<u32>(2u * HEAD_DIM + part);
    return vec4<f32>(prepared[at.x], prepared[at.y], prepared[at.z], prepared[at.w]);
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
        let at = query * STRIDE + vec4<u32>(c);
        wg_query[c] = vec4<f32>(prepared[at.x], prepared[at.y], prepared[at.z], prepared[at.w]);
    }
    workgroupBarrier();
    let limit = scale_of(query, 0u);
    let factor = scale_of(query, 1u);
    let boost = vec4<u32>(scale_of(query, 2u));

    // Tokens of the split: the row's share, in whole tiles.
    let row_end = min(offsets[row + 1u], params.total);
    let row_begin = min(offsets[row], row_end);
    let share = divide_magic(
        row_end - row_begin + params.splits - 1u,
        params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let length = (share + SOFTMAX_LANES - 1u) & ~(SOFTMAX_LANES - 1u);
    let begin = min(row_begin + split * length, row_end);
    let end = min(begin + length, row_end);

    let pairs = params.head_dim_v >> 1u;
    let lane_group = divide_magic(
        lane, params.pairs_multiplier, params.pairs_shift1, params.pairs_shift2);
    let pair = lane - lane_group * pairs;
    let owns = lane_group < params.groups;
    let owns_second = pair + SOFTMAX_LANES < pairs;

    var top = vec4<f32>(SOFTMAX_UNSEEN);
    var weights = vec4<f32>(0.0);
    var sum_a = vec4<f32>(0.0);
    var sum_b = vec4<f32>(0.0);
    var sum_c = vec4<f32>(0.0);
    var sum_d = vec4<f32>(0.0);
    for (var tile = begin; tile < end; tile += SOFTMAX_LANES) {
        let token = tile + lane;
        var logit = vec4<f32>(SOFTMAX_UNSEEN);
        var seen = vec4<bool>(false);
        if token < end {
            seen = wanted;
            if params.causal != 0u {
                seen = seen & (vec4<u32>(positions[token]) <= last);
            }
            logit = select(logit, softmax_logit(dot_key(token), limit, factor, boost), seen);
        }
        let new_top = max(top, softmax_max(lane, logit));
        let shrink = softmax_power(top - new_top);
        let power = softmax_power(logit - new_top);
        let weight = select(vec4<f32>(0.0), power * SOFTMAX_FACTOR, seen);
        top = new_top;
        weights = weights * shrink + weight;
        wg_weight[lane] = weight;
        workgroupBarrier();
        sum_a *= shrink;
        sum_b *= shrink;
        sum_c *= shrink;
        sum_d *= shrink;
        if owns {
            let count = min(end - tile, SOFTMAX_LANES);
            var t = lane_group;
            for (; t + 3u * params.groups < count; t += 4u * params.groups) {
                let second = t + params.groups;
                let third = second + params.groups;
                let fourth = third + params.groups;
                let value_1 = value_pair(tile + t, pair);
                let value_2 = value_pair(tile + second, pair);
                let value_3 = value_pair(tile + third, pair);
                let value_4 = value_pair(tile + fourth, pair);
                sum_a += wg_weight[t] * value_1.x;
                sum_b += wg_weight[t] * value_1.y;
                sum_a += wg_weight[second] * value_2.x;
                sum_b += wg_weight[second] * value_2.y;
                sum_a += wg_weight[third] * value_3.x;
                sum_b += wg_weight[third] * value_3.y;
                sum_a += wg_weight[fourth] * value_4.x;
                sum_b += wg_weight[fourth] * value_4.y;
            }
            for (; t < count; t += params.groups) {
                let value = value_pair(tile + t, pair);
                sum_a += wg_weight[t] * value.x;
                sum_b += wg_weight[t] * value.y;
            }
            if owns_second {
                for (var u = lane_group; u < count; u += params.groups) {
                    let value = value_pair(tile + u, pair + SOFTMAX_LANES);
                    sum_c += wg_weight[u] * value.x;
                    sum_d += wg_weight[u] * value.y;
                }
            }
        }
    }

    let total = softmax_sum(lane, weights);
    let all_a = softmax_groups(lane, sum_a, pairs, params.groups);
    let all_b = softmax_groups(lane, sum_b, pairs, params.groups);
    if lane_group == 0u {
        store(target_query, split, 2u * pair, all_a);
        store(target_query, split, 2u * pair + 1u, all_b);
        if owns_second {
            store(target_query, split, 2u * (pair + SOFTMAX_LANES), sum_c);
            store(target_query, split, 2u * (pair + SOFTMAX_LANES) + 1u, sum_d);
        }
    }
    if lane == 0u {
        store(target_query, split, params.head_dim_v, top);
        store(target_query, split, params.head_dim_v + 1u, total);
    }
}
