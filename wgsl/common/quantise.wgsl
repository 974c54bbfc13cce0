// Scales and means of a chunk on grids of 4 bits: src/layout/grid.rs. Needs grid.wgsl, turn.wgsl and what
// encode.wgsl declares: wg_scale, wg_mean, wg_piece, LANES and the forms of metadata.

// Smallest and largest of the keys that each lane has. To be called by the whole workgroup.
fn ends(lane: u32, low: u32, high: u32) -> vec2<u32> {
    wg_piece[lane] = low;
    wg_piece[lane + LANES] = high;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half >>= 1u) {
        if lane < half {
            wg_piece[lane] = min(wg_piece[lane], wg_piece[lane + half]);
            wg_piece[lane + LANES] = max(wg_piece[lane + LANES], wg_piece[lane + LANES + half]);
        }
        workgroupBarrier();
    }
    let both = vec2<u32>(wg_piece[0], wg_piece[LANES]);
    workgroupBarrier();
    return both;
}

// Quantises the scales of the chunk: codes to the plane at word `plane`, the grid to word `word`, and
// the values back to wg_scale. To be called by the whole workgroup.
fn quantise_scales(lane: u32, chunk: u32, plane: u32, word: u32) {
    var low = 0xffffffffu;
    var high = 0u;
    for (var t = lane; t < chunk; t += LANES) {
        let key = grid_key(wg_scale[t]);
        low = min(low, key);
        high = max(high, key);
    }
    let both = ends(lane, low, high);
    let ends_of = vec2<f32>(grid_unkey(both.x), grid_unkey(both.y));
    var grid = grid_of_scales(ends_of.x, ends_of.y);
    var parts = grid_parts(grid);
    if FORM == FORM_LINEAR {
        grid = grid_of_linear_scales(ends_of.x, ends_of.y);
        parts = grid_linear_parts(grid);
    }
    for (var w = lane; 8u * w < chunk; w += LANES) {
        var codes = 0u;
        for (var i = 0u; i < 8u; i++) {
            let t = 8u * w + i;
            if t < chunk {
                var code = 0u;
                if FORM == FORM_LINEAR {
                    code = grid_code(parts, wg_scale[t]);
                    wg_scale[t] = max(grid_value(parts, code), MIN_SCALE);
                } else {
                    code = grid_code(parts, grid_log(wg_scale[t]));
                    wg_scale[t] = grid_scale(parts, code);
                }
                codes |= code << (4u * i);
            }
        }
        pages[plane + w] = codes;
    }
    if lane == 0u && chunk > 0u {
        pages[word] = grid;
    }
    workgroupBarrier();
}

// The same of the mean.
fn quantise_mean(lane: u32, chunk: u32, plane: u32, word: u32) {
    var low = 0xffffffffu;
    var high = 0u;
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        let key = grid_key(wg_mean[c]);
        low = min(low, key);
        high = max(high, key);
    }
    let both = ends(lane, low, high);
    let grid = grid_spanning(grid_unkey(both.x), grid_unkey(both.y));
    let parts = grid_parts(grid);
    for (var w = lane; w < HEAD_DIM / 8u; w += LANES) {
        var codes = 0u;
        for (var i = 0u; i < 8u; i++) {
            let code = grid_code(parts, wg_mean[turn_mean_at(8u * w + i)]);
            wg_mean[turn_mean_at(8u * w + i)] = grid_value(parts, code);
            codes |= code << (4u * i);
        }
        if chunk > 0u {
            pages[plane + w] = codes;
        }
    }
    if lane == 0u && chunk > 0u {
        pages[word] = grid;
    }
    workgroupBarrier();
}

// The same of the mean in groups of 32 channels, each by one lane.
fn quantise_groups(lane: u32, chunk: u32, plane: u32, word: u32) {
    for (var group = lane; 32u * group < HEAD_DIM; group += LANES) {
        let first = 32u * group;
        let end = min(first + 32u, HEAD_DIM);
        var low = 0xffffffffu;
        var high = 0u;
        for (var c = first; c < end; c++) {
            let key = grid_key(wg_mean[turn_mean_at(c)]);
            low = min(low, key);
            high = max(high, key);
        }
        let grid = grid_spanning(grid_unkey(low), grid_unkey(high));
        let parts = grid_parts(grid);
        for (var eight = first; eight < end; eight += 8u) {
            var codes = 0u;
            for (var i = 0u; i < 8u; i++) {
                let code = grid_code(parts, wg_mean[turn_mean_at(eight + i)]);
                wg_mean[turn_mean_at(eight + i)] = grid_value(parts, code);
                codes |= code << (4u * i);
            }
            if chunk > 0u {
                pages[plane + (eight >> 3u)] = codes;
            }
        }
        if chunk > 0u {
            pages[word + group] = grid;
        }
    }
    workgroupBarrier();
}
