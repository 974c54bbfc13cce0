// SPDX-License-Identifier: MIT OR Apache-2.0
// Threshold of the `counts[row]` highest keys of every row: `thresholds` is [rows] of (key, ties that
// are taken, keys equal to it, keys above it), from the last step of primitives/select_count. Dispatched
// by src/primitives/gpu/select.rs; twin src/primitives/cpu/select.rs.
// A workgroup takes one row.

struct Params {
    rows: u32,
    longest: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read> counts: array<u32>;
@group(0) @binding(3) var<storage, read> states: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> earlier: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> thresholds: array<vec4<u32>>;

const WG: u32 = 256u;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = min(place, params.rows - 1u);
    let found = bins_pick(row, 2u, states[3u * row + 2u], lane);
    if lane == 0u && place < params.rows {
        let tokens = min(starts[row + 1u] - starts[row], params.longest);
        // A count of 0 found the highest key and takes none of its ties.
        let ties = select(found.y, 0u, counts[row] == 0u);
        let threshold = vec4<u32>(found.x, ties, found.w, found.z);
        thresholds[row] = select(threshold, vec4<u32>(0xffffffffu, 0u, 0u, 0u), tokens == 0u);
    }
}
