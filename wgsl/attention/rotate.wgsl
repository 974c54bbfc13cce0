// SPDX-License-Identifier: MIT OR Apache-2.0
// Prepares queries [queries, d]: q' = q times the power of two that brings its largest element to
// 2^-12 .. 2^-11, H q', how dot products with them become logits (a limit, a factor and a power of
// two), and the last position that the query sees; behind all of them, where rows have key scales,
// H (scale q') of each, and, where attention multiplies integers, those that meet centroids and means as
// bytes. Dispatched by src/attention/gpu/rotate.rs; twin:
// src/attention/cpu/rotate.rs.
// One workgroup a query, a pair of channels a lane. Needs element.wgsl, divide.wgsl, hadamard.wgsl,
// hadamard_pair.wgsl and key_scale.wgsl.

struct Params {
    queries: u32,
    dtype: u32,
    packed: u32,
    hadamard_scale: f32,
    scale: f32,
    limit: i32,
    // Query tokens, and queries of a member of the batch.
    tokens: u32,
    member: u32,
    tokens_multiplier: u32,
    tokens_shift1: u32,
    tokens_shift2: u32,
    member_multiplier: u32,
    member_shift1: u32,
    member_shift2: u32,
    causal: u32,
    // Position of the first query token, or what is added to the member's own.
    first: u32,
    own: u32,
    // Where the scaled queries start, or 0, and the division by the queries of a row.
    scaled_at: u32,
    row_multiplier: u32,
    row_shift1: u32,
    row_shift2: u32,
    // Where scales lie in sink pages of one slab: where the pages are listed, how a page's number is
    // taken apart, the slab and its pages, and where in a page; else words of a page are 0.
    sinks_at: u32,
    sink_shift: u32,
    sink_mask: u32,
    sink_slab: u32,
    sink_pages: u32,
    sink_words: u32,
    sink_offset: u32,
    // Where the bytes start, or 0, and whether means are in the Hadamard domain.
    bytes_at: u32,
    turned: u32,
    _pad0: u32,
    _pad1: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> queries: array<u32>;
@group(0) @binding(2) var<storage, read> firsts: array<u32>;
// f16 [rows, d], or a slab of sink pages; not read where there are none.
@group(0) @binding(3) var<storage, read> key_scales: array<u32>;
@group(0) @binding(4) var<storage, read> lists: array<u32>;
// q' [d], H q' [d], limit, factor, power, last position.
@group(0) @binding(5) var<storage, read_write> prepared: array<vec2<u32>>;

const PAIRS: u32 = HEAD_DIM / 2u;
const QUERY_EXPONENT: i32 = -12;
const MIN_EXPONENT: i32 = -100;

// What the largest channel of a query that meets centroids becomes, and of one that meets means.
const ROTATE_BYTE: f32 = 127.0;
const ROTATE_TWO: f32 = 32512.0;
// 2^23 + 2^22: added to a small whole number, it leaves the number in the lowest bits.
const ROTATE_WHOLE: f32 = 12582912.0;
const ROTATE_SMALLEST: f32 = 1e-30;

var<workgroup> wg_largest: atomic<u32>;
// The same of the query that meets centroids and of the one that meets means, and the sum of the latter's
// whole numbers.
var<workgroup> wg_centroid: atomic<u32>;
var<workgroup> wg_mean: atomic<u32>;
var<workgroup> wg_total: atomic<i32>;
// Bytes of a pair of channels: those that meet centroids, and high and low ones that meet means.
var<workgroup> wg_bytes: array<vec2<u32>, HADAMARD_LANES>;

fn power(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// The stored bits of a pair of elements, 0 where one is not finite.
fn query_bits(pair: u32) -> vec2<u32> {
    let wide = params.dtype == 0u;
    let word = queries[select(pair, 2u * pair, wide)];
    var bits = vec2<u32>(word);
    if wide {
        bits.y = queries[2u * pair + 1u];
    } else {
        bits = vec2<u32>(
            element_bits(word, 0u, params.dtype), element_bits(word, 1u, params.dtype));
    }
    let finite = vec2<bool>(element_finite(bits.x), element_finite(bits.y));
    return select(vec2<u32>(0u), bits, finite);
}

// The numbers of these bits times 2^shift, where that is not below f32's normal range; else 0. In
// integers, since the power alone may be beyond f32 and small numbers may read as 0.
fn times_power(bits: vec2<u32>, shift: i32) -> vec2<f32> {
    let whole = bitcast<vec2<u32>>(vec2<f32>(bits & vec2<u32>(0x7fffffu)));
    let small = (bits & vec2<u32>(0x7f800000u)) == vec2<u32>(0u);
    let start = select(bits, whole | (bits & vec2<u32>(0x80000000u)), small);
    let old = vec2<i32>((start >> vec2<u32>(23u)) & vec2<u32>(255u));
    let exponent = old + vec2<i32>(shift) - select(vec2<i32>(0), vec2<i32>(149), small);
    let moved = (start & vec2<u32>(0x807fffffu)) | (vec2<u32>(exponent) << vec2<u32>(23u));
    let kept = (exponent > vec2<i32>(0)) & ((bits & vec2<u32>(0x7fffffffu)) != vec2<u32>(0u));
    return bitcast<vec2<f32>>(select(vec2<u32>(0u), moved, kept));
}

// Where the key scale of a row starts; a row without one has none to be multiplied with.
fn scale_word(row: u32) -> u32 {
    if params.sink_words == 0u {
        return row * PAIRS;
    }
    let page = lists[params.sinks_at + row];
    let index = page & params.sink_mask;
    let held = (page >> params.sink_shift) == params.sink_slab && index < params.sink_pages;
    return select(0u, index * params.sink_words, held) + params.sink_offset;
}

fn last_position(query: u32) -> u32 {
    if params.causal == 0u {
        return 0xffffffffu;
    }
    var first = params.first;
    if params.own != 0u {
        first += firsts[divide_magic(
            query, params.member_multiplier, params.member_shift1, params.member_shift2)];
    }
    if params.tokens == 1u {
        return first;
    }
    let head = divide_magic(
        query, params.tokens_multiplier, params.tokens_shift1, params.tokens_shift2);
    return first + (query - head * params.tokens);
}

fn largest_of(pair: vec2<f32>) -> u32 {
    return bitcast<u32>(max(abs(pair.x), abs(pair.y)));
}

// A pair as whole numbers, the largest channel of the query becoming `whole`.
fn whole_of(pair: vec2<f32>, largest: f32, whole: f32) -> vec2<i32> {
    let inverse = select(0.0, whole / max(largest, ROTATE_SMALLEST), largest > ROTATE_SMALLEST);
    return bitcast<vec2<i32>>(pair * inverse + ROTATE_WHOLE) - bitcast<vec2<i32>>(vec2<f32>(ROTATE_WHOLE));
}

fn bytes_of(pair: vec2<i32>) -> u32 {
    let low = bitcast<vec2<u32>>(pair) & vec2<u32>(255u);
    return low.x | (low.y << 8u);
}

// Bytes of four pairs of a kind: those of even channels, then those of odd ones.
fn apart(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
    let pairs = vec4<u32>(a, b, c, d);
    let even = (pairs & vec4<u32>(255u)) << vec4<u32>(0u, 8u, 16u, 24u);
    let odd = (pairs >> vec4<u32>(8u)) << vec4<u32>(0u, 8u, 16u, 24u);
    return vec2<u32>(even.x | even.y | even.z | even.w, odd.x | odd.y | odd.z | odd.w);
}

// Of a query as it meets centroids and as it meets means: bytes of the former, four channels a word; of the
// latter, which are brought to 16 bits, the high bytes, then the low ones, of eight channels in two words, the
// even channels and the odd ones; what a number of each counts in, and the sum of the latter's.
fn write_bytes(lane: u32, query: u32, centroid: vec2<f32>, mean: vec2<f32>) {
    if lane == 0u {
        atomicStore(&wg_centroid, 0u);
        atomicStore(&wg_mean, 0u);
        atomicStore(&wg_total, 0);
    }
    workgroupBarrier();
    atomicMax(&wg_centroid, largest_of(centroid));
    atomicMax(&wg_mean, largest_of(mean));
    workgroupBarrier();
    let most = vec2<f32>(bitcast<f32>(atomicLoad(&wg_centroid)), bitcast<f32>(atomicLoad(&wg_mean)));
    let whole = whole_of(mean, most.y, ROTATE_TWO);
    let high = (whole + vec2<i32>(128)) >> vec2<u32>(8u);
    wg_bytes[lane] = vec2<u32>(bytes_of(whole_of(centroid, most.x, ROTATE_BYTE)),
        bytes_of(high) | (bytes_of(whole) << 16u));
    if lane < PAIRS {
        atomicAdd(&wg_total, whole.x + whole.y);
    }
    workgroupBarrier();
    let base = (params.bytes_at >> 1u) + query * (3u * (PAIRS / 4u) + 2u);
    if lane < PAIRS / 4u {
        let a = wg_bytes[4u * lane];
        let b = wg_bytes[4u * lane + 1u];
        let c = wg_bytes[4u * lane + 2u];
        let d = wg_bytes[4u * lane + 3u];
        prepared[base + lane] = vec2<u32>(a.x | (b.x << 16u), c.x | (d.x << 16u));
        let low = vec4<u32>(0xffffu);
        let highs = vec4<u32>(a.y, b.y, c.y, d.y) & low;
        let lows = vec4<u32>(a.y, b.y, c.y, d.y) >> vec4<u32>(16u);
        prepared[base + PAIRS / 4u + lane] = apart(highs.x, highs.y, highs.z, highs.w);
        prepared[base + PAIRS / 2u + lane] = apart(lows.x, lows.y, lows.z, lows.w);
    }
    if lane == 0u {
        let units = most * vec2<f32>(1.0 / ROTATE_BYTE, 1.0 / ROTATE_TWO);
        let total = f32(atomicLoad(&wg_total)) * units.y;
        prepared[base + 3u * (PAIRS / 4u)] = bitcast<vec2<u32>>(units);
        prepared[base + 3u * (PAIRS / 4u) + 1u] = vec2<u32>(bitcast<u32>(total), 0u);
    }
}

@compute @workgroup_size(HADAMARD_LANES)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let query = group.y * groups.x + group.x;
    if query >= params.queries {
        return;
    }
    let own = min(lane, PAIRS - 1u);
    let bits = query_bits(query * PAIRS + own);
    // What does not wait for the query comes while it is on its way.
    if lane == 0u {
        atomicStore(&wg_largest, 0u);
    }
    let last = last_position(query);
    var factors = 0u;
    if params.scaled_at != 0u {
        let row = divide_magic(
            query, params.row_multiplier, params.row_shift1, params.row_shift2);
        factors = key_scales[scale_word(row) + own];
    }
    workgroupBarrier();
    atomicMax(&wg_largest, max(bits.x & 0x7fffffffu, bits.y & 0x7fffffffu));
    workgroupBarrier();
    let exponent = max(i32(atomicLoad(&wg_largest) >> 23u) - 127, MIN_EXPONENT);
    let value = times_power(bits, QUERY_EXPONENT - exponent);
    // Pairs from here on.
    let base = query * (HEAD_DIM + 2u);
    if lane < PAIRS {
        prepared[base + lane] = bitcast<vec2<u32>>(value);
    }
    if lane == 0u {
        let lost = exponent - QUERY_EXPONENT;
        let boost = select(0, 64, lost > 60);
        let limit = power(clamp(params.limit - lost, -126, 126));
        let factor = params.scale * power(lost - boost);
        prepared[base + HEAD_DIM] = vec2<u32>(bitcast<u32>(limit), bitcast<u32>(factor));
        prepared[base + HEAD_DIM + 1u] = vec2<u32>(u32(boost), last);
    }
    // Queries as they are, then those under key scales.
    var centroid = value;
    var mean = value;
    let passes = params.packed + select(0u, 1u, params.scaled_at != 0u);
    for (var pass_of = 0u; pass_of < passes; pass_of++) {
        var held = value;
        var to = base + PAIRS;
        if pass_of == 1u {
            held *= vec2<f32>(key_scale_of(factors, 0u), key_scale_of(factors, 1u));
            to = (params.scaled_at >> 1u) + query * PAIRS;
        }
        let rotated = hadamard_pair_forward(lane, own, held) * params.hadamard_scale;
        if lane < PAIRS {
            prepared[to + lane] = bitcast<vec2<u32>>(rotated);
        }
        centroid = rotated;
        if pass_of == 0u && params.turned == 1u {
            mean = rotated;
        }
    }
    if params.bytes_at != 0u {
        write_bytes(lane, query, centroid, mean);
    }
}
