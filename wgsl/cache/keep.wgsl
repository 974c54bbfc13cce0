// SPDX-License-Identifier: MIT OR Apache-2.0
// Gathers the kept rows of a prompt into the first rows of raw pages: keys, values and positions. The
// row of a kept position p is row (p - sinks) mod chunk of the page that the head's table has at
// (p - sinks) / chunk. Rows that do not lie in the slab that is read are left to the dispatch for
// theirs; positions that are no rows of the prompt behind its sinks, and pages outside the slabs, are
// ignored. Where both slabs are one (SAME = 1) it is `result`, and `source` is not read.
// Dispatched by src/cache/gpu/keep.rs; twin src/cache/cpu/keep.rs.
// One workgroup an entry (to, rows, kept, table). Needs divide.wgsl.

struct Params {
    first: u32,
    count: u32,
    table: u32,
    table_pages: u32,
    kept: u32,
    tokens: u32,
    sinks: u32,
    chunk: u32,
    chunk_multiplier: u32,
    chunk_shift1: u32,
    chunk_shift2: u32,
    from_base: u32,
    to_base: u32,
    pages: u32,
    page_words: u32,
    values: u32,
    positions: u32,
    key_words: u32,
    value_words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> kept: array<u32>;
@group(0) @binding(3) var<storage, read> source: array<u32>;
@group(0) @binding(4) var<storage, read_write> result: array<u32>;

fn keep_words(lane: u32, start: u32, end: u32, count: u32) {
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
    let entry = params.first + 4u * min(index, params.count - 1u);
    let end = list[entry] - params.to_base;
    let first = min(list[entry + 2u], params.kept);
    let live = index < params.count && end < params.pages;
    let room = min(params.chunk, params.kept - first);
    let rows = select(0u, min(list[entry + 1u], room), live);
    let write = end * params.page_words;
    for (var row = 0u; row < rows; row++) {
        let position = kept[first + row];
        let behind = position - params.sinks;
        let page = divide_magic(
            behind, params.chunk_multiplier, params.chunk_shift1, params.chunk_shift2);
        let place = min(list[entry + 3u], params.table_pages) + page;
        let inside = position >= params.sinks && position < params.tokens
            && place < params.table_pages;
        let number = list[params.table + min(place, params.table_pages - 1u)];
        let start = number - params.from_base;
        if inside && start < params.pages {
            let slot = behind - page * params.chunk;
            let read = start * params.page_words;
            keep_words(
                lane,
                read + slot * params.key_words,
                write + row * params.key_words,
                params.key_words,
            );
            keep_words(
                lane,
                read + params.values + slot * params.value_words,
                write + params.values + row * params.value_words,
                params.value_words,
            );
            if lane == 0u {
                result[write + params.positions + row] = position;
            }
        }
    }
}
