// SPDX-License-Identifier: MIT OR Apache-2.0
// Running sums of counts, from 0 to the total: `offsets` has one entry more than `counts`.
// Dispatched by src/primitives/gpu/scan.rs; twin src/primitives/cpu/scan.rs.
// One workgroup, 256 counts at a time.

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> offsets: array<u32>;

var<workgroup> wg_scan: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
    var carry = 0u;
    for (var first = 0u; first < params.count; first += 256u) {
        let index = first + lane;
        let live = index < params.count;
        let own = select(0u, counts[min(index, params.count - 1u)], live);
        wg_scan[lane] = own;
        workgroupBarrier();
        for (var step = 1u; step < 256u; step = step << 1u) {
            let before = select(0u, wg_scan[max(lane, step) - step], lane >= step);
            workgroupBarrier();
            wg_scan[lane] = wg_scan[lane] + before;
            workgroupBarrier();
        }
        let inclusive = wg_scan[lane];
        let all = wg_scan[255];
        workgroupBarrier();
        if live {
            offsets[index] = carry + inclusive - own;
        }
        carry += all;
    }
    if lane == 0u {
        offsets[params.count] = carry;
    }
}
