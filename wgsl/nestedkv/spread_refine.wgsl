// SPDX-License-Identifier: MIT OR Apache-2.0
// Step 5, second of three: of the scores within the bins where the highest and the lowest group end, how
// many lie in each of 2048 finer ones, `finer` [lines, 2, 2048]; of those beyond, what they add to the
// sums of the groups within their bins, `beyond` [lines, 2, 2], in two parts, the low 16 bits first.
// Both are 0 before. Dispatched by src/nestedkv/gpu/spread.rs; twin src/nestedkv/cpu/spread.rs.
// A workgroup takes SPAN tokens of a line.

struct Params {
    lines: u32,
    tokens: u32,
    group: u32,
    flat: f32,
    parts: u32,
    parts_multiplier: u32,
    parts_shift1: u32,
    parts_shift2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scales: array<f32>;
@group(0) @binding(2) var<storage, read> extremes: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> finer: array<atomic<u32>>;
@group(0) @binding(5) var<storage, read_write> beyond: array<atomic<u32>>;

const WG: u32 = 256u;
const SPAN: u32 = 4096u;
const BINS: u32 = 2048u;

var<workgroup> wg_sums: array<vec2<u32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let line = divide_magic(
        place, params.parts_multiplier, params.parts_shift1, params.parts_shift2);
    let live = line < params.lines;
    let first = (place - line * params.parts) * SPAN;
    let last = select(0u, min(first + SPAN, params.tokens), live);
    let ends = span_ends(select(0u, line, live), params.flat);
    let borders = span_borders(select(0u, line, live), lane);

    var sums = vec2<u32>(0u);
    if ends.y > 0.0 {
        for (var token = first + lane; token < last; token += 4u * WG) {
            let four = scores_ahead(line * params.tokens, token, last);
            for (var i = 0u; i < 4u; i++) {
                let level = span_level(four[i], ends);
                let own = token + i * WG < last;
                let bin = level >> 11u;
                let rest = level & (BINS - 1u);
                if own && bin == borders.x {
                    atomicAdd(&finer[2u * line * BINS + rest], 1u);
                }
                if own && bin == borders.z {
                    atomicAdd(&finer[(2u * line + 1u) * BINS + rest], 1u);
                }
                sums += select(
                    vec2<u32>(0u), vec2<u32>(rest),
                    vec2<bool>(own && bin > borders.x, own && bin < borders.z));
            }
        }
    }
    wg_sums[lane] = sums;
    workgroupBarrier();
    for (var half_size = WG >> 1u; half_size > 0u; half_size = half_size >> 1u) {
        if lane < half_size {
            wg_sums[lane] += wg_sums[lane + half_size];
        }
        workgroupBarrier();
    }
    if lane < 2u && live {
        let sum = wg_sums[0][lane];
        atomicAdd(&beyond[4u * line + 2u * lane], sum & 0xffffu);
        atomicAdd(&beyond[4u * line + 2u * lane + 1u], sum >> 16u);
    }
}
