// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 2 to 4: raw scores of the three scales, [3, rows, tokens], and the ends of their range:
// `extremes` [3, rows, 2] is 0 before and holds the highest key of the scores (order.wgsl) and the
// highest of the keys' complements after. Sums over runs and windows are integers, so they are exact.
// Dispatched by src/nestedkv/gpu/anomaly.rs; twin src/nestedkv/cpu/anomaly.rs.
// For any window and block; anomaly_aligned.wgsl is for the usual ones.
// A workgroup takes 64 / LANES runs of a row, one a team; a lane takes 8 channels, token by token.

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

fn is_plain(factor: u32) -> bool {
    return (factor & 1u) == 0u;
}

fn places_of(words: KeyWords, factor: u32) -> Places {
    return places(key_read(words, is_plain(factor)), key_scale(factor));
}

const TOKENS: u32 = RUN;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.groups_multiplier, params.groups_shift1, params.groups_shift2);
    let first_run = (place - row * params.groups) * TEAMS;
    let team = lane >> LANE_BITS;
    let part = lane & (LANES - 1u);
    let parts = params.dim >> 3u;
    let held = part < parts && row < params.rows;
    let run = first_run + team;
    let range = run_range(run);
    let last = select(range.x, range.y, run < params.runs && row < params.rows);
    let base = row * params.tokens;
    let run_base = row * params.runs;

    var anchors = Anchors(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
    var near = Places(vec4<u32>(0u), vec4<u32>(0u));
    // The part of a long window that stays the same over a run.
    var far_low = vec4<f32>(0.0);
    var far_high = vec4<f32>(0.0);
    if held && range.x < last {
        anchors.stable_low = means[2u * (row * parts + part)];
        anchors.stable_high = means[2u * (row * parts + part) + 1u];
        let block = divide_magic(
            run, params.pieces_multiplier, params.pieces_shift1, params.pieces_shift2);
        var low = vec4<i32>(0);
        var high = vec4<i32>(0);
        for (var piece = 0u; piece < params.pieces; piece++) {
            let at = 2u * ((run_base + block * params.pieces + piece) * parts + part);
            low += sums[at];
            high += sums[at + 1u];
        }
        anchors.block_low = vec4<f32>(low);
        anchors.block_high = vec4<f32>(high);
        // The window that ends before the run: whole runs as far as they fit, then single tokens.
        var far_top_low = vec4<i32>(0);
        var far_top_high = vec4<i32>(0);
        var far_rest_low = vec4<i32>(0);
        var far_rest_high = vec4<i32>(0);
        var from_token = range.x;
        var missing = min(params.window, range.x);
        for (var before = run; before > 0u; before--) {
            let earlier = run_range(before - 1u);
            if earlier.y - earlier.x > missing {
                break;
            }
            missing -= earlier.y - earlier.x;
            from_token = earlier.x;
            let at = 2u * ((run_base + before - 1u) * parts + part);
            if LONG == 1u {
                // In two parts that cannot overflow.
                far_top_low += sums[at] >> vec4<u32>(14u);
                far_top_high += sums[at + 1u] >> vec4<u32>(14u);
                far_rest_low += sums[at] & vec4<i32>(0x3fff);
                far_rest_high += sums[at + 1u] & vec4<i32>(0x3fff);
            } else {
                near.low += bitcast<vec4<u32>>(sums[at]);
                near.high += bitcast<vec4<u32>>(sums[at + 1u]);
            }
        }
        for (var token = from_token - missing; token < from_token; token++) {
            let one = places_of(key_load(base + token, part, parts, true), factors[base + token]);
            near.low += one.low - vec4<u32>(KEY_BINADE_BITS);
            near.high += one.high - vec4<u32>(KEY_BINADE_BITS);
        }
        far_low = vec4<f32>(far_top_low) * 16384.0 + vec4<f32>(far_rest_low);
        far_high = vec4<f32>(far_top_high) * 16384.0 + vec4<f32>(far_rest_high);
    }

    for (var tile = 0u; tile < RUN; tile += 4u) {
        for (var step = 0u; step < 4u; step++) {
            let token = range.x + tile + step;
            let live = held && token < last;
            let leaves = live && token >= params.window;
            let old = base + token - select(0u, params.window, leaves);
            let words = key_load(base + token, part, parts, live);
            let old_words = key_load(old, part, parts, leaves);
            let factor = factor_of(base + token, live);
            let old_factor = factor_of(old, leaves);
            let key = key_read(words, is_plain(factor));
            let scale = key_scale(factor);
            let added = places(key, scale);
            let left = places_of(old_words, old_factor);
            near.low += added.low - left.low;
            near.high += added.high - left.high;
            var recent_low = vec4<f32>(bitcast<vec4<i32>>(near.low));
            var recent_high = vec4<f32>(bitcast<vec4<i32>>(near.high));
            if LONG == 1u {
                recent_low += far_low;
                recent_high += far_high;
            }
            wg_partials[(4u * team + step) * STRIDE + part] =
                products(key, scale, anchors, recent_low, recent_high, added);
        }
        workgroupBarrier();
        for (var index = lane; index < 16u * TEAMS; index += 64u) {
            let token = index >> 2u;
            let product = index & 3u;
            wg_sums[((token >> 2u) * RUN + tile + (token & 3u)) * 4u + product] =
                partials_sum(token, product);
        }
        workgroupBarrier();
    }

    var highest = vec4<u32>(0u);
    var lowest = vec4<u32>(0u);
    for (var t = 0u; t < TEAMS; t++) {
        let own_run = first_run + t;
        let own_range = run_range(own_run);
        let token = own_range.x + lane;
        if row < params.rows && own_run < params.runs && token < own_range.y {
            let at = (t * RUN + lane) * 4u;
            let block = divide_magic(
                own_run, params.pieces_multiplier, params.pieces_shift1, params.pieces_shift2);
            let block_length = min(params.block, params.tokens - block * params.block);
            let window = min(params.window, token + 1u);
            let score = raw_scores(at, block_length, window, factors[base + token]);
            let line = row * params.tokens + token;
            let count = params.rows * params.tokens;
            scales[line] = score.x;
            scales[count + line] = score.y;
            scales[2u * count + line] = score.z;
            let order = score_keys(score);
            highest = max(highest, order);
            lowest = max(lowest, ~order);
        }
    }
    ends_store(highest, lowest, row, lane);
}
