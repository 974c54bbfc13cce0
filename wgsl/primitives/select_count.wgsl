// SPDX-License-Identifier: MIT OR Apache-2.0
// One step of a radix select (bins.wgsl): the state that the step before leaves, `states` [lines, 3], and
// the bins of this step, `bins` [lines, 2048], which are 0 before. Row r has the scores from starts[r]
// to starts[r + 1], and may have none. A line is a row; or the rows of a sequence, whose keys compete
// except for those that `sure` [rows] takes. Dispatched by src/primitives/gpu/select.rs and
// src/nestedkv/gpu/budgets.rs; twins src/primitives/cpu/select.rs and src/nestedkv/cpu/budgets.rs.
// A workgroup takes SPAN tokens of a row.

struct Params {
    rows: u32,
    longest: u32,
    sinks: u32,
    step: u32,
    // 1 where rows compete.
    compete: u32,
    heads: u32,
    heads_multiplier: u32,
    heads_shift1: u32,
    heads_shift2: u32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;
@group(0) @binding(2) var<storage, read> starts: array<u32>;
// Rank that is looked for in every line.
@group(0) @binding(3) var<storage, read> ranks: array<u32>;
// Thresholds where rows compete, else anything.
@group(0) @binding(4) var<storage, read> sure: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> states: array<vec4<u32>>;
// Bins of the step before; not read in the first.
@group(0) @binding(6) var<storage, read> earlier: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> bins: array<atomic<u32>>;

const WG: u32 = 256u;
const SPAN: u32 = 4096u;

var<workgroup> wg_bins: array<atomic<u32>, 2048>;

// Keys that a lane takes in four rounds, whose scores are on their way at the same time; beyond the last
// token the last one's.
fn keys_ahead(base: u32, token: u32, last: u32) -> vec4<u32> {
    let tokens = min(token + vec4<u32>(0u, WG, 2u * WG, 3u * WG), vec4<u32>(last - 1u));
    let found = vec4<u32>(
        scores[base + tokens.x], scores[base + tokens.y],
        scores[base + tokens.z], scores[base + tokens.w]);
    let keys = vec4<u32>(
        order_key(found.x), order_key(found.y), order_key(found.z), order_key(found.w));
    return select(keys, vec4<u32>(ORDER_SINK), tokens < vec4<u32>(params.sinks));
}

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let group = divide_magic(
        place, params.parts_multiplier, params.parts_shift1, params.parts_shift2);
    let live = group < params.rows;
    let row = min(group, params.rows - 1u);
    let part = place - group * params.parts;
    let line = divide_magic(
        row, params.heads_multiplier, params.heads_shift1, params.heads_shift2);
    let base = starts[row];
    let tokens = select(0u, min(starts[row + 1u] - base, params.longest), live);

    let compete = params.compete == 1u;
    // A rank of 0 finds the highest key.
    let rank = max(select(min(ranks[line], tokens), ranks[line], compete), 1u);
    var state = vec4<u32>(0u, rank, 0u, 0u);
    if params.step > 1u {
        state = states[3u * line + params.step - 1u];
    }
    if params.step > 0u {
        state = bins_pick(line, params.step - 1u, state, lane);
    }
    if lane == 0u && live && part == 0u && row == line * params.heads {
        states[3u * line + params.step] = state;
    }

    for (var bin = lane; bin < BINS; bin += WG) {
        atomicStore(&wg_bins[bin], 0u);
    }
    workgroupBarrier();
    let first = part * SPAN;
    let last = min(first + SPAN, tokens);
    var limit = vec4<u32>(0xffffffffu);
    if compete {
        limit = sure[row];
    }
    for (var token = first + lane; token < last; token += 4u * WG) {
        let keys = keys_ahead(base, token, last);
        for (var i = 0u; i < 4u; i++) {
            let bin = bins_place(keys[i], state, params.step);
            if token + i * WG < last && bin < BINS && (!compete || keys[i] < limit.x) {
                atomicAdd(&wg_bins[bin], 1u);
            }
        }
    }
    if compete && lane == 0u && live && part == 0u {
        // The copies of the border that are not taken.
        let bin = bins_place(limit.x, state, params.step);
        if bin < BINS {
            atomicAdd(&wg_bins[bin], limit.z - limit.y);
        }
    }
    workgroupBarrier();
    if live {
        for (var bin = lane; bin < BINS; bin += WG) {
            let count = atomicLoad(&wg_bins[bin]);
            if count > 0u {
                atomicAdd(&bins[line * BINS + bin], count);
            }
        }
    }
}
