// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 2: sums of normalised keys over segments of a row: the blocks of the episodic scale, and the
// pieces from which long windows start. `sums` is [rows, segments, dim], in multiples of 2^-22; up to
// 256 tokens fit. Dispatched by
// src/nestedkv/gpu/anchor.rs; twin src/nestedkv/cpu/anchor.rs.
// A workgroup takes one segment of one row and up to 128 channels, a lane two channels, token by token.

struct Params {
    rows: u32,
    tokens: u32,
    dim: u32,
    dtype: u32,
    segment: u32,
    segments: u32,
    segments_multiplier: u32,
    segments_shift1: u32,
    segments_shift2: u32,
    groups: u32,
    groups_multiplier: u32,
    groups_shift1: u32,
    groups_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> factors: array<u32>;
@group(0) @binding(3) var<storage, read_write> sums: array<i32>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let line = divide_magic(
        place, params.groups_multiplier, params.groups_shift1, params.groups_shift2);
    let pair = (place - line * params.groups) * 64u + lane;
    let row = divide_magic(
        line, params.segments_multiplier, params.segments_shift1, params.segments_shift2);
    if row < params.rows && 2u * pair < params.dim {
        let first = (line - row * params.segments) * params.segment;
        let last = min(first + params.segment, params.tokens);
        let base = row * params.tokens;
        var sum = vec2<i32>(0);
        for (var token = first; token < last; token++) {
            sum += unit_grid(unit_key(base + token, pair));
        }
        sums[line * params.dim + 2u * pair] = sum.x;
        sums[line * params.dim + 2u * pair + 1u] = sum.y;
    }
}
