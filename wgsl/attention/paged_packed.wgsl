// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over packed pages of slabs, read as they are: for each query and unit, the
// sums of weighted means [head_dim_v], the largest logit, the sum of the weights and the sums of
// weighted centroids in the Hadamard domain [head_dim_v]. Dispatched by
// src/attention/gpu/paged_packed.rs; twin: src/attention/cpu/paged_packed.rs.
// One workgroup a (unit, block of 4 queries). Needs element.wgsl, page.wgsl, grid.wgsl, divide.wgsl,
// heads_4.wgsl, softmax.wgsl, attend.wgsl, attend_page.wgsl, attend_packed.wgsl and attend_paged.wgsl.

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
@group(0) @binding(4) var<storage, read> slab_0: array<u32>;
@group(0) @binding(5) var<storage, read> slab_1: array<u32>;
@group(0) @binding(6) var<storage, read> slab_2: array<u32>;
@group(0) @binding(7) var<storage, read> slab_3: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 64u;

fn slab_word(slab: u32, at: u32) -> u32 {
    if SLABS == 1u {
        return slab_0[at];
    }
    switch slab {
        case 1u: {
            return slab_1[at];
        }
        case 2u: {
            return slab_2[at];
        }
        case 3u: {
            return slab_3[at];
        }
        default: {
            return slab_0[at];
        }
    }
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

@compute @workgroup_size(SOFTMAX_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let unit = paged_unit(group.y * groups.x + group.x);
    let block = attend_block(unit.row, unit.block, unit.live);
    packed_show(lane, block.query);
    packed_squares(lane);
    workgroupBarrier();

    let own = attend_lane(lane);
    var run = attend_start();
    var means = attend_zero();
    for (var number = 0u; number < unit.pages; number++) {
        let page = paged_page(unit, number);
        var at = packed_at(page.index);
        at.w = page.slab;
        var reaches = page.held;
        if params.attend.causal != 0u {
            let first = packed_position(at, 0u);
            let last = packed_position(at, params.packed.chunk - 1u);
            reaches = reaches && attend_reaches(block, first, last);
        }
        if reaches {
            packed_page(own, at, block, &run, &means);
        }
    }
    packed_finish(own, attend_place(block, unit.slot), run, means);
}
