// SPDX-License-Identifier: MIT OR Apache-2.0
// Steps 4 and 5 of short lines: (low, span or 0, gap, 0) of every line. Dispatched by
// src/nestedkv/gpu/spread.rs; twin src/nestedkv/cpu/spread.rs.
// A lane takes one line of up to SHORT tokens. Needs order.wgsl and span.wgsl.

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
@group(0) @binding(3) var<storage, read_write> spreads: array<vec4<f32>>;

const WG: u32 = 64u;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lane: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) workgroups: vec3<u32>,
) {
    let line = (workgroup.y * workgroups.x + workgroup.x) * WG + lane;
    if line >= params.lines {
        return;
    }
    let ends = span_ends(line, params.flat);
    let base = line * params.tokens;
    let tokens = min(params.tokens, SHORT);
    var top = 0u;
    var bottom = 0u;
    // A line without a span has no groups to tell apart.
    if ends.y > 0.0 {
        for (var i = 0u; i < tokens; i++) {
            let own = span_level(scales[base + i], ends);
            var above = 0u;
            for (var j = 0u; j < tokens; j++) {
                let other = span_level(scales[base + j], ends);
                above += select(0u, 1u, other > own || (other == own && j < i));
            }
            top += select(0u, own, above < params.group);
            bottom += select(0u, own, tokens - 1u - above < params.group);
        }
    }
    let gap = (f32(top) - f32(bottom)) / SPAN_TOP / f32(params.group);
    spreads[line] = vec4<f32>(ends.x, ends.y, select(0.0, gap, ends.y > 0.0), 0.0);
}
