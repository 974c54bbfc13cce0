// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies the first rows of pages into other pages of the same class: keys, values and positions.
// Where both lie in one slab (SAME = 1) that slab is `result`, and `source` is not read. Pages outside
// the slabs are ignored. Dispatched by src/cache/gpu/copy.rs; twin src/cache/cpu/copy.rs.
// One workgroup an entry (from, to, rows).

struct Params {
    first: u32,
    count: u32,
    from_base: u32,
    to_base: u32,
    pages: u32,
    page_words: u32,
    page_rows: u32,
    values: u32,
    positions: u32,
    key_words: u32,
    value_words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> source: array<u32>;
@group(0) @binding(3) var<storage, read_write> result: array<u32>;

fn copy_words(lane: u32, start: u32, end: u32, count: u32) {
    for (var i = lane; i < count; i += 128u) {
        if SAME == 1u {
            result[end + i] = result[start + i];
        } else {
            result[end + i] = source[start + i];
        }
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 3u * min(index, params.count - 1u);
    let start = list[entry] - params.from_base;
    let end = list[entry + 1u] - params.to_base;
    let live = index < params.count && start < params.pages && end < params.pages;
    let rows = select(0u, min(list[entry + 2u], params.page_rows), live);
    let read = start * params.page_words;
    let write = end * params.page_words;
    copy_words(lane, read, write, rows * params.key_words);
    copy_words(lane, read + params.values, write + params.values, rows * params.value_words);
    copy_words(lane, read + params.positions, write + params.positions, rows);
}
