// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over packed pages of plain books in slabs: what paged_packed.wgsl gives, some
// times as fast. Dispatched by src/attention/gpu/paged_packed.rs; twin:
// src/attention/cpu/paged_packed.rs.
// One workgroup a (unit, block of queries). Needs element.wgsl, page.wgsl, grid.wgsl, divide.wgsl,
// heads_4.wgsl or a sibling, softmax.wgsl, attend.wgsl, attend_page.wgsl, plain.wgsl,
// attend_plain.wgsl and attend_paged.wgsl.

struct Params {
    attend: AttendParams,
    packed: PackedParams,
    paged: PagedParams,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<u32>;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
// Every book, one after the other.
@group(0) @binding(3) var<storage, read> book: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> slab_0: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> slab_1: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> slab_2: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> slab_3: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

fn slab_word(slab: u32, at: u32) -> u32 {
    let four = at >> 2u;
    let part = at & 3u;
    if SLABS == 1u {
        return slab_0[four][part];
    }
    switch slab {
        case 1u: {
            return slab_1[four][part];
        }
        case 2u: {
            return slab_2[four][part];
        }
        case 3u: {
            return slab_3[four][part];
        }
        default: {
            return slab_0[four][part];
        }
    }
}

fn plain_key(slab: u32, at: u32) -> u32 {
    return slab_word(slab, at);
}

fn plain_keys(slab: u32, at: u32) -> vec4<u32> {
    let four = at >> 2u;
    if SLABS == 1u {
        return slab_0[four];
    }
    switch slab {
        case 1u: {
            return slab_1[four];
        }
        case 2u: {
            return slab_2[four];
        }
        case 3u: {
            return slab_3[four];
        }
        default: {
            return slab_0[four];
        }
    }
}

fn plain_value(slab: u32, at: u32) -> u32 {
    return slab_word(slab, at);
}

fn packed_key(page: vec4<u32>, word: u32) -> u32 {
    return slab_word(page.w, page.x + word);
}

fn packed_value(page: vec4<u32>, word: u32) -> u32 {
    return slab_word(page.w, page.y + word);
}

fn packed_position(page: vec4<u32>, token: u32) -> u32 {
    return slab_word(page.w, page.z + token);
}

fn packed_key_row(row: u32) -> vec4<f32> {
    return book[params.packed.key_book + row];
}

fn packed_value_row(row: u32) -> vec4<f32> {
    return book[params.packed.value_book + row];
}

const PLAIN_ASCENDING: bool = true;

var<private> plain_unit_of: PagedUnit;

fn plain_id(number: u32) -> u32 {
    return lists[params.paged.pages_at + plain_unit_of.first + number];
}

fn plain_place(id: u32) -> vec4<u32> {
    let page = paged_held(id);
    var at = packed_at(page.index);
    at.w = select(PLAIN_NOWHERE, page.slab, page.held);
    return at;
}

@compute @workgroup_size(SOFTMAX_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let unit = paged_unit(group.y * groups.x + group.x);
    plain_unit_of = unit;
    let block = attend_block(unit.row, unit.block, unit.live);
    plain_show(lane, block.query);
    plain_books(lane);
    let run = plain_pages(lane, block, unit.pages);
    workgroupBarrier();
    plain_finish(attend_lane(lane), attend_place(plain_own(block), unit.slot), run);
}
