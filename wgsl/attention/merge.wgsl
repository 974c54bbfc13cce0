// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges the partial states of a query, raw splits and packed ones, each in order; turns
// the packed sums back by H^T; writes the output [head_dim_v] and the log of the sum of weights.
// Dispatched by src/attention/gpu/merge.rs; twin: src/attention/cpu/merge.rs.
// One workgroup a query. Needs hadamard.wgsl.

struct Params {
    queries: u32,
    raw_splits: u32,
    packed_splits: u32,
    hadamard_scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
// Of each query and split: sums [d], largest logit, sum of weights.
@group(0) @binding(1) var<storage, read> raw: array<f32>;
// The same with sums of means [d], then of centroids [d].
@group(0) @binding(2) var<storage, read> packed: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> lse: array<f32>;

const UNSEEN: f32 = -1.7014118e38;
const NO_KEY: f32 = -3.4028234e38;
// Short of the largest f32, as the quotient may be rounded up.
const LARGEST: f32 = 3.4e38;
const SHIFT: f32 = 20.0;
const LN_2: f32 = 0.6931472;
const RAW_STRIDE: u32 = HEAD_DIM + 2u;
const PACKED_STRIDE: u32 = 2u * HEAD_DIM + 2u;

// At most this many splits of a kind: src/attention/gpu/mod.rs.
const MAX_SPLITS: u32 = 256u;

var<workgroup> wg_plain: array<f32, HEAD_DIM>;
var<workgroup> wg_raw_share: array<f32, MAX_SPLITS>;
var<workgroup> wg_packed_share: array<f32, MAX_SPLITS>;
var<workgroup> wg_part: array<f32, HADAMARD_LANES>;

fn power(x: f32) -> f32 {
    return select(exp2(max(x, -126.0)), 0.0, x < -126.0);
}

// Largest of one number a lane, for every lane.
fn largest(lane: u32, value: f32) -> f32 {
    wg_part[lane] = value;
    workgroupBarrier();
    var best = wg_part[0];
    for (var k = 1u; k < HADAMARD_LANES; k++) {
        best = max(best, wg_part[k]);
    }
    workgroupBarrier();
    return best;
}

// Sum of one number a lane, in their order, for every lane.
fn total(lane: u32, value: f32) -> f32 {
    wg_part[lane] = value;
    workgroupBarrier();
    var sum = 0.0;
    for (var k = 0u; k < HADAMARD_LANES; k++) {
        sum += wg_part[k];
    }
    workgroupBarrier();
    return sum;
}

// Sum over the raw splits of the number at `at`, each times the share of its split.
fn add_raw(at: u32) -> f32 {
    var sum = 0.0;
    var split = 0u;
    for (; split + 3u < params.raw_splits; split += 4u) {
        let first = at + split * RAW_STRIDE;
        let a = raw[first];
        let b = raw[first + RAW_STRIDE];
        let c = raw[first + 2u * RAW_STRIDE];
        let d = raw[first + 3u * RAW_STRIDE];
        sum += wg_raw_share[split] * a;
        sum += wg_raw_share[split + 1u] * b;
        sum += wg_raw_share[split + 2u] * c;
        sum += wg_raw_share[split + 3u] * d;
    }
    for (; split < params.raw_splits; split++) {
        sum += wg_raw_share[split] * raw[at + split * RAW_STRIDE];
    }
    return sum;
}

// The same over the packed splits.
fn add_packed(at: u32) -> f32 {
    var sum = 0.0;
    var split = 0u;
    for (; split + 3u < params.packed_splits; split += 4u) {
        let first = at + split * PACKED_STRIDE;
        let a = packed[first];
        let b = packed[first + PACKED_STRIDE];
        let c = packed[first + 2u * PACKED_STRIDE];
        let d = packed[first + 3u * PACKED_STRIDE];
        sum += wg_packed_share[split] * a;
        sum += wg_packed_share[split + 1u] * b;
        sum += wg_packed_share[split + 2u] * c;
        sum += wg_packed_share[split + 3u] * d;
    }
    for (; split < params.packed_splits; split++) {
        sum += wg_packed_share[split] * packed[at + split * PACKED_STRIDE];
    }
    return sum;
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
    let raw_base = query * params.raw_splits * RAW_STRIDE;
    let packed_base = query * params.packed_splits * PACKED_STRIDE;

    var best = UNSEEN;
    for (var split = lane; split < params.raw_splits; split += HADAMARD_LANES) {
        best = max(best, raw[raw_base + split * RAW_STRIDE + HEAD_DIM]);
    }
    for (var split = lane; split < params.packed_splits; split += HADAMARD_LANES) {
        best = max(best, packed[packed_base + split * PACKED_STRIDE + 2u * HEAD_DIM]);
    }
    let top = largest(lane, best);
    var part = 0.0;
    for (var split = lane; split < params.raw_splits; split += HADAMARD_LANES) {
        let at = raw_base + split * RAW_STRIDE + HEAD_DIM;
        let share = power(raw[at] - top);
        part += share * raw[at + 1u];
        wg_raw_share[split] = share;
    }
    for (var split = lane; split < params.packed_splits; split += HADAMARD_LANES) {
        let at = packed_base + split * PACKED_STRIDE + 2u * HEAD_DIM;
        let share = power(packed[at] - top);
        part += share * packed[at + 1u];
        wg_packed_share[split] = share;
    }
    // The barriers of the sum also show the shares to all.
    let sum = total(lane, part);
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        wg_plain[c] = add_raw(raw_base + c) + add_packed(packed_base + c);
        hadamard_data[c] = add_packed(packed_base + HEAD_DIM + c);
    }
    if params.packed_splits > 0u {
        hadamard_apply(lane, HADAMARD_BACK);
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
        lse[query] = select(NO_KEY, (top + SHIFT + log2(divisor)) * LN_2, seen);
    }
}
