// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies rows of pages into dense tensors, with their positions, in the element type of the tensors:
// equal types keep their bits, others by narrow.wgsl. Of packed pages only positions are copied
// (restore.wgsl does the rest: no key or value words then). With FILL = 1 rows get zeros, and
// positions u32::MAX, and no page is read. Pages outside the slab and rows outside the tensors are
// ignored. Dispatched by src/cache/gpu/fetch.rs; twin src/cache/cpu/fetch.rs.
// One workgroup an entry (page, row, rows, key scale). Needs element.wgsl and narrow.wgsl.

struct Params {
    first: u32,
    count: u32,
    base: u32,
    pages: u32,
    page_words: u32,
    page_rows: u32,
    values: u32,
    positions: u32,
    key_words: u32,
    value_words: u32,
    position_words: u32,
    out_rows: u32,
    from_dtype: u32,
    to_dtype: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> slab: array<u32>;
@group(0) @binding(3) var<storage, read_write> out_keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_values: array<u32>;
@group(0) @binding(5) var<storage, read_write> out_positions: array<u32>;

// Word `at` of the results of a page's part that starts at word `start`.
fn fetched(start: u32, at: u32) -> u32 {
    if FILL == 1u {
        return 0u;
    }
    if params.from_dtype == params.to_dtype {
        return slab[start + at];
    }
    if params.to_dtype == 0u {
        return narrow_wide(slab[start + (at >> 1u)], at, params.from_dtype);
    }
    let word = slab[start + at];
    return narrow_pair(word, word, 0u, params.from_dtype, params.to_dtype);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 4u * min(index, params.count - 1u);
    let page = list[entry] - params.base;
    let row = min(list[entry + 1u], params.out_rows);
    let live = index < params.count && (page < params.pages || FILL == 1u);
    let room = min(params.page_rows, params.out_rows - row);
    let rows = select(0u, min(list[entry + 2u], room), live);
    let start = select(page * params.page_words, 0u, FILL == 1u);
    for (var i = lane; i < rows * params.key_words; i += 128u) {
        out_keys[row * params.key_words + i] = fetched(start, i);
    }
    for (var i = lane; i < rows * params.value_words; i += 128u) {
        out_values[row * params.value_words + i] = fetched(start + params.values, i);
    }
    for (var i = lane; i < rows * params.position_words; i += 128u) {
        var position = 0xffffffffu;
        if FILL == 0u {
            position = slab[start + params.positions + i];
        }
        out_positions[row + i] = position;
    }
}
