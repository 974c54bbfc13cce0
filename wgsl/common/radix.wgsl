// Radix select, 8 bits a pass: two independent histograms, and the bins that hold their ranks. Needs
// the override WG, the lanes of the workgroup. Every function is to be called by all lanes together.

const RADIX_GROUP: u32 = 16u;

var<workgroup> radix_bins: array<atomic<u32>, 512>;
var<workgroup> radix_groups: array<u32, 32>;
var<workgroup> radix_found: array<vec4<u32>, 2>;

// Empties both histograms.
fn radix_clear(lane: u32) {
    for (var bin = lane; bin < 512u; bin += WG) {
        atomicStore(&radix_bins[bin], 0u);
    }
    workgroupBarrier();
}

// Counts `amount` keys that share the bits above `shift + 8` with `prefix`.
fn radix_count(histogram: u32, key: u32, prefix: u32, shift: u32, amount: u32) {
    if ((key ^ prefix) & (0xffffff00u << shift)) == 0u {
        atomicAdd(&radix_bins[256u * histogram + ((key >> shift) & 0xffu)], amount);
    }
}

// Finds in each histogram the bin that holds the key of rank `ranks` (1 is the highest; 0 finds
// nothing): afterwards radix_found has that bin, the keys in the bins above it, and the keys in it.
fn radix_pick(ranks: vec2<u32>, lane: u32) {
    workgroupBarrier();
    for (var group = lane; group < 32u; group += WG) {
        var sum = 0u;
        for (var i = 0u; i < RADIX_GROUP; i++) {
            sum += atomicLoad(&radix_bins[group * RADIX_GROUP + i]);
        }
        radix_groups[group] = sum;
    }
    workgroupBarrier();
    for (var group = lane; group < 32u; group += WG) {
        let histogram = group >> 4u;
        let rank = select(ranks.x, ranks.y, histogram == 1u);
        var above = 0u;
        for (var higher = group + 1u; higher < 16u * (histogram + 1u); higher++) {
            above += radix_groups[higher];
        }
        if above < rank && rank <= above + radix_groups[group] {
            for (var i = RADIX_GROUP; i > 0u; i--) {
                let bin = group * RADIX_GROUP + i - 1u;
                let own = atomicLoad(&radix_bins[bin]);
                if above < rank && rank <= above + own {
                    radix_found[histogram] = vec4<u32>(bin & 0xffu, above, own, 0u);
                }
                above += own;
            }
        }
    }
    workgroupBarrier();
}
