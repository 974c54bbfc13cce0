// SPDX-License-Identifier: MIT OR Apache-2.0
// Merges the partial states of a query, raw splits first, then packed ones, each in order; turns
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
const LARGEST: f32 = 3.4028234e38;
const SHIFT: f32 = 32.0;
const LN_2: f32 = 0.6931472;
const RAW_STRIDE: u32 = HEAD_DIM + 2u;
const PACKED_STRIDE: u32 = 2u * HEAD_DIM + 2u;

var<workgroup> wg_plain: array<f32, HEAD_DIM>;

fn power(x: f32) -> f32 {
    return select(exp2(max(x, -126.0)), 0.0, x < -126.0);
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

    var top = UNSEEN;
    for (var split = 0u; split < params.raw_splits; split++) {
        top = max(top, raw[raw_base + split * RAW_STRIDE + HEAD_DIM]);
    }
    for (var split = 0u; split < params.packed_splits; split++) {
        top = max(top, packed[packed_base + split * PACKED_STRIDE + 2u * HEAD_DIM]);
    }
    var sum = 0.0;
    for (var split = 0u; split < params.raw_splits; split++) {
        let at = raw_base + split * RAW_STRIDE + HEAD_DIM;
        sum += power(raw[at] - top) * raw[at + 1u];
    }
    for (var split = 0u; split < params.packed_splits; split++) {
        let at = packed_base + split * PACKED_STRIDE + 2u * HEAD_DIM;
        sum += power(packed[at] - top) * packed[at + 1u];
    }
    for (var c = lane; c < HEAD_DIM; c += HADAMARD_LANES) {
        var plain = 0.0;
        for (var split = 0u; split < params.raw_splits; split++) {
            let at = raw_base + split * RAW_STRIDE;
            plain += power(raw[at + HEAD_DIM] - top) * raw[at + c];
        }
        var rotated = 0.0;
        for (var split = 0u; split < params.packed_splits; split++) {
            let at = packed_base + split * PACKED_STRIDE;
            let share = power(packed[at + 2u * HEAD_DIM] - top);
            plain += share * packed[at + c];
            rotated += share * packed[at + HEAD_DIM + c];
        }
        wg_plain[c] = plain;
        hadamard_data[c] = rotated;
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
