// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 1: the factor 2^24 / max(|k|, 1e-12) of every key row, with the sign set when the row holds
// NaN or Inf. Dispatched by src/nestedkv/gpu/norm.rs; twin src/nestedkv/cpu/norm.rs.
// A workgroup takes 16 token rows, 8 lanes each.

struct Params {
    count: u32,
    dim: u32,
    dtype: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> factors: array<u32>;

const LANES: u32 = 8u;
const TOKENS: u32 = 16u;

var<workgroup> wg_largest: array<u32, 128>;
var<workgroup> wg_sum: array<f32, 128>;

fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

fn magnitude(word: u32, index: u32) -> u32 {
    let bits = element_bits(word, index, params.dtype);
    return select(0x80000000u, bits & 0x7fffffffu, element_finite(bits));
}

// The larger magnitude, and the mark of NaN or Inf of either.
fn join(a: u32, b: u32) -> u32 {
    return max(a & 0x7fffffffu, b & 0x7fffffffu) | ((a | b) & 0x80000000u);
}

@compute @workgroup_size(128)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let token = place * TOKENS + (lane >> 3u);
    let live = token < params.count;
    let row_words = select(params.dim >> 1u, params.dim, params.dtype == 0u);
    let words = select(0u, row_words, live);
    let base = token * row_words;
    let group = lane & ~7u;

    var largest = 0u;
    for (var w = lane & 7u; w < words; w += LANES) {
        let word = keys[base + w];
        largest = join(largest, join(magnitude(word, 0u), magnitude(word, 1u)));
    }
    wg_largest[lane] = largest;
    workgroupBarrier();
    for (var i = 0u; i < LANES; i++) {
        largest = join(largest, wg_largest[group + i]);
    }
    let biased = i32((largest & 0x7fffffffu) >> 23u);
    let moderate = biased >= 97 && biased <= 157;
    let exponent = select(clamp(biased - 127, -64, 100), 0, moderate);
    let scale = power_of_two(-exponent);

    var sum = 0.0;
    let second = select(1.0, 0.0, params.dtype == 0u);
    // Short sums added up lose less than one long one.
    for (var first = lane & 7u; first < words; first += 4u * LANES) {
        var part = 0.0;
        for (var w = first; w < min(first + 4u * LANES, words); w += LANES) {
            let word = keys[base + w];
            let a = element_read(word, 0u, params.dtype) * scale;
            let b = element_read(word, 1u, params.dtype) * scale * second;
            part += a * a + b * b;
        }
        sum += part;
    }
    wg_sum[lane] = sum;
    workgroupBarrier();
    if live && (lane & 7u) == 0u {
        let low = (wg_sum[group] + wg_sum[group + 4u]) + (wg_sum[group + 2u] + wg_sum[group + 6u]);
        let high = (wg_sum[group + 1u] + wg_sum[group + 5u]) + (wg_sum[group + 3u] + wg_sum[group + 7u]);
        let total = low + high;
        // Square roots and divisions may be off by several units in the last place; a Newton step
        // leaves about one, so that keys of norm 1 have it within what counts as no span.
        let empty = total == 0.0;
        let rough = inverseSqrt(select(total, 1.0, empty));
        let inverse = rough * (1.5 - 0.5 * (total * rough) * rough);
        let norm = total * inverse;
        let small = empty || (exponent <= 0 && norm * power_of_two(min(exponent, 0)) < 1e-12);
        let factor = 16777216.0 * scale * inverse;
        let bits = bitcast<u32>(select(factor, 16777216.0 / 1e-12, small));
        factors[token] = bits | (largest & 0x80000000u);
    }
}
