// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over raw tokens that lie row after row: for each query and split, the sums
// of weighted values [head_dim_v], the largest logit and the sum of the weights. Dispatched by
// src/attention/gpu/raw.rs; twin: src/attention/cpu/raw.rs.
// One workgroup a (row, block of 4 queries, split). Needs element.wgsl, divide.wgsl, heads_4.wgsl,
// softmax.wgsl, attend.wgsl and attend_raw.wgsl.

struct Params {
    attend: AttendParams,
    kv_rows: u32,
    total: u32,
    key_dtype: u32,
    value_dtype: u32,
    splits: u32,
    slots: u32,
    splits_multiplier: u32,
    splits_shift1: u32,
    splits_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<u32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
@group(0) @binding(5) var<storage, read> positions: array<u32>;
@group(0) @binding(6) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 128u;

// The first token of a tile is its x.
fn raw_key(tile: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    let at = (tile.x + token) * ATTEND_PIECES + piece;
    if params.key_dtype == 0u {
        return AttendPiece(
            element_real(vec4<u32>(
                keys[8u * at], keys[8u * at + 1u], keys[8u * at + 2u], keys[8u * at + 3u])),
            element_real(vec4<u32>(
                keys[8u * at + 4u], keys[8u * at + 5u], keys[8u * at + 6u], keys[8u * at + 7u])),
        );
    }
    let word = 4u * at;
    let low = vec2<u32>(keys[word], keys[word + 1u]);
    let high = vec2<u32>(keys[word + 2u], keys[word + 3u]);
    return AttendPiece(
        element_four(low, params.key_dtype), element_four(high, params.key_dtype));
}

fn raw_value(tile: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    let at = (tile.x + token) * params.attend.pieces_v + piece;
    if params.value_dtype == 0u {
        return AttendPiece(
            element_real(vec4<u32>(
                values[8u * at], values[8u * at + 1u],
                values[8u * at + 2u], values[8u * at + 3u])),
            element_real(vec4<u32>(
                values[8u * at + 4u], values[8u * at + 5u],
                values[8u * at + 6u], values[8u * at + 7u])),
        );
    }
    let word = 4u * at;
    let low = vec2<u32>(values[word], values[word + 1u]);
    let high = vec2<u32>(values[word + 2u], values[word + 3u]);
    return AttendPiece(
        element_four(low, params.value_dtype), element_four(high, params.value_dtype));
}

fn raw_position(tile: vec4<u32>, token: u32) -> u32 {
    return positions[tile.x + token];
}

@compute @workgroup_size(SOFTMAX_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let place = group.y * groups.x + group.x;
    let line = divide_magic(
        place, params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let split = place - line * params.splits;
    let place_row = divide_magic(line, params.attend.blocks_multiplier,
        params.attend.blocks_shift1, params.attend.blocks_shift2);
    let row = min(place_row, params.kv_rows - 1u);
    let number = line - place_row * params.attend.blocks;
    let block = attend_block(row, number, place_row < params.kv_rows);
    attend_show(lane, block.query, 0u);
    workgroupBarrier();

    // Tokens of the split: the row's share, in whole tiles.
    let row_end = min(offsets[row + 1u], params.total);
    let row_begin = min(offsets[row], row_end);
    let share = divide_magic(
        row_end - row_begin + params.splits - 1u,
        params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let length = (share + SOFTMAX_LANES - 1u) & ~(SOFTMAX_LANES - 1u);
    let begin = min(row_begin + split * length, row_end);
    let end = min(begin + length, row_end);

    let own = attend_lane(lane);
    var run = attend_start();
    for (var tile = begin; tile < end; tile += SOFTMAX_LANES) {
        raw_tile(own, vec4<u32>(tile), min(end - tile, SOFTMAX_LANES), block, &run);
    }
    attend_finish(own, attend_place(block, row * params.slots + split), 0u, run);
}
