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

const WG: u32 = 256u;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    var carry = 0u;
    for (var first = 0u; first < params.count; first += WG) {
        let index = first + lane;
        let live = index < params.count;
        let own = select(0u, counts[min(index, params.count - 1u)], live);
        let sums = prefix_sum(own, lane);
        if live {
            offsets[index] = carry + sums.x;
        }
        carry += sums.y;
    }
    if lane == 0u {
        offsets[params.count] = carry;
    }
}
