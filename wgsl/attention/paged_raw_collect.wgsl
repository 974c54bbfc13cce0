// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies pages of slabs side by side, where those of one unit lie in more slabs than one dispatch
// binds. Pages outside the slabs are left out. Dispatched by src/attention/gpu/paged_raw.rs.
// One workgroup an entry (page, place).

struct Params {
    first: u32,
    count: u32,
    page_fours: u32,
    shift: u32,
    mask: u32,
    pages: u32,
    slab_0: u32,
    slab_1: u32,
    slab_2: u32,
    slab_3: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
@group(0) @binding(2) var<storage, read> slab_0: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> slab_1: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> slab_2: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> slab_3: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> collected: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let number = group.y * groups.x + group.x;
    let entry = params.first + 2u * min(number, params.count - 1u);
    let slab = lists[entry] >> params.shift;
    let index = lists[entry] & params.mask;
    let start = index * params.page_fours;
    let end = lists[entry + 1u] * params.page_fours;
    let live = number < params.count && index < params.pages;
    let count = select(0u, params.page_fours, live);
    if slab == params.slab_0 {
        for (var i = lane; i < count; i += 64u) {
            collected[end + i] = slab_0[start + i];
        }
    } else if slab == params.slab_1 {
        for (var i = lane; i < count; i += 64u) {
            collected[end + i] = slab_1[start + i];
        }
    } else if slab == params.slab_2 {
        for (var i = lane; i < count; i += 64u) {
            collected[end + i] = slab_2[start + i];
        }
    } else if slab == params.slab_3 {
        for (var i = lane; i < count; i += 64u) {
            collected[end + i] = slab_3[start + i];
        }
    }
}
