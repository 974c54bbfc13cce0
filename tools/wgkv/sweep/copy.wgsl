// SPDX-License-Identifier: MIT OR Apache-2.0
// Copies words, 16 bytes a lane: the pace that nothing here can beat.

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> copied: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let first = (workgroup.y * workgroups.x + workgroup.x) * 1024u + lane;
    for (var part = 0u; part < 4u; part++) {
        let at = first + 256u * part;
        if at < params.count {
            copied[at] = data[at];
        }
    }
}
