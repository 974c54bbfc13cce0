// SPDX-License-Identifier: MIT OR Apache-2.0
// Gathers the key scales of sink pages, as they are. Pages outside the slab and rows outside the
// result are ignored. Dispatched by src/cache/gpu/scales.rs; twin src/cache/cpu/scales.rs.
// One workgroup an entry (page, row of the result).

struct Params {
    first: u32,
    count: u32,
    base: u32,
    pages: u32,
    page_words: u32,
    offset: u32,
    words: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> slab: array<u32>;
@group(0) @binding(3) var<storage, read_write> result: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 2u * min(index, params.count - 1u);
    let page = list[entry] - params.base;
    let row = list[entry + 1u];
    if index < params.count && page < params.pages && row < params.rows {
        let start = page * params.page_words + params.offset;
        for (var i = lane; i < params.words; i += 64u) {
            result[row * params.words + i] = slab[start + i];
        }
    }
}
