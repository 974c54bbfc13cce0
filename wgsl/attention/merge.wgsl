// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges the partial states of a query in the order of their slots; turns the packed sums back by
// H^T; writes the output [head_dim_v] and the log of the sum of weights. Dispatched by
// src/attention/gpu/merge.rs; twin: src/attention/cpu/merge.rs.
// One workgroup a query. Needs divide.wgsl and hadamard.wgsl.

struct Params {
    rows: u32,
    rows_first: u32,
    per_row: u32,
    queries_first: u32,
    span: u32,
    span_multiplier: u32,
    span_shift1: u32,
    span_shift2: u32,
    stride: u32,
    slot_base: u32,
    // Whether the slots of each row are listed, and where: begin, first and end of the packed ones,
    // end.
    listed: u32,
    slots_at: u32,
    // Where they are not, the slots of every row, of which those from packed_first on are packed.
    slots: u32,
    packed_first: u32,
    hadamard_scale: f32,
    // Whether packed slots have sums that are not in the Hadamard domain.
    plain: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
// Of each slot and query: sums [d], largest logit, sum of weights, sums in the Hadamard domain [d]
// where the slot is packed.
@group(0) @binding(2) var<storage, read> partials: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

const UNSEEN: f32 = -1.7014118e38;
const NO_KEY: f32 = -3.4028234e38;
// Short of the largest f32, as the quotient may be rounded up.
const LARGEST: f32 = 3.4e38;
// 2^20: weights carry its inverse.
const SHIFT: f32 = 1048576.0;
const LN_2: f32 = 0.6931472;

// Lanes that share a channel, each with every MERGE_GROUPS-th slot.
const MERGE_GROUPS: u32 = max(min(HADAMARD_LANES / HEAD_DIM, 4u), 1u);
const MERGE_STEP: u32 = HADAMARD_LANES / 16u;

var<workgroup> wg_plain: array<f32, HEAD_DIM>;
var<workgroup> wg_share: array<f32, HADAMARD_LANES>;
var<workgroup> wg_part: array<f32, HADAMARD_LANES>;
var<workgroup> wg_other: array<f32, HADAMARD_LANES>;

fn power(x: f32) -> f32 {
    return select(exp2(max(x, -126.0)), 0.0, x < -126.0);
}

// Largest of one number a lane, for every lane.
fn largest(lane: u32, value: f32) -> f32 {
    wg_part[lane] = value;
    workgroupBarrier();
    if lane < MERGE_STEP {
        var best = value;
        for (var k = 1u; k < 16u; k++) {
            best = max(best, wg_part[lane + k * MERGE_STEP]);
        }
        wg_part[lane] = best;
    }
    workgroupBarrier();
    var best = wg_part[0];
    for (var k = 1u; k < MERGE_STEP; k++) {
        best = max(best, wg_part[k]);
    }
    workgroupBarrier();
    return best;
}

// Sum of one number a lane, for every lane: of lanes MERGE_STEP apart, then of these sums.
fn total(lane: u32, value: f32) -> f32 {
    wg_part[lane] = value;
    workgroupBarrier();
    if lane < MERGE_STEP {
        var sum = value;
        for (var k = 1u; k < 16u; k++) {
            sum += wg_part[lane + k * MERGE_STEP];
        }
        wg_part[lane] = sum;
    }
    workgroupBarrier();
    var sum = wg_part[0];
    for (var k = 1u; k < MERGE_STEP; k++) {
        sum += wg_part[k];
    }
    workgroupBarrier();
    return sum;
}

// Sum of number `at` of slots `first + group`, that and MERGE_GROUPS, ... before `end` of a block, each
// times its share.
fn sum_of(at: u32, step: u32, group: u32, first: u32, end: u32) -> f32 {
    var sum = 0.0;
    var slot = first + group;
    let next = MERGE_GROUPS * step;
    // Several loads at a time, since nothing else hides how long each takes.
    for (; slot + 7u * MERGE_GROUPS < end; slot += 8u * MERGE_GROUPS) {
        let place = at + slot * step;
        let a = partials[place];
        let b = partials[place + next];
        let c = partials[place + 2u * next];
        let d = partials[place + 3u * next];
        let e = partials[place + 4u * next];
        let f = partials[place + 5u * next];
        let g = partials[place + 6u * next];
        let h = partials[place + 7u * next];
        sum += wg_share[slot] * a;
        sum += wg_share[slot + MERGE_GROUPS] * b;
        sum += wg_share[slot + 2u * MERGE_GROUPS] * c;
        sum += wg_share[slot + 3u * MERGE_GROUPS] * d;
        sum += wg_share[slot + 4u * MERGE_GROUPS] * e;
        sum += wg_share[slot + 5u * MERGE_GROUPS] * f;
        sum += wg_share[slot + 6u * MERGE_GROUPS] * g;
        sum += wg_share[slot + 7u * MERGE_GROUPS] * h;
    }
    for (; slot < end; slot += MERGE_GROUPS) {
        sum += wg_share[slot] * partials[at + slot * step];
    }
    return sum;
}

// Begin, first and end of the packed ones, and end of the slots of a row.
fn slots_of(row: u32) -> vec4<u32> {
    if params.listed == 0u {
        let begin = row * params.slots;
        let end = begin + params.slots;
        return vec4<u32>(begin, begin + params.packed_first, end, end);
    }
    let at = params.slots_at + 4u * row;
    return vec4<u32>(lists[at], lists[at + 1u], lists[at + 2u], lists[at + 3u]);
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let place = group.y * groups.x + group.x;
    let place_row = divide_magic(
        place, params.span_multiplier, params.span_shift1, params.span_shift2);
    let live = place_row < params.rows;
    let row = params.rows_first + min(place_row, params.rows - 1u);
    let number = place - place_row * params.span;
    let query = row * params.per_row + params.queries_first + number;
    let slots = slots_of(row);
    let step = params.span * params.stride;
    // Of slot 0, were it there.
    let base = number * params.stride - params.slot_base * step;

    var group_of = 0u;
    if MERGE_GROUPS > 1u {
        group_of = select(0u, 1u, lane >= HEAD_DIM) + select(0u, 1u, lane >= 2u * HEAD_DIM)
            + select(0u, 1u, lane >= 3u * HEAD_DIM) + select(0u, 1u, lane >= 4u * HEAD_DIM);
    }
    var best = UNSEEN;
    for (var slot = slots.x + lane; slot < slots.w; slot += HADAMARD_LANES) {
        best = max(best, partials[base + slot * step + HEAD_DIM]);
    }
    let top = largest(lane, best);
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        wg_plain[c] = 0.0;
        hadamard_data[c] = 0.0;
    }
    var part = 0.0;
    for (var first = slots.x; first < slots.w; first += HADAMARD_LANES) {
        let slot = first + lane;
        let count = min(slots.w - first, HADAMARD_LANES);
        if lane < count {
            let at = base + slot * step + HEAD_DIM;
            let share = power(partials[at] - top);
            part += share * partials[at + 1u];
            wg_share[lane] = share;
        }
        workgroupBarrier();
        let packed_first = clamp(slots.y, first, first + count) - first;
        let packed_end = clamp(slots.z, first, first + count) - first;
        for (var start = 0u; start < HEAD_DIM; start += HADAMARD_LANES) {
            let c = start + lane - group_of * HEAD_DIM;
            var plain = 0.0;
            var rotated = 0.0;
            if group_of < MERGE_GROUPS && c < HEAD_DIM {
                let at = base + first * step + c;
                plain = sum_of(at, step, group_of, 0u, packed_first);
                if params.plain != 0u {
                    plain += sum_of(at, step, group_of, packed_first, packed_end);
                }
                plain += sum_of(at, step, group_of, packed_end, count);
                rotated = sum_of(at + HEAD_DIM + 2u, step, group_of, packed_first, packed_end);
            }
            wg_part[lane] = plain;
            wg_other[lane] = rotated;
            workgroupBarrier();
            if group_of == 0u && c < HEAD_DIM {
                for (var g = 1u; g < MERGE_GROUPS; g++) {
                    plain += wg_part[lane + g * HEAD_DIM];
                    rotated += wg_other[lane + g * HEAD_DIM];
                }
                wg_plain[c] += plain;
                hadamard_data[c] += rotated;
            }
            workgroupBarrier();
        }
    }
    let sum = total(lane, part);
    if slots.y < slots.z {
        hadamard_back(lane);
    }
    // A query that sees no key has the sum 0; the quotient must not be.
    let seen = top > UNSEEN;
    let divisor = select(1.0, sum, seen);
    let limit = LARGEST * min(divisor, 1.0);
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        let value = wg_plain[c] + hadamard_data[c] * params.hadamard_scale;
        if live {
            out[query * HEAD_DIM + c] = select(0.0, clamp(value, -limit, limit) / divisor, seen);
        }
    }
    if lane == 0u && live {
        lse[query] = select(NO_KEY, (top + log2(divisor * SHIFT)) * LN_2, seen);
    }
}
