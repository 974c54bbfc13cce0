// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over packed pages that lie row after row: for each query and split, the
// sums of weighted means [head_dim_v], the largest logit, the sum of the weights and the sums of
// weighted centroids in the Hadamard domain [head_dim_v]. Dispatched by
// src/attention/gpu/packed.rs; twin: src/attention/cpu/packed.rs.
// One workgroup a (row, block of 4 queries, split). Needs element.wgsl, page.wgsl, grid.wgsl,
// divide.wgsl, heads_4.wgsl, softmax.wgsl, attend.wgsl, attend_page.wgsl and attend_packed.wgsl.

struct Params {
    attend: AttendParams,
    packed: PackedParams,
    kv_rows: u32,
    total: u32,
    splits: u32,
    slots: u32,
    slots_first: u32,
    splits_multiplier: u32,
    splits_shift1: u32,
    splits_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<u32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> key_pages: array<u32>;
@group(0) @binding(4) var<storage, read> value_pages: array<u32>;
// Centroids of 8, 4 or 2 channels, one after the other.
@group(0) @binding(5) var<storage, read> key_book: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> value_book: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> positions: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 64u;

fn packed_key(page: vec4<u32>, word: u32) -> u32 {
    return key_pages[page.x + word];
}

fn packed_value(page: vec4<u32>, word: u32) -> u32 {
    return value_pages[page.y + word];
}

fn packed_position(page: vec4<u32>, token: u32) -> u32 {
    return positions[page.z + token];
}

fn packed_key_row(row: u32) -> vec4<f32> {
    return key_book[row];
}

fn packed_value_row(row: u32) -> vec4<f32> {
    return value_book[row];
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
    packed_show(lane, block.query);
    packed_squares(lane);
    workgroupBarrier();

    let row_end = min(offsets[row + 1u], params.total);
    let row_begin = min(offsets[row], row_end);
    let length = divide_magic(
        row_end - row_begin + params.splits - 1u,
        params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let begin = min(row_begin + split * length, row_end);
    let end = min(begin + length, row_end);

    let own = attend_lane(lane);
    var run = attend_start();
    var means = attend_zero();
    for (var page = begin; page < end; page++) {
        packed_page(own, packed_at(page), block, &run, &means);
    }
    let slot = row * params.slots + params.slots_first + split;
    packed_finish(own, attend_place(block, slot), run, means);
}
