// SPDX-License-Identifier: MIT OR Apache-2.0
// Joins ragged rows of items and as many new items for each row: row r becomes what it held, then
// its new items. An item is `width` words. Dispatched by src/nestedkv/gpu/append.rs; twin
// src/nestedkv/cpu/append.rs.
// A lane takes one word; lanes up to `rows` also write where the joined rows start.

struct Params {
    rows: u32,
    width: u32,
    tokens: u32,
    held: u32,
    words: u32,
    steps: u32,
    width_multiplier: u32,
    width_shift1: u32,
    width_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> held: array<u32>;
@group(0) @binding(2) var<storage, read> offsets: array<u32>;
@group(0) @binding(3) var<storage, read> added: array<u32>;
@group(0) @binding(4) var<storage, read_write> joined: array<u32>;
@group(0) @binding(5) var<storage, read_write> starts: array<u32>;

// Where row `row` starts among the joined items.
fn start_of(row: u32) -> u32 {
    return min(offsets[row], params.held) + row * params.tokens;
}

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let word = (workgroup.y * workgroups.x + workgroup.x) * 256u + lane;
    if word <= params.rows {
        starts[word] = start_of(word);
    }
    if word < params.words {
        let item = divide_magic(
            word, params.width_multiplier, params.width_shift1, params.width_shift2);
        // The last row that starts no later than the item: 2^steps rows or fewer are left each time.
        var row = 0u;
        for (var step = params.steps; step > 0u; step--) {
            let next = row + (1u << (step - 1u));
            if next < params.rows && start_of(min(next, params.rows)) <= item {
                row = next;
            }
        }
        let within = item - start_of(row);
        let begin = min(offsets[row], params.held);
        let length = min(offsets[row + 1u], params.held) - begin;
        let channel = word - item * params.width;
        if within < length {
            joined[word] = held[(begin + within) * params.width + channel];
        } else {
            let new_item = row * params.tokens + min(within - length, params.tokens - 1u);
            joined[word] = added[new_item * params.width + channel];
        }
    }
}
