// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges the partial states of a query; turns the packed sums back by H^T; writes the output
// [head_dim_v] and the log of the sum of weights. Dispatched by src/attention/gpu/merge.rs; twin:
// src/attention/cpu/merge.rs.
// One workgroup a query. A kernel runs here once on each processor, so that every instruction comes from
// afar: what counts is how long the code is and how often it waits, not what it computes.
// Needs divide.wgsl, hadamard.wgsl, hadamard_pair.wgsl, and MERGE_PARTS, buffers that partial results lie
// in; MERGE_LISTED, whether the slots of each row are listed.

struct Params {
    rows: u32,
    rows_first: u32,
    per_row: u32,
    queries_first: u32,
    span: u32,
    span_multiplier: u32,
    span_shift1: u32,
    span_shift2: u32,
    // Pairs of numbers of a partial result.
    stride: u32,
    // Slot that lies first in each part.
    base_0: u32,
    base_1: u32,
    base_2: u32,
    base_3: u32,
    base_4: u32,
    // Where the slots of each row are listed: begin, first and end of the packed ones, end; and where
    // the place of each slot is: its part times 2^29 plus its number there.
    slots_at: u32,
    places_at: u32,
    // Where they are not, the slots of every row, of which those from packed_first on are packed and lie
    // in the last part; the others lie in part 0.
    slots: u32,
    packed_first: u32,
    hadamard_scale: f32,
    // Whether packed slots have sums that are not in the Hadamard domain.
    plain: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
// Of each slot and query: sums [d], largest logit, sum of weights, sums in the Hadamard domain [d]
// where the slot is packed. In parts, since dispatches that write to one buffer wait for each other.
@group(0) @binding(2) var<storage, read> partials_0: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> partials_1: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> partials_2: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> partials_3: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read> partials_4: array<vec2<f32>>;
@group(0) @binding(7) var<storage, read_write> out: array<vec2<f32>>;
@group(0) @binding(8) var<storage, read_write> lse: array<f32>;

const UNSEEN: f32 = -1.7014118e38;
const NO_KEY: f32 = -3.4028234e38;
// Short of the largest f32, as the quotient may be rounded up.
const LARGEST: f32 = 3.4e38;
// 2^20: weights carry its inverse.
const SHIFT: f32 = 1048576.0;
const LN_2: f32 = 0.6931472;

const PAIRS: u32 = HEAD_DIM / 2u;
// Lanes that share a pair of channels, each with every MERGE_GROUPS-th line; a power of two.
const MERGE_GROUPS: u32 = select(select(1u, 2u, PAIRS <= 128u), 4u, PAIRS <= 64u);
// Quotients by PAIRS of numbers below 256 are products with this over 2^16.
const MERGE_INVERSE: u32 = 65535u / PAIRS + 1u;
// Slots at a time; each has one line of sums or two.
const MERGE_BLOCK: u32 = HADAMARD_LANES / 2u;
// A place is a part times 2^29 plus what lies within it: a binding has fewer words.
const PART_SHIFT: u32 = 29u;
const PART_MASK: u32 = 0x1fffffffu;

// Largest logit, as an integer of the same order.
var<workgroup> wg_top: atomic<i32>;
// Of each line of sums, where it is, and its factor as plain sums, as sums in the Hadamard domain, and
// what it adds to the sum of weights.
var<workgroup> wg_place: array<u32, HADAMARD_LANES>;
var<workgroup> wg_share: array<vec4<f32>, HADAMARD_LANES>;
var<workgroup> wg_sums: array<vec4<f32>, HADAMARD_LANES>;
var<workgroup> wg_weight: array<f32, HADAMARD_LANES>;

fn power(x: f32) -> f32 {
    return select(exp2(max(x, -126.0)), 0.0, x < -126.0);
}

// The bits of a number as an integer of the same order; and the number again.
fn ordered(bits: i32) -> i32 {
    return bits ^ ((bits >> 31u) & 0x7fffffff);
}

// The pair at a place.
fn pair_at(place: u32) -> vec2<f32> {
    if MERGE_PARTS == 1u {
        return partials_0[place];
    }
    let at = place & PART_MASK;
    switch place >> PART_SHIFT {
        case 1u: {
            return partials_1[at];
        }
        case 2u: {
            return partials_2[at];
        }
        case 3u: {
            return partials_3[at];
        }
        case 4u: {
            return partials_4[at];
        }
        default: {
            return partials_0[at];
        }
    }
}

struct Four {
    a: vec2<f32>,
    b: vec2<f32>,
    c: vec2<f32>,
    d: vec2<f32>,
}

fn four_0(at: vec4<u32>) -> Four {
    return Four(partials_0[at.x], partials_0[at.y], partials_0[at.z], partials_0[at.w]);
}

fn four_1(at: vec4<u32>) -> Four {
    return Four(partials_1[at.x], partials_1[at.y], partials_1[at.z], partials_1[at.w]);
}

fn four_2(at: vec4<u32>) -> Four {
    return Four(partials_2[at.x], partials_2[at.y], partials_2[at.z], partials_2[at.w]);
}

fn four_3(at: vec4<u32>) -> Four {
    return Four(partials_3[at.x], partials_3[at.y], partials_3[at.z], partials_3[at.w]);
}

fn four_4(at: vec4<u32>) -> Four {
    return Four(partials_4[at.x], partials_4[at.y], partials_4[at.z], partials_4[at.w]);
}

// The pairs at four places.
fn four_at(places: vec4<u32>) -> Four {
    let part = places.x >> PART_SHIFT;
    if MERGE_PARTS > 1u && any((places >> vec4<u32>(PART_SHIFT)) != vec4<u32>(part)) {
        return Four(pair_at(places.x), pair_at(places.y), pair_at(places.z), pair_at(places.w));
    }
    let at = places & vec4<u32>(PART_MASK);
    if MERGE_PARTS == 1u {
        return four_0(at);
    }
    switch part {
        case 1u: {
            return four_1(at);
        }
        case 2u: {
            return four_2(at);
        }
        case 3u: {
            return four_3(at);
        }
        case 4u: {
            return four_4(at);
        }
        default: {
            return four_0(at);
        }
    }
}

// Begin, first and end of the packed ones, and end of the slots of a row.
fn slots_of(row: u32) -> vec4<u32> {
    if MERGE_LISTED == 0u {
        return vec4<u32>(0u, params.packed_first, params.slots, params.slots);
    }
    let at = params.slots_at + 4u * row;
    return vec4<u32>(lists[at], lists[at + 1u], lists[at + 2u], lists[at + 3u]);
}

fn base_of(part: u32) -> u32 {
    if MERGE_PARTS == 1u {
        return params.base_0;
    }
    let low = select(params.base_0, params.base_1, part == 1u);
    let high = select(params.base_3, params.base_4, part == 4u);
    return select(select(low, params.base_2, part == 2u), high, part > 2u);
}

// Place of query `number` of a row's slot.
fn place_of(row: u32, slot: u32, number: u32) -> u32 {
    var part = 0u;
    var index = row * params.packed_first + slot;
    if MERGE_LISTED == 1u {
        let place = lists[params.places_at + slot];
        part = place >> PART_SHIFT;
        index = (place & PART_MASK) - base_of(part);
    } else if slot >= params.packed_first {
        part = MERGE_PARTS - 1u;
        index = row * (params.slots - params.packed_first) + slot - params.packed_first;
    }
    return (part << PART_SHIFT) | ((params.span * index + number) * params.stride);
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
    if place_row >= params.rows {
        return;
    }
    let row = params.rows_first + place_row;
    let number = place - place_row * params.span;
    let slots = slots_of(row);
    let line_of = (lane * MERGE_INVERSE) >> 16u;
    let own = lane - line_of * PAIRS;

    if lane == 0u {
        atomicStore(&wg_top, ordered(bitcast<i32>(UNSEEN)));
    }
    var top = UNSEEN;
    var plain = vec2<f32>(0.0);
    var rotated = vec2<f32>(0.0);
    var weight = 0.0;
    for (var first = slots.x; first < slots.w; first += MERGE_BLOCK) {
        if first > slots.x {
            // All have read what there is of the block before.
            workgroupBarrier();
        }
        let end = min(slots.w, first + MERGE_BLOCK);
        let count = end - first;
        let packed_first = clamp(slots.y, first, end) - first;
        let packed_end = clamp(slots.z, first, end) - first;
        // A line a slot, then, where packed slots have two, those of their plain sums.
        let lines = count + select(0u, packed_end - packed_first, params.plain != 0u);
        let once = lane < count;
        let slot = min(select(lane - count + packed_first, lane, once), count - 1u);
        let turned = once && slot >= packed_first && slot < packed_end;
        let at = place_of(row, first + slot, number);
        wg_place[lane] = at + select(0u, PAIRS + 1u, turned);
        let state = pair_at(at + PAIRS);
        workgroupBarrier();
        for (var round = 0u; round < lines; round += 4u * MERGE_GROUPS) {
            let line = round + (line_of & (MERGE_GROUPS - 1u));
            let four = four_at(vec4<u32>(own) + vec4<u32>(wg_place[line], wg_place[line + MERGE_GROUPS],
                wg_place[line + 2u * MERGE_GROUPS], wg_place[line + 3u * MERGE_GROUPS]));
            let a = four.a;
            let b = four.b;
            let c = four.c;
            let d = four.d;
            // In the midst of the first round, so that its sums are on their way meanwhile.
            if round == 0u {
                if once {
                    atomicMax(&wg_top, ordered(bitcast<i32>(state.x)));
                }
                workgroupBarrier();
                let highest = bitcast<f32>(ordered(atomicLoad(&wg_top)));
                let share = select(0.0, power(state.x - highest), lane < lines);
                wg_share[lane] = vec4<f32>(
                    select(share, 0.0, turned),
                    select(0.0, share, turned),
                    select(0.0, share * state.y, once),
                    0.0,
                );
                workgroupBarrier();
                let shrink = power(top - highest);
                plain *= shrink;
                rotated *= shrink;
                weight *= shrink;
                top = highest;
            }
            let share_a = wg_share[line];
            let share_b = wg_share[line + MERGE_GROUPS];
            let share_c = wg_share[line + 2u * MERGE_GROUPS];
            let share_d = wg_share[line + 3u * MERGE_GROUPS];
            plain += share_a.x * a;
            plain += share_b.x * b;
            plain += share_c.x * c;
            plain += share_d.x * d;
            rotated += share_a.y * a;
            rotated += share_b.y * b;
            rotated += share_c.y * c;
            rotated += share_d.y * d;
            weight += share_a.z;
            weight += share_b.z;
            weight += share_c.z;
            weight += share_d.z;
        }
    }
    if MERGE_GROUPS > 1u {
        wg_sums[lane] = vec4<f32>(plain, rotated);
        wg_weight[lane] = weight;
        workgroupBarrier();
        if lane < PAIRS {
            for (var g = 1u; g < MERGE_GROUPS; g++) {
                let sums = wg_sums[lane + g * PAIRS];
                plain += sums.xy;
                rotated += sums.zw;
                weight += wg_weight[lane + g * PAIRS];
            }
        }
    }
    if slots.y < slots.z {
        plain += hadamard_pair_back(lane, own, rotated) * params.hadamard_scale;
    }
    if lane >= PAIRS {
        return;
    }
    // A query that sees no key has the sum 0; the quotient must not be.
    let seen = top > UNSEEN;
    let divisor = select(1.0, weight, seen);
    let limit = vec2<f32>(LARGEST * min(divisor, 1.0));
    let query = row * params.per_row + params.queries_first + number;
    out[query * PAIRS + lane] =
        select(vec2<f32>(0.0), clamp(plain, -limit, limit) / divisor, seen);
    if lane == 0u {
        lse[query] = select(NO_KEY, (top + log2(divisor * SHIFT)) * LN_2, seen);
    }
}
