// SPDX-License-Identifier: MIT OR Apache-2.0
// Partial softmax states over raw or sink pages: for each query and unit, the sums of weighted
// values [head_dim_v], the largest logit and the sum of the weights. Dispatched by
// src/attention/gpu/paged_raw.rs; twin: src/attention/cpu/paged_raw.rs.
// One workgroup a (unit, block of 4 queries). Needs element.wgsl, divide.wgsl, heads_4.wgsl,
// softmax.wgsl, attend.wgsl, attend_raw.wgsl and attend_paged.wgsl.

struct Params {
    attend: AttendParams,
    paged: PagedParams,
    dtype: u32,
    // Rows of a page; a page in groups of four words, and where its values and positions start.
    rows: u32,
    page_fours: u32,
    values_at: u32,
    positions_at: u32,
    // Where the rows that each row of the batch holds are listed.
    counts_at: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> prepared: array<u32>;
@group(0) @binding(2) var<storage, read> lists: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<u32>;
@group(0) @binding(4) var<storage, read> slab_0: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> slab_1: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read> slab_2: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read> slab_3: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

const SOFTMAX_LANES: u32 = 64u;

fn slab_four(slab: u32, at: u32) -> vec4<u32> {
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

fn slab_piece(slab: u32, at: u32) -> AttendPiece {
    let words = slab_four(slab, at);
    return AttendPiece(
        element_four(words.xy, params.dtype), element_four(words.zw, params.dtype));
}

// A tile: where its keys, values and positions start, positions in words, and its slab.
fn raw_key(tile: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    return slab_piece(tile.w, tile.x + token * ATTEND_PIECES + piece);
}

fn raw_value(tile: vec4<u32>, token: u32, piece: u32) -> AttendPiece {
    return slab_piece(tile.w, tile.y + token * params.attend.pieces_v + piece);
}

fn raw_position(tile: vec4<u32>, token: u32) -> u32 {
    let at = tile.z + token;
    return slab_four(tile.w, at >> 2u)[at & 3u];
}

@compute @workgroup_size(SOFTMAX_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let unit = paged_unit(group.y * groups.x + group.x);
    let block = attend_block(unit.row, unit.block, unit.live);
    attend_show(lane, block.query, 0u);
    workgroupBarrier();

    let own = attend_lane(lane);
    var run = attend_start();
    let row_count = counts[params.counts_at + unit.row];
    let count = row_count - min(row_count, unit.before);
    for (var number = 0u; number < unit.pages; number++) {
        let page = paged_page(unit, number);
        let before = number * params.rows;
        var held = min(count - min(count, before), params.rows);
        let first = page.index * params.page_fours;
        let positions = 4u * (first + params.positions_at);
        if !page.held {
            held = 0u;
        }
        if params.attend.causal != 0u && held > 0u {
            let whole = vec4<u32>(0u, 0u, positions, page.slab);
            let reaches = attend_reaches(
                block, raw_position(whole, 0u), raw_position(whole, held - 1u));
            if !reaches {
                held = 0u;
            }
        }
        for (var tile = 0u; tile < held; tile += SOFTMAX_LANES) {
            let at = vec4<u32>(
                first + tile * ATTEND_PIECES,
                first + params.values_at + tile * params.attend.pieces_v,
                positions + tile,
                page.slab,
            );
            let tokens = min(held - tile, SOFTMAX_LANES);
            // Chosen here and not at every load: loads that wait for a branch wait for each other.
            switch select(0u, page.slab, SLABS > 1u) {
                case 1u: {
                    raw_tile(own, vec4<u32>(at.x, at.y, at.z, 1u), tokens, block, &run);
                }
                case 2u: {
                    raw_tile(own, vec4<u32>(at.x, at.y, at.z, 2u), tokens, block, &run);
                }
                case 3u: {
                    raw_tile(own, vec4<u32>(at.x, at.y, at.z, 3u), tokens, block, &run);
                }
                default: {
                    raw_tile(own, vec4<u32>(at.x, at.y, at.z, 0u), tokens, block, &run);
                }
            }
        }
    }
    attend_finish(own, attend_place(block, unit.slot), 0u, run);
}
