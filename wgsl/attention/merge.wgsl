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
    // Slot that lies first in each part.
    base_0: u32,
    base_1: u32,
    base_2: u32,
    base_3: u32,
    base_4: u32,
    // Whether the slots of each row are listed, and where: begin, first and end of the packed ones,
    // end; and where the place of each slot is: its part times 2^29 plus its number there.
    listed: u32,
    slots_at: u32,
    places_at: u32,
    // Where they are not, the slots of every row, of which those from packed_first on are packed, and
    // the part that these lie in; the others lie in part 0.
    slots: u32,
    packed_first: u32,
    packed_part: u32,
    hadamard_scale: f32,
    // Whether packed slots have sums that are not in the Hadamard domain.
    plain: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
// Of each slot and query: sums [d], largest logit, sum of weights, sums in the Hadamard domain [d]
// where the slot is packed. In parts, since dispatches that write to one buffer wait for each other.
@group(0) @binding(2) var<storage, read> partials_0: array<f32>;
@group(0) @binding(3) var<storage, read> partials_1: array<f32>;
@group(0) @binding(4) var<storage, read> partials_2: array<f32>;
@group(0) @binding(5) var<storage, read> partials_3: array<f32>;
@group(0) @binding(6) var<storage, read> partials_4: array<f32>;
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
@group(0) @binding(8) var<storage, read_write> lse: array<f32>;

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
// A place is a part times 2^29 plus what lies within it: a binding has fewer words.
const PART_SHIFT: u32 = 29u;
const PART_MASK: u32 = 0x1fffffffu;

var<workgroup> wg_plain: array<f32, HEAD_DIM>;
var<workgroup> wg_share: array<f32, HADAMARD_LANES>;
var<workgroup> wg_place: array<u32, HADAMARD_LANES>;
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

// What lies at a place. Every part is asked, as loads that wait for a branch wait for each other.
fn partial(place: u32) -> f32 {
    let part = place >> PART_SHIFT;
    let at = place & PART_MASK;
    let a = partials_0[select(0u, at, part == 0u)];
    let b = partials_1[select(0u, at, part == 1u)];
    let c = partials_2[select(0u, at, part == 2u)];
    let d = partials_3[select(0u, at, part == 3u)];
    let e = partials_4[select(0u, at, part == 4u)];
    return select(select(select(select(a, b, part == 1u), c, part == 2u), d, part == 3u), e, part == 4u);
}

struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn eight_0(low: vec4<u32>, high: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(partials_0[low.x], partials_0[low.y], partials_0[low.z], partials_0[low.w]),
        vec4<f32>(
            partials_0[high.x], partials_0[high.y], partials_0[high.z], partials_0[high.w]),
    );
}

fn eight_1(low: vec4<u32>, high: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(partials_1[low.x], partials_1[low.y], partials_1[low.z], partials_1[low.w]),
        vec4<f32>(
            partials_1[high.x], partials_1[high.y], partials_1[high.z], partials_1[high.w]),
    );
}

fn eight_2(low: vec4<u32>, high: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(partials_2[low.x], partials_2[low.y], partials_2[low.z], partials_2[low.w]),
        vec4<f32>(
            partials_2[high.x], partials_2[high.y], partials_2[high.z], partials_2[high.w]),
    );
}

fn eight_3(low: vec4<u32>, high: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(partials_3[low.x], partials_3[low.y], partials_3[low.z], partials_3[low.w]),
        vec4<f32>(
            partials_3[high.x], partials_3[high.y], partials_3[high.z], partials_3[high.w]),
    );
}

fn eight_4(low: vec4<u32>, high: vec4<u32>) -> Eight {
    return Eight(
        vec4<f32>(partials_4[low.x], partials_4[low.y], partials_4[low.z], partials_4[low.w]),
        vec4<f32>(
            partials_4[high.x], partials_4[high.y], partials_4[high.z], partials_4[high.w]),
    );
}

// What lies at eight places.
fn eight(low: vec4<u32>, high: vec4<u32>) -> Eight {
    let part = low.x >> PART_SHIFT;
    let one = all((low >> vec4<u32>(PART_SHIFT)) == vec4<u32>(part))
        && all((high >> vec4<u32>(PART_SHIFT)) == vec4<u32>(part));
    if !one {
        return Eight(
            vec4<f32>(partial(low.x), partial(low.y), partial(low.z), partial(low.w)),
            vec4<f32>(partial(high.x), partial(high.y), partial(high.z), partial(high.w)),
        );
    }
    let a = low & vec4<u32>(PART_MASK);
    let b = high & vec4<u32>(PART_MASK);
    switch part {
        case 1u: {
            return eight_1(a, b);
        }
        case 2u: {
            return eight_2(a, b);
        }
        case 3u: {
            return eight_3(a, b);
        }
        case 4u: {
            return eight_4(a, b);
        }
        default: {
            return eight_0(a, b);
        }
    }
}

// Sum of number `at` of slots `first + group`, that and MERGE_GROUPS, ... before `end` of a block, each
// times its share.
fn sum_of(at: u32, group: u32, first: u32, end: u32) -> f32 {
    var sum = 0.0;
    var slot = first + group;
    // Several loads at a time, since nothing else hides how long each takes.
    for (; slot + 7u * MERGE_GROUPS < end; slot += 8u * MERGE_GROUPS) {
        let low = vec4<u32>(
            wg_place[slot],
            wg_place[slot + MERGE_GROUPS],
            wg_place[slot + 2u * MERGE_GROUPS],
            wg_place[slot + 3u * MERGE_GROUPS],
        );
        let high = vec4<u32>(
            wg_place[slot + 4u * MERGE_GROUPS],
            wg_place[slot + 5u * MERGE_GROUPS],
            wg_place[slot + 6u * MERGE_GROUPS],
            wg_place[slot + 7u * MERGE_GROUPS],
        );
        let found = eight(low + vec4<u32>(at), high + vec4<u32>(at));
        sum += wg_share[slot] * found.low.x;
        sum += wg_share[slot + MERGE_GROUPS] * found.low.y;
        sum += wg_share[slot + 2u * MERGE_GROUPS] * found.low.z;
        sum += wg_share[slot + 3u * MERGE_GROUPS] * found.low.w;
        sum += wg_share[slot + 4u * MERGE_GROUPS] * found.high.x;
        sum += wg_share[slot + 5u * MERGE_GROUPS] * found.high.y;
        sum += wg_share[slot + 6u * MERGE_GROUPS] * found.high.z;
        sum += wg_share[slot + 7u * MERGE_GROUPS] * found.high.w;
    }
    for (; slot < end; slot += MERGE_GROUPS) {
        sum += wg_share[slot] * partial(wg_place[slot] + at);
    }
    return sum;
}

// Begin, first and end of the packed ones, and end of the slots of a row.
fn slots_of(row: u32) -> vec4<u32> {
    if params.listed == 0u {
        return vec4<u32>(0u, params.packed_first, params.slots, params.slots);
    }
    let at = params.slots_at + 4u * row;
    return vec4<u32>(lists[at], lists[at + 1u], lists[at + 2u], lists[at + 3u]);
}

fn base_of(part: u32) -> u32 {
    switch part {
        case 1u: {
            return params.base_1;
        }
        case 2u: {
            return params.base_2;
        }
        case 3u: {
            return params.base_3;
        }
        case 4u: {
            return params.base_4;
        }
        default: {
            return params.base_0;
        }
    }
}

// Place of query `number` of a row's slot.
fn place_of(row: u32, slot: u32, number: u32) -> u32 {
    var part = 0u;
    var index = row * params.packed_first + slot;
    if params.listed != 0u {
        let place = lists[params.places_at + slot];
        part = place >> PART_SHIFT;
        index = place & PART_MASK;
    } else if slot >= params.packed_first {
        part = params.packed_part;
        index = row * (params.slots - params.packed_first) + slot - params.packed_first;
    }
    let at = (params.span * (index - base_of(part)) + number) * params.stride;
    return (part << PART_SHIFT) | (at & PART_MASK);
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

    var group_of = 0u;
    if MERGE_GROUPS > 1u {
        group_of = select(0u, 1u, lane >= HEAD_DIM) + select(0u, 1u, lane >= 2u * HEAD_DIM)
            + select(0u, 1u, lane >= 3u * HEAD_DIM) + select(0u, 1u, lane >= 4u * HEAD_DIM);
    }
    var best = UNSEEN;
    for (var slot = slots.x + lane; slot < slots.w; slot += HADAMARD_LANES) {
        best = max(best, partial(place_of(row, slot, number) + HEAD_DIM));
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
            let at = place_of(row, slot, number);
            let share = power(partial(at + HEAD_DIM) - top);
            part += share * partial(at + HEAD_DIM + 1u);
            wg_share[lane] = share;
            wg_place[lane] = at;
        }
        workgroupBarrier();
        let packed_first = clamp(slots.y, first, first + count) - first;
        let packed_end = clamp(slots.z, first, first + count) - first;
        for (var start = 0u; start < HEAD_DIM; start += HADAMARD_LANES) {
            let c = start + lane - group_of * HEAD_DIM;
            var plain = 0.0;
            var rotated = 0.0;
            if group_of < MERGE_GROUPS && c < HEAD_DIM {
                if params.plain != 0u {
                    plain = sum_of(c, group_of, 0u, count);
                } else {
                    plain = sum_of(c, group_of, 0u, packed_first);
                    plain += sum_of(c, group_of, packed_end, count);
                }
                rotated = sum_of(c + HEAD_DIM + 2u, group_of, packed_first, packed_end);
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
