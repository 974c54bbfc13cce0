// SPDX-License-Identifier: MIT OR Apache-2.0
// Writes incoming rows [source_rows, D] of keys and values into pages, with their positions, in the
// element type of the pages: equal types keep their bits, others by narrow.wgsl. Pages outside the
// slab and rows outside the page or the tensors are ignored.
// Dispatched by src/cache/gpu/write.rs; twin src/cache/cpu/write.rs.
// One workgroup an entry (page, slot, rows, source, position). Needs element.wgsl and narrow.wgsl.

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
    source_rows: u32,
    from_dtype: u32,
    to_dtype: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> list: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> values: array<u32>;
@group(0) @binding(4) var<storage, read_write> slab: array<u32>;

// Word `at` of the incoming keys, counted in elements of the page.
fn key_word(at: u32) -> u32 {
    if params.from_dtype == params.to_dtype {
        return keys[at];
    }
    let first = keys[element_word(2u * at, params.from_dtype)];
    let second = keys[element_word(2u * at + 1u, params.from_dtype)];
    return narrow_pair(first, second, 2u * at, params.from_dtype, params.to_dtype);
}

fn value_word(at: u32) -> u32 {
    if params.from_dtype == params.to_dtype {
        return values[at];
    }
    let first = values[element_word(2u * at, params.from_dtype)];
    let second = values[element_word(2u * at + 1u, params.from_dtype)];
    return narrow_pair(first, second, 2u * at, params.from_dtype, params.to_dtype);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = group.y * groups.x + group.x;
    let entry = params.first + 5u * min(index, params.count - 1u);
    let page = list[entry] - params.base;
    let slot = min(list[entry + 1u], params.page_rows);
    let row = min(list[entry + 3u], params.source_rows);
    let position = list[entry + 4u];
    let room = min(params.page_rows - slot, params.source_rows - row);
    let live = index < params.count && page < params.pages;
    let rows = select(0u, min(list[entry + 2u], room), live);
    let start = page * params.page_words;
    let keys_at = start + slot * params.key_words;
    for (var i = lane; i < rows * params.key_words; i += 128u) {
        slab[keys_at + i] = key_word(row * params.key_words + i);
    }
    let values_at = start + params.values + slot * params.value_words;
    for (var i = lane; i < rows * params.value_words; i += 128u) {
        slab[values_at + i] = value_word(row * params.value_words + i);
    }
    for (var i = lane; i < rows; i += 128u) {
        slab[start + params.positions + slot + i] = position + i;
    }
}
