// Radix select from the highest key down, in three steps of 11, 11 and 10 bits, over workgroups that
// share the bins of a line. A state is (the bits of the key found so far, the rank left among the keys
// that have them, keys above them, keys that have them). Expects WG, 256 lanes, and the binding
// `earlier`, the bins [lines, 2048] of a step that is over; needs prefix.wgsl.

const BINS: u32 = 2048u;

var<workgroup> bins_found: vec4<u32>;

fn bins_shift(step: u32) -> u32 {
    return select(select(0u, 10u, step == 1u), 21u, step == 0u);
}

// The bin of a key in a step, or BINS where its higher bits are not those of the state.
fn bins_place(key: u32, state: vec4<u32>, step: u32) -> u32 {
    let shift = bins_shift(step);
    let bin = (key >> shift) & (BINS - 1u);
    // The last step has one bit less.
    let place = select(bin, bin & 0x3ffu, step == 2u);
    let above = select(0xffe00000u, select(0xfffffc00u, 0u, step == 0u), step != 1u);
    return select(place, BINS, ((key ^ state.x) & above) != 0u);
}

// The state after step `step`, whose bins are `earlier`; unchanged where they hold nothing of that rank (1
// is the highest). To be called by all lanes together.
fn bins_pick(line: u32, step: u32, state: vec4<u32>, lane: u32) -> vec4<u32> {
    if lane == 0u {
        bins_found = state;
    }
    // 8 bins a lane, the highest first.
    let at = ((line * BINS) >> 2u) + (BINS >> 2u) - 2u - 2u * lane;
    let low = earlier[at];
    let high = earlier[at + 1u];
    let both = low + high;
    var above = prefix_sum((both.x + both.y) + (both.z + both.w), lane).x;
    for (var i = 0u; i < 8u; i++) {
        let four = select(low, high, i < 4u);
        let count = four[3u - (i & 3u)];
        if above < state.y && state.y <= above + count {
            let bin = BINS - 1u - 8u * lane - i;
            let key = state.x | (bin << bins_shift(step));
            bins_found = vec4<u32>(key, state.y - above, state.z + above, count);
        }
        above += count;
    }
    workgroupBarrier();
    return bins_found;
}
