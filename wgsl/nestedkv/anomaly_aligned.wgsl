// SPDX-License-Identifier: MIT OR Apache-2.0
// nestedkv/anomaly for windows of one run and blocks of whole runs: the token that leaves a window is the
// one at the same place in the run before. So a team takes the up to four runs of a block side by side,
// and every key on the grid serves two of them. Dispatched by src/nestedkv/gpu/anomaly.rs; twin
// src/nestedkv/cpu/anomaly.rs.
// A workgroup takes 64 / LANES blocks of a row, one a team; a lane takes 8 channels, step by step.

struct Params {
    rows: u32,
    tokens: u32,
    dim: u32,
    block: u32,
    pieces: u32,
    pieces_multiplier: u32,
    pieces_shift1: u32,
    pieces_shift2: u32,
    runs: u32,
    groups: u32,
    groups_multiplier: u32,
    groups_shift1: u32,
    groups_shift2: u32,
    window: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> factors: array<u32>;
@group(0) @binding(3) var<storage, read> means: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> sums: array<vec4<i32>>;
@group(0) @binding(5) var<storage, read_write> scales: array<f32>;
@group(0) @binding(6) var<storage, read_write> extremes: array<atomic<u32>>;

// Steps whose sums are turned to scores together. More take workgroup memory from what waits for keys.
const STEPS: u32 = 8u;
const TOKENS: u32 = 4u * STEPS;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.groups_multiplier, params.groups_shift1, params.groups_shift2);
    let first_block = (place - row * params.groups) * TEAMS;
    let team = lane >> LANE_BITS;
    let part = lane & (LANES - 1u);
    let parts = params.dim >> 3u;
    let block = first_block + team;
    let first = block * params.block;
    let last = select(0u, min(first + params.block, params.tokens), row < params.rows);
    let held = part < parts && first < last;
    let base = row * params.tokens;
    let first_sum = 2u * ((row * params.runs + block * params.pieces) * parts + part);

    var anchors = Anchors(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
    var near0 = Places(vec4<u32>(0u), vec4<u32>(0u));
    var near1 = near0;
    var near2 = near0;
    var near3 = near0;
    if held {
        anchors.stable_low = means[2u * (row * parts + part)];
        anchors.stable_high = means[2u * (row * parts + part) + 1u];
        var low = sums[first_sum];
        var high = sums[first_sum + 1u];
        near1 = Places(bitcast<vec4<u32>>(low), bitcast<vec4<u32>>(high));
        if params.pieces > 1u {
            let at = first_sum + 2u * parts;
            near2 = Places(bitcast<vec4<u32>>(sums[at]), bitcast<vec4<u32>>(sums[at + 1u]));
            low += sums[at];
            high += sums[at + 1u];
        }
        if params.pieces > 2u {
            let at = first_sum + 4u * parts;
            near3 = Places(bitcast<vec4<u32>>(sums[at]), bitcast<vec4<u32>>(sums[at + 1u]));
            low += sums[at];
            high += sums[at + 1u];
        }
        if params.pieces > 3u {
            let at = first_sum + 6u * parts;
            low += sums[at];
            high += sums[at + 1u];
        }
        anchors.block_low = vec4<f32>(low);
        anchors.block_high = vec4<f32>(high);
        if block > 0u {
            let at = first_sum - 2u * parts;
            near0 = Places(bitcast<vec4<u32>>(sums[at]), bitcast<vec4<u32>>(sums[at + 1u]));
        }
    }

    var next_before = key_load(base + first - 64u, part, parts, held && block > 0u);
    var next0 = key_load(base + first, part, parts, held && first < last);
    var next1 = key_load(base + first + 64u, part, parts, held && first + 64u < last);
    var next2 = key_load(base + first + 128u, part, parts, held && first + 128u < last);
    var next3 = key_load(base + first + 192u, part, parts, held && first + 192u < last);
    var later_before = factor_of(base + first - 64u, held && block > 0u);
    var later0 = factor_of(base + first, held && first < last);
    var later1 = factor_of(base + first + 64u, held && first + 64u < last);
    var later2 = factor_of(base + first + 128u, held && first + 128u < last);
    var later3 = factor_of(base + first + 192u, held && first + 192u < last);
    var highest = vec4<u32>(0u);
    var lowest = vec4<u32>(0u);
    let steps = select(0u, RUN, first_block * params.block < params.tokens);
    for (var tile = 0u; tile < steps; tile += STEPS) {
        for (var step = 0u; step < STEPS; step++) {
            let token = first + tile + step;
            let words_before = next_before;
            let words0 = next0;
            let words1 = next1;
            let words2 = next2;
            let words3 = next3;
            let factor_before = later_before;
            let factor0 = later0;
            let factor1 = later1;
            let factor2 = later2;
            let factor3 = later3;
            // What the next step needs is on its way while this one is worked on.
            let next = token + 1u;
            let more = held && tile + step + 1u < RUN;
            let is_before = more && block > 0u;
            let is0 = more && next < last;
            let is1 = more && next + 64u < last;
            let is2 = more && next + 128u < last;
            let is3 = more && next + 192u < last;
            next_before = key_load(base + next - 64u, part, parts, is_before);
            next0 = key_load(base + next, part, parts, is0);
            next1 = key_load(base + next + 64u, part, parts, is1);
            next2 = key_load(base + next + 128u, part, parts, is2);
            next3 = key_load(base + next + 192u, part, parts, is3);
            later_before = factor_of(base + next - 64u, is_before);
            later0 = factor_of(base + next, is0);
            later1 = factor_of(base + next + 64u, is1);
            later2 = factor_of(base + next + 128u, is2);
            later3 = factor_of(base + next + 192u, is3);
            let plain = ((factor_before | factor0 | factor1 | factor2 | factor3) & 1u) == 0u;
            var key_before = key_plain(words_before);
            var key0 = key_plain(words0);
            var key1 = key_plain(words1);
            var key2 = key_plain(words2);
            var key3 = key_plain(words3);
            if !plain {
                key_before = key_any(words_before);
                key0 = key_any(words0);
                key1 = key_any(words1);
                key2 = key_any(words2);
                key3 = key_any(words3);
            }
            let scale0 = key_scale(factor0);
            let scale1 = key_scale(factor1);
            let scale2 = key_scale(factor2);
            let scale3 = key_scale(factor3);
            let at = 4u * team * STRIDE + part;
            let place_before = places(key_before, key_scale(factor_before));
            let place0 = places(key0, scale0);
            near0.low += place0.low - place_before.low;
            near0.high += place0.high - place_before.high;
            let place1 = places(key1, scale1);
            near1.low += place1.low - place0.low;
            near1.high += place1.high - place0.high;
            let place2 = places(key2, scale2);
            near2.low += place2.low - place1.low;
            near2.high += place2.high - place1.high;
            let place3 = places(key3, scale3);
            near3.low += place3.low - place2.low;
            near3.high += place3.high - place2.high;
            wg_partials[at] = products(
                key0, scale0, anchors, vec4<f32>(bitcast<vec4<i32>>(near0.low)),
                vec4<f32>(bitcast<vec4<i32>>(near0.high)), place0);
            wg_partials[at + STRIDE] = products(
                key1, scale1, anchors, vec4<f32>(bitcast<vec4<i32>>(near1.low)),
                vec4<f32>(bitcast<vec4<i32>>(near1.high)), place1);
            wg_partials[at + 2u * STRIDE] = products(
                key2, scale2, anchors, vec4<f32>(bitcast<vec4<i32>>(near2.low)),
                vec4<f32>(bitcast<vec4<i32>>(near2.high)), place2);
            wg_partials[at + 3u * STRIDE] = products(
                key3, scale3, anchors, vec4<f32>(bitcast<vec4<i32>>(near3.low)),
                vec4<f32>(bitcast<vec4<i32>>(near3.high)), place3);
            workgroupBarrier();
            for (var index = lane; index < 16u * TEAMS; index += 64u) {
                let line = index >> 2u;
                let product = index & 3u;
                wg_sums[(line * STEPS + step) * 4u + product] = partials_sum(line, product);
            }
            workgroupBarrier();
        }
        for (var index = lane; index < 4u * STEPS * TEAMS; index += 64u) {
            let line = index >> 3u;
            let own_block = first_block + (line >> 2u);
            let token = own_block * params.block + (line & 3u) * RUN + tile + (index & (STEPS - 1u));
            let end = min((own_block + 1u) * params.block, params.tokens);
            if row < params.rows && token < end {
                let block_length = end - own_block * params.block;
                let window = min(RUN, token + 1u);
                let score =
                    raw_scores(4u * index, block_length, window, factors[base + token]);
                let at = row * params.tokens + token;
                let count = params.rows * params.tokens;
                scales[at] = score.x;
                scales[count + at] = score.y;
                scales[2u * count + at] = score.z;
                let order = score_keys(score);
                highest = max(highest, order);
                lowest = max(lowest, ~order);
            }
        }
        workgroupBarrier();
    }
    ends_store(highest, lowest, row, lane);
}
