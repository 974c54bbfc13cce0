// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 2 and 3: raw scores of the three scales, [3, rows, tokens]. Sums over blocks and windows are
// integers, so they are exact. Dispatched by src/nestedkv/gpu/anomaly.rs; twin
// src/nestedkv/cpu/anomaly.rs.
// A workgroup takes 16 tokens of a row; a lane takes every 64th pair of channels of all of them.

struct Params {
    rows: u32,
    tokens: u32,
    dim: u32,
    dtype: u32,
    tiles: u32,
    tiles_multiplier: u32,
    tiles_shift1: u32,
    tiles_shift2: u32,
    block: u32,
    blocks: u32,
    block_multiplier: u32,
    block_shift1: u32,
    block_shift2: u32,
    window: u32,
    pieces: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read> factors: array<u32>;
@group(0) @binding(3) var<storage, read> means: array<f32>;
@group(0) @binding(4) var<storage, read> sums: array<i32>;
// Sums over 64 tokens, [rows, pieces, dim]; only read when there are pieces.
@group(0) @binding(5) var<storage, read> piece_sums: array<i32>;
@group(0) @binding(6) var<storage, read_write> scales: array<f32>;

const TILE: u32 = 16u;
const PIECE: u32 = 64u;
// The factor 2^24 / 1e-12 of keys whose norm is below the floor; all others have less.
const FLOOR_FACTOR: f32 = 16777216.0 / 1e-12;

var<workgroup> wg_partial: array<f32, 4096>;

// Place of a lane's share of a line (one product of one token), turned so that the readers of 64 lines
// meet different banks.
fn share(line: u32, lane: u32) -> u32 {
    return line * 64u + ((lane + line) & 63u);
}

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let row = divide_magic(
        place, params.tiles_multiplier, params.tiles_shift1, params.tiles_shift2);
    let first = (place - row * params.tiles) * TILE;
    let count = select(0u, min(TILE, params.tokens - min(first, params.tokens)), row < params.rows);
    let base = row * params.tokens;
    let first_block = divide_magic(
        first, params.block_multiplier, params.block_shift1, params.block_shift2);

    for (var line = 0u; line < 4u * TILE; line++) {
        wg_partial[share(line, lane)] = 0.0;
    }
    let pairs = select(0u, params.dim >> 1u, count > 0u);
    for (var pair = lane; pair < pairs; pair += 64u) {
        let stable = vec2<f32>(
            means[row * params.dim + 2u * pair], means[row * params.dim + 2u * pair + 1u]);
        // The sum of the window: single tokens, and whole pieces in two parts that cannot overflow.
        var near = vec2<i32>(0);
        var far_high = vec2<i32>(0);
        var far_low = vec2<i32>(0);
        var next = first + 1u - min(params.window, first + 1u);
        while next <= first {
            if params.pieces > 0u && (next & (PIECE - 1u)) == 0u && next + PIECE <= first + 1u {
                let at = (row * params.pieces + (next >> 6u)) * params.dim + 2u * pair;
                let piece = vec2<i32>(piece_sums[at], piece_sums[at + 1u]);
                far_high += piece >> vec2<u32>(14u);
                far_low += piece & vec2<i32>(0x3fff);
                next += PIECE;
            } else {
                near += unit_grid(unit_key(base + next, pair));
                next += 1u;
            }
        }
        var block = first_block;
        var episodic = vec2<f32>(0.0);
        for (var t = 0u; t < count; t++) {
            let token = first + t;
            let key = unit_key(base + token, pair);
            if t > 0u {
                near += unit_grid(key);
                if token >= params.window {
                    near -= unit_grid(unit_key(base + token - params.window, pair));
                }
            }
            let enters = token == (block + 1u) * params.block;
            block += select(0u, 1u, enters);
            if t == 0u || enters {
                let at = (row * params.blocks + block) * params.dim + 2u * pair;
                episodic = vec2<f32>(vec2<i32>(sums[at], sums[at + 1u]));
            }
            let recent =
                vec2<f32>(far_high) * 16384.0 + (vec2<f32>(far_low) + vec2<f32>(near));
            wg_partial[share(t, lane)] += dot(key, stable);
            wg_partial[share(t + TILE, lane)] += dot(key, episodic);
            wg_partial[share(t + 2u * TILE, lane)] += dot(key, recent);
            wg_partial[share(t + 3u * TILE, lane)] += dot(key, vec2<f32>(unit_grid(key)));
        }
    }
    workgroupBarrier();
    // Four short sums lose less than one long one.
    var parts = vec4<f32>(0.0);
    for (var i = 0u; i < 16u; i++) {
        parts += vec4<f32>(
            wg_partial[share(lane, i)],
            wg_partial[share(lane, i + 16u)],
            wg_partial[share(lane, i + 32u)],
            wg_partial[share(lane, i + 48u)],
        );
    }
    let sum = (parts.x + parts.y) + (parts.z + parts.w);
    workgroupBarrier();
    wg_partial[lane] = sum;
    workgroupBarrier();
    let scale = lane >> 4u;
    let t = lane & (TILE - 1u);
    if scale < 3u && t < count {
        let token = first + t;
        let block = divide_magic(
            token, params.block_multiplier, params.block_shift1, params.block_shift2);
        let block_length = f32(min(params.block, params.tokens - block * params.block));
        let window = f32(min(params.window, token + 1u));
        // A key's product with itself on the grid stands for its norm of 1, so what the grid cuts off
        // along the key cancels: keys that equal their window are at exactly 1.
        let factor = bitcast<f32>(factors[base + token] & 0x7fffffffu);
        let own = wg_partial[t + 3u * TILE];
        let unit_product = select(4194304.0, own, factor < FLOOR_FACTOR);
        var length = 1.0;
        length = select(length, block_length * 4194304.0, scale == 1u);
        length = select(length, window * unit_product, scale == 2u);
        // A GPU's quotient may be off by some ULP, also where it is exact in truth, and by another
        // amount for another length: equal keys would no longer score alike. The rest mends it.
        let quotient = sum / length;
        let rest = fma(-quotient, length, sum);
        scales[(scale * params.rows + row) * params.tokens + token] = -(quotient + rest / length);
    }
}
