// What both kernels of raw scores share: the products of a key with what the scales compare it with,
// their sums over the lanes of a token, scores from sums, and the ends of their range. Expects the
// constants LANE_BITS and TOKENS (of a team, that are turned to scores together), params.rows and the
// binding `extremes`; needs order.wgsl and unit_key.wgsl.

// Lanes of a token, 8 channels each, and tokens that a workgroup has in hand at a time.
const LANES: u32 = 1u << LANE_BITS;
const TEAMS: u32 = 64u >> LANE_BITS;
// Room for the parts of a token, one more than there are, so that readers meet different banks.
const STRIDE: u32 = LANES + 1u;
const PARTIALS: u32 = 4u * TEAMS * STRIDE;
// The factor 2^24 / 1e-12 of keys whose norm is below the floor, or nearly; all others have less.
const FLOOR_FACTOR: f32 = 16777216.0 / 1e-12 * 0.999999;
// Grid units of the norm, and what the keys of unit_key.wgsl have too much.
const UNIT: f32 = 4194304.0;
const LESS: f32 = 2.384185791015625e-7;

// Four tokens of every team: products of its lanes, STRIDE apart.
var<workgroup> wg_partials: array<vec4<f32>, PARTIALS>;
// Sums of the four products of the tokens of every team that are turned to scores together.
var<workgroup> wg_sums: array<f32, 4u * TOKENS * TEAMS>;
var<workgroup> wg_ends: array<u32, 384>;
var<workgroup> wg_best: array<u32, 48>;

// 8 channels on the grid, as unit_key.wgsl has them, or a sum of such.
struct Places {
    low: vec4<u32>,
    high: vec4<u32>,
}

// What a lane compares all keys of a block with.
struct Anchors {
    stable_low: vec4<f32>,
    stable_high: vec4<f32>,
    block_low: vec4<f32>,
    block_high: vec4<f32>,
}

fn places(key: Key, scale: f32) -> Places {
    return Places(key_grid(key.low, scale), key_grid(key.high, scale));
}

fn factor_of(token: u32, live: bool) -> u32 {
    if live {
        return factors[token];
    }
    return 0u;
}

// Products of a key with the anchors, with the sum of its window, and with its own place on the grid.
fn products(
    key: Key, scale: f32, anchors: Anchors, recent_low: vec4<f32>, recent_high: vec4<f32>, own: Places,
) -> vec4<f32> {
    let low = key_unit(key.low, scale);
    let high = key_unit(key.high, scale);
    // In integers: compilers may take x + c - c in floats for x.
    let excess = vec4<u32>(KEY_BINADE_BITS);
    let own_low = vec4<f32>(bitcast<vec4<i32>>(own.low - excess));
    let own_high = vec4<f32>(bitcast<vec4<i32>>(own.high - excess));
    return vec4<f32>(
        dot(low, anchors.stable_low) + dot(high, anchors.stable_high),
        dot(low, anchors.block_low) + dot(high, anchors.block_high),
        dot(low, recent_low) + dot(high, recent_high),
        dot(low, own_low) + dot(high, own_high),
    );
}

// Sum of product `product` of line `line` of wg_partials over its lanes.
fn partials_sum(line: u32, product: u32) -> f32 {
    let first = line * STRIDE;
    // Four short sums lose less than one long one.
    var sums = vec4<f32>(0.0);
    for (var i = first; i < first + LANES; i += 4u) {
        sums += vec4<f32>(
            wg_partials[i][product], wg_partials[i + 1u][product],
            wg_partials[i + 2u][product], wg_partials[i + 3u][product]);
    }
    return (sums.x + sums.z) + (sums.y + sums.w);
}

// The three raw scores from the sums at `at` of wg_sums.
fn raw_scores(at: u32, block_length: u32, window: u32, factor: u32) -> vec4<f32> {
    let sum = LESS * vec4<f32>(wg_sums[at], wg_sums[at + 1u], wg_sums[at + 2u], wg_sums[at + 3u]);
    // A key's product with itself on the grid stands for its norm of 1, so what the grid cuts off along
    // the key cancels: keys that equal their window are at exactly 1.
    let whole = bitcast<f32>(factor & 0x7ffffffeu) < FLOOR_FACTOR;
    let unit_product = select(UNIT, sum.w, whole);
    let length = vec4<f32>(1.0, f32(block_length) * UNIT, f32(window) * unit_product, 1.0);
    // A GPU's quotient may be off by some ULP, also where it is exact in truth, and by another amount
    // for another length: equal keys would no longer score alike. The rest mends it.
    let quotient = sum / length;
    let rest = fma(-quotient, length, sum);
    return -(quotient + rest / length);
}

fn score_keys(score: vec4<f32>) -> vec4<u32> {
    let bits = bitcast<vec4<u32>>(score);
    return vec4<u32>(order_key(bits.x), order_key(bits.y), order_key(bits.z), 0u);
}

// Hands on the highest keys of a row that every lane has found, and the highest complements. To be
// called by all lanes together.
fn ends_store(highest: vec4<u32>, lowest: vec4<u32>, row: u32, lane: u32) {
    wg_ends[lane] = highest.x;
    wg_ends[64u + lane] = lowest.x;
    wg_ends[128u + lane] = highest.y;
    wg_ends[192u + lane] = lowest.y;
    wg_ends[256u + lane] = highest.z;
    wg_ends[320u + lane] = lowest.z;
    workgroupBarrier();
    if lane < 48u {
        var best = 0u;
        for (var i = 0u; i < 8u; i++) {
            best = max(best, wg_ends[8u * lane + i]);
        }
        wg_best[lane] = best;
    }
    workgroupBarrier();
    if lane < 6u && row < params.rows {
        var best = 0u;
        for (var i = 0u; i < 8u; i++) {
            best = max(best, wg_best[8u * lane + i]);
        }
        atomicMax(&extremes[((lane >> 1u) * params.rows + row) * 2u + (lane & 1u)], best);
    }
}
