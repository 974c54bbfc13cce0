// Radix select, 8 bits a pass, in workgroups of 256: two independent histograms, and the bin that
// holds a rank. Every function is to be called by all lanes together.

var<workgroup> radix_bins: array<atomic<u32>, 512>;
var<workgroup> radix_scan: array<u32, 256>;
var<workgroup> radix_found: vec4<u32>;

// Empties both histograms.
fn radix_clear(lane: u32) {
    atomicStore(&radix_bins[lane], 0u);
    atomicStore(&radix_bins[lane + 256u], 0u);
    workgroupBarrier();
}

// Counts `amount` keys that share the bits above `shift + 8` with `prefix`.
fn radix_count(histogram: u32, key: u32, prefix: u32, shift: u32, amount: u32) {
    if ((key ^ prefix) & (0xffffff00u << shift)) == 0u {
        atomicAdd(&radix_bins[256u * histogram + ((key >> shift) & 0xffu)], amount);
    }
}

// The bin that holds the key of rank `rank` (1 is the highest), the keys in the bins above it, and
// the keys in it.
fn radix_pick(histogram: u32, rank: u32, lane: u32) -> vec4<u32> {
    workgroupBarrier();
    let bin = 255u - lane;
    let own = atomicLoad(&radix_bins[256u * histogram + bin]);
    radix_scan[lane] = own;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step = step << 1u) {
        let before = select(0u, radix_scan[max(lane, step) - step], lane >= step);
        workgroupBarrier();
        radix_scan[lane] = radix_scan[lane] + before;
        workgroupBarrier();
    }
    let inclusive = radix_scan[lane];
    if inclusive - own < rank && rank <= inclusive {
        radix_found = vec4<u32>(bin, inclusive - own, own, 0u);
    }
    workgroupBarrier();
    let found = radix_found;
    workgroupBarrier();
    return found;
}
