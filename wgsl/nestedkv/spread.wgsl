// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 4 and 5, last of three: (low, span or 0, gap, 0) of every line. Dispatched by
// src/nestedkv/gpu/spread.rs; twin src/nestedkv/cpu/spread.rs.
// A workgroup takes one line; a lane 8 bins.

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
@group(0) @binding(1) var<storage, read> extremes: array<u32>;
@group(0) @binding(2) var<storage, read> counts: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> finer: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> beyond: array<u32>;
@group(0) @binding(5) var<storage, read_write> spreads: array<vec4<f32>>;

const WG: u32 = 256u;
const BINS: u32 = 2048u;

var<workgroup> wg_sums: array<vec4<f32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let place = workgroup.y * workgroups.x + workgroup.x;
    let live = place < params.lines;
    let line = select(0u, place, live);
    let ends = span_ends(line, params.flat);
    let borders = span_borders(line, lane);

    // Of the bordering bins the highest members of the one, the lowest of the other.
    let at = 512u * line + 2u * lane;
    let top_at = 1024u * line + 2u * lane;
    let bottom_at = top_at + 512u;
    let tops = finer[top_at] + finer[top_at + 1u];
    let bottoms = finer[bottom_at] + finer[bottom_at + 1u];
    let top_before = prefix_sum((tops.x + tops.y) + (tops.z + tops.w), lane);
    let bottom_before = prefix_sum((bottoms.x + bottoms.y) + (bottoms.z + bottoms.w), lane);
    var above = top_before.y - top_before.x;
    var below = bottom_before.x;

    // Sums of the groups in bins and in levels within them; long sums of whole numbers, rounded.
    var sums = vec4<f32>(0.0);
    for (var quad = 0u; quad < 2u; quad++) {
        let coarse = counts[at + quad];
        let top_fine = finer[top_at + quad];
        let bottom_fine = finer[bottom_at + quad];
        for (var i = 0u; i < 4u; i++) {
            let bin = 8u * lane + 4u * quad + i;
            let count = f32(coarse[i]) * f32(bin);
            above -= top_fine[i];
            let top_taken = min(top_fine[i], borders.y - min(borders.y, above));
            let bottom_taken = min(bottom_fine[i], borders.w - min(borders.w, below));
            below += bottom_fine[i];
            sums += vec4<f32>(
                select(0.0, count, bin > borders.x), f32(top_taken) * f32(bin),
                select(0.0, count, bin < borders.z), f32(bottom_taken) * f32(bin));
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
    if lane == 0u && live {
        let all = wg_sums[0];
        let rest = vec2<f32>(
            f32(beyond[4u * line + 1u]) * 65536.0 + f32(beyond[4u * line]),
            f32(beyond[4u * line + 3u]) * 65536.0 + f32(beyond[4u * line + 2u]));
        let bins = vec2<f32>(
            all.x + f32(borders.y) * f32(borders.x), all.z + f32(borders.w) * f32(borders.z));
        let levels = bins * 2048.0 + (rest + all.yw);
        let gap = (levels.x - levels.y) / SPAN_TOP / f32(params.group);
        spreads[line] = vec4<f32>(ends.x, ends.y, select(0.0, gap, ends.y > 0.0), 0.0);
    }
}
