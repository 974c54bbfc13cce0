// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 1 and 2: the factor 2^24 / max(|k|, 1e-12) of every key, with the sign set when it holds NaN or
// Inf and the last bit set when it is not plain (unit_key.wgsl); and the sums of normalised keys over
// runs of up to 64 tokens, `sums` [rows, runs, dim], in multiples of 2^-22. Dispatched by
// src/nestedkv/gpu/anchor.rs; twins src/nestedkv/cpu/norm.rs and anchor.rs.
// A workgroup takes one run: 64 / LANES teams take 4 tokens at a time, a lane 8 channels of them.

struct Params {
    rows: u32,
    tokens: u32,
    dim: u32,
    block: u32,
    pieces: u32,
    pieces_multiplier: u32,
    pieces_shift1: u32,
    pieces_shift2: u32,
    runs: u32,
    runs_multiplier: u32,
    runs_shift1: u32,
    runs_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> factors: array<u32>;
@group(0) @binding(3) var<storage, read_write> sums: array<vec4<i32>>;

const LANES: u32 = 1u << LANE_BITS;
const TEAMS: u32 = 64u >> LANE_BITS;
const TILE: u32 = 4u * TEAMS;
const TILES: u32 = 16u >> (6u - LANE_BITS);

var<workgroup> wg_squares: array<vec4<f32>, 64>;
var<workgroup> wg_largest: array<vec4<u32>, 64>;
var<workgroup> wg_marks: array<atomic<u32>, TILE>;
var<workgroup> wg_factors: array<u32, TILE>;
var<workgroup> wg_sums: array<vec4<i32>, 128>;

fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// The power of two that brings a key near 1 by its largest magnitude; none for moderate ones.
fn exponent_of(largest: u32) -> i32 {
    let biased = i32(largest >> 23u);
    let moderate = biased >= 97 && biased <= 157;
    return select(clamp(biased - 127, -64, 100), 0, moderate);
}

fn squares(key: Key, scale: f32) -> f32 {
    let low = key.low * scale;
    let high = key.high * scale;
    return dot(low, low) + dot(high, high);
}

// What a key of this largest magnitude is multiplied by before it is squared.
fn moderate_scale(largest: u32) -> f32 {
    if DTYPE == 1u {
        return 1.0;
    }
    return power_of_two(-exponent_of(largest));
}

fn largest(key: Key) -> u32 {
    let low = bitcast<vec4<u32>>(key.low) & vec4<u32>(0x7fffffffu);
    let high = bitcast<vec4<u32>>(key.high) & vec4<u32>(0x7fffffffu);
    let both = max(low, high);
    return max(max(both.x, both.y), max(both.z, both.w));
}

// Notes of a lane's part of token `place` of the tile that it is not plain, and that it is broken.
fn mark(words: KeyWords, plain: bool, place: u32) {
    if !plain {
        atomicOr(&wg_marks[place], select(1u, 0x80000001u, key_is_broken(words)));
    }
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.runs_multiplier, params.runs_shift1, params.runs_shift2);
    let range = run_range(place - row * params.runs);
    let last = select(range.x, range.y, row < params.rows);
    let base = row * params.tokens;
    let team = lane >> LANE_BITS;
    let part = lane & (LANES - 1u);
    let parts = params.dim >> 3u;
    let own = team << LANE_BITS;
    if lane < TILE {
        atomicStore(&wg_marks[lane], 0u);
    }
    workgroupBarrier();

    let held = part < parts;
    let start = range.x + 4u * team;
    var next0 = key_load(base + start, part, parts, held && start < last);
    var next1 = key_load(base + start + 1u, part, parts, held && start + 1u < last);
    var next2 = key_load(base + start + 2u, part, parts, held && start + 2u < last);
    var next3 = key_load(base + start + 3u, part, parts, held && start + 3u < last);
    var sum_low = vec4<u32>(0u);
    var sum_high = vec4<u32>(0u);
    for (var tile = 0u; tile < TILES; tile++) {
        let first = range.x + tile * TILE + 4u * team;
        let words0 = next0;
        let words1 = next1;
        let words2 = next2;
        let words3 = next3;
        // What the next tile needs is on its way while this one is worked on.
        let later = first + TILE;
        let more = held && tile + 1u < TILES;
        next0 = key_load(base + later, part, parts, more && later < last);
        next1 = key_load(base + later + 1u, part, parts, more && later + 1u < last);
        next2 = key_load(base + later + 2u, part, parts, more && later + 2u < last);
        next3 = key_load(base + later + 3u, part, parts, more && later + 3u < last);
        let plain0 = key_is_plain(words0);
        let plain1 = key_is_plain(words1);
        let plain2 = key_is_plain(words2);
        let plain3 = key_is_plain(words3);
        if held {
            mark(words0, plain0, 4u * team);
            mark(words1, plain1, 4u * team + 1u);
            mark(words2, plain2, 4u * team + 2u);
            mark(words3, plain3, 4u * team + 3u);
        }
        let key0 = key_read(words0, plain0);
        let key1 = key_read(words1, plain1);
        let key2 = key_read(words2, plain2);
        let key3 = key_read(words3, plain3);

        // f16 has room for its squares; others are brought near 1 where needed.
        var most = vec4<u32>(0u);
        if DTYPE != 1u {
            wg_largest[lane] =
                vec4<u32>(largest(key0), largest(key1), largest(key2), largest(key3));
            workgroupBarrier();
            for (var i = 0u; i < LANES; i++) {
                most = max(most, wg_largest[own + i]);
            }
        }
        wg_squares[lane] = vec4<f32>(
            squares(key0, moderate_scale(most.x)), squares(key1, moderate_scale(most.y)),
            squares(key2, moderate_scale(most.z)), squares(key3, moderate_scale(most.w)));
        workgroupBarrier();
        // A lane finds the factor of one token, which the others then read.
        let which = part & 3u;
        // Short sums added up lose less than one long one.
        var sum = vec4<f32>(0.0);
        for (var i = own; i < own + LANES; i += 4u) {
            sum += vec4<f32>(
                wg_squares[i][which], wg_squares[i + 1u][which],
                wg_squares[i + 2u][which], wg_squares[i + 3u][which]);
        }
        let total = (sum.x + sum.z) + (sum.y + sum.w);
        var exponent = 0;
        if DTYPE != 1u {
            exponent = exponent_of(most[which]);
        }
        // Square roots and divisions may be off by several units in the last place; a Newton step
        // leaves about one, so that keys of norm 1 have it within what counts as no span.
        let empty = total == 0.0;
        let rough = inverseSqrt(select(total, 1.0, empty));
        let inverse = rough * (1.5 - 0.5 * (total * rough) * rough);
        let norm = total * inverse * power_of_two(min(exponent, 0));
        let small = empty || (exponent <= 0 && norm < 1e-12);
        let factor = 16777216.0 * power_of_two(-exponent) * inverse;
        let bits = bitcast<u32>(select(factor, 16777216.0 / 1e-12, small)) & 0xfffffffeu;
        if part < 4u {
            let place_in_tile = 4u * team + part;
            if first + part < last {
                factors[base + first + part] = bits | atomicLoad(&wg_marks[place_in_tile]);
            }
            atomicStore(&wg_marks[place_in_tile], 0u);
            wg_factors[place_in_tile] = bits;
        }
        workgroupBarrier();
        let times = vec4<f32>(
            key_scale(wg_factors[4u * team]), key_scale(wg_factors[4u * team + 1u]),
            key_scale(wg_factors[4u * team + 2u]), key_scale(wg_factors[4u * team + 3u]));
        sum_low += key_grid(key0.low, times.x) + key_grid(key1.low, times.y)
            + key_grid(key2.low, times.z) + key_grid(key3.low, times.w);
        sum_high += key_grid(key0.high, times.x) + key_grid(key1.high, times.y)
            + key_grid(key2.high, times.z) + key_grid(key3.high, times.w);
    }
    // Sums wrap around: what every key has too much comes off whatever it has become.
    let excess = vec4<u32>(4u * TILES * KEY_BINADE_BITS);
    wg_sums[2u * lane] = bitcast<vec4<i32>>(sum_low - excess);
    wg_sums[2u * lane + 1u] = bitcast<vec4<i32>>(sum_high - excess);
    workgroupBarrier();
    for (var quad = lane; quad < 2u * parts; quad += 64u) {
        var sum = vec4<i32>(0);
        for (var i = 0u; i < TEAMS; i++) {
            sum += wg_sums[2u * (i << LANE_BITS) + quad];
        }
        if row < params.rows {
            sums[place * 2u * parts + quad] = sum;
        }
    }
}
