// The bins of 2048 levels in which the highest and the lowest group of a line end. Expects the binding
// `counts` [lines, 2048] in fours, params.tokens and params.group, and WG lanes, 256 of them; needs prefix.wgsl.

var<workgroup> borders_found: array<vec2<u32>, 2>;

// (bin of the top group, members that it takes of it, bin of the bottom group, members that it takes).
// Nothing of a line without counts. To be called by all lanes together.
fn span_borders(line: u32, lane: u32) -> vec4<u32> {
    if lane < 2u {
        borders_found[lane] = vec2<u32>(0u);
    }
    let low = counts[512u * line + 2u * lane];
    let high = counts[512u * line + 2u * lane + 1u];
    let both = low + high;
    var below = prefix_sum((both.x + both.y) + (both.z + both.w), lane).x;
    // Ranks from the bottom: the first of the highest group and the last of the lowest.
    let top_rank = params.tokens - params.group + 1u;
    let bottom_rank = params.group;
    for (var i = 0u; i < 8u; i++) {
        let four = select(low, high, i > 3u);
        let count = four[i & 3u];
        let upto = below + count;
        if below < top_rank && top_rank <= upto {
            borders_found[0] = vec2<u32>(8u * lane + i, upto - top_rank + 1u);
        }
        if below < bottom_rank && bottom_rank <= upto {
            borders_found[1] = vec2<u32>(8u * lane + i, bottom_rank - below);
        }
        below = upto;
    }
    workgroupBarrier();
    return vec4<u32>(borders_found[0], borders_found[1]);
}
