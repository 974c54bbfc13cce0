// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over packed pages of plain books that lie row after row: what packed.wgsl
// gives, some times as fast. Dispatched by src/attention/gpu/packed.rs; twin:
// src/attention/cpu/packed.rs.
// One workgroup a (row, block of queries, split). Needs element.wgsl, page.wgsl, grid.wgsl,
// divide.wgsl, heads_4.wgsl or a sibling, softmax.wgsl, attend.wgsl, attend_page.wgsl, plain.wgsl
// and attend_plain.wgsl.

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
@group(0) @binding(5) var<storage, read> key_book: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> value_book: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> positions: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

fn plain_key(slab: u32, at: u32) -> u32 {
    return key_pages[at];
}

// Pages need not start at a multiple of four words.
fn plain_keys(slab: u32, at: u32) -> vec4<u32> {
    return vec4<u32>(
        key_pages[at], key_pages[at + 1u], key_pages[at + 2u], key_pages[at + 3u]);
}

fn plain_value(slab: u32, at: u32) -> u32 {
    return value_pages[at];
}

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

// Positions come in any order.
const PLAIN_ASCENDING: bool = false;

var<private> plain_begin: u32;

fn plain_id(number: u32) -> u32 {
    return plain_begin + number;
}

fn plain_place(id: u32) -> vec4<u32> {
    return packed_at(id);
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
    plain_show(lane, block.query);
    plain_books(lane);

    let row_end = min(offsets[row + 1u], params.total);
    let row_begin = min(offsets[row], row_end);
    let length = divide_magic(
        row_end - row_begin + params.splits - 1u,
        params.splits_multiplier, params.splits_shift1, params.splits_shift2);
    let begin = min(row_begin + split * length, row_end);
    let end = min(begin + length, row_end);

    plain_begin = begin;
    let run = plain_pages(lane, block, end - begin);
    workgroupBarrier();
    let slot = row * params.slots + params.slots_first + split;
    plain_finish(attend_lane(lane), attend_place(plain_own(block), slot), run);
}
