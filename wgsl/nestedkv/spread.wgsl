// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 4 and 5: of every scale of every row the lowest raw score, the span (0 where it is at most
// `flat`), and the gap between the means of the highest and the lowest tenth after stretching to
// [0, 1]. `spreads` is [3, rows] of (low, span, gap, 0). Dispatched by src/nestedkv/gpu/spread.rs;
// twin src/nestedkv/cpu/spread.rs.
// A workgroup takes one scale of one row; WG lanes, fewer for short rows. Rows of up to 64 tokens are
// ranked by comparing every token with every other, longer ones by radix select.

struct Params {
    lines: u32,
    tokens: u32,
    group: u32,
    flat: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scales: array<u32>;
@group(0) @binding(2) var<storage, read_write> spreads: array<vec4<f32>>;

override WG: u32 = 256u;

var<workgroup> wg_low: array<u32, 256>;
var<workgroup> wg_high: array<u32, 256>;
var<workgroup> wg_top: array<f32, 256>;
var<workgroup> wg_bottom: array<f32, 256>;

// What is written of a line.
fn spread_of(low: f32, high: f32, highest_sum: f32, lowest_sum: f32) -> vec4<f32> {
    let span = high - low;
    let spread = span > params.flat;
    let gap = (highest_sum - lowest_sum) / f32(params.group) / select(1.0, span, spread);
    return vec4<f32>(low, select(0.0, span, spread), select(0.0, gap, spread), 0.0);
}

fn spread_short(line: u32, lane: u32) {
    let tokens = select(0u, params.tokens, line < params.lines);
    let live = lane < tokens;
    let bits = scales[line * params.tokens + min(lane, params.tokens - 1u)];
    let own = order_key(bits);
    wg_low[lane] = own;
    workgroupBarrier();
    var lowest = own;
    var highest = own;
    var above = 0u;
    var below = 0u;
    for (var token = 0u; token < tokens; token++) {
        let key = wg_low[token];
        lowest = min(lowest, key);
        highest = max(highest, key);
        let before = key == own && token < lane;
        above += select(0u, 1u, key > own || before);
        below += select(0u, 1u, key < own || before);
    }
    let low = order_score(lowest);
    let value = bitcast<f32>(bits) - low;
    wg_top[lane] = select(0.0, value, live && above < params.group);
    wg_bottom[lane] = select(0.0, value, live && below < params.group);
    workgroupBarrier();
    if lane == 0u && line < params.lines {
        var highest_sum = 0.0;
        var lowest_sum = 0.0;
        for (var token = 0u; token < tokens; token++) {
            highest_sum += wg_top[token];
            lowest_sum += wg_bottom[token];
        }
        spreads[line] = spread_of(low, order_score(highest), highest_sum, lowest_sum);
    }
}

fn spread_long(line: u32, lane: u32) {
    let tokens = select(0u, params.tokens, line < params.lines);
    let base = line * params.tokens;

    var lowest = 0xffffffffu;
    var highest = 0u;
    for (var token = lane; token < tokens; token += WG) {
        let key = order_key(scales[base + token]);
        lowest = min(lowest, key);
        highest = max(highest, key);
    }
    wg_low[lane] = lowest;
    wg_high[lane] = highest;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_low[lane] = min(wg_low[lane], wg_low[lane + half_size]);
            wg_high[lane] = max(wg_high[lane], wg_high[lane + half_size]);
        }
        workgroupBarrier();
    }
    let low = order_score(wg_low[0]);
    let high = order_score(wg_high[0]);
    workgroupBarrier();

    // The highest of the keys in histogram 0, the highest of their complements in histogram 1.
    var top = 0u;
    var bottom = 0u;
    var top_rank = params.group;
    var bottom_rank = params.group;
    for (var pass_index = 0u; pass_index < 4u; pass_index++) {
        let shift = 24u - 8u * pass_index;
        radix_clear(lane);
        for (var token = lane; token < tokens; token += WG) {
            let key = order_key(scales[base + token]);
            radix_count(0u, key, top, shift, 1u);
            radix_count(1u, ~key, bottom, shift, 1u);
        }
        radix_pick(vec2<u32>(top_rank, bottom_rank), lane);
        let high_bin = radix_found[0];
        let low_bin = radix_found[1];
        top |= high_bin.x << shift;
        top_rank -= high_bin.y;
        bottom |= low_bin.x << shift;
        bottom_rank -= low_bin.y;
    }
    bottom = ~bottom;

    var top_sum = 0.0;
    var bottom_sum = 0.0;
    for (var token = lane; token < tokens; token += WG) {
        let bits = scales[base + token];
        let key = order_key(bits);
        let above = bitcast<f32>(bits) - low;
        top_sum += select(0.0, above, key > top);
        bottom_sum += select(0.0, above, key < bottom);
    }
    wg_top[lane] = top_sum;
    wg_bottom[lane] = bottom_sum;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_top[lane] += wg_top[lane + half_size];
            wg_bottom[lane] += wg_bottom[lane + half_size];
        }
        workgroupBarrier();
    }
    if lane == 0u && line < params.lines {
        // What is left of a rank is the number of ties that it needs.
        let highest_sum = wg_top[0] + f32(top_rank) * (order_score(top) - low);
        let lowest_sum = wg_bottom[0] + f32(bottom_rank) * (order_score(bottom) - low);
        spreads[line] = spread_of(low, high, highest_sum, lowest_sum);
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let line = workgroup.y * workgroups.x + workgroup.x;
    if params.tokens <= 64u {
        spread_short(line, lane);
    } else {
        spread_long(line, lane);
    }
}
