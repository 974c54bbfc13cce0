// What lies in a packed page beside its codes. Needs element.wgsl, page.wgsl, grid.wgsl and attend.wgsl.
//
// Wants params.packed, and packed_key and packed_value (page, word) -> u32 for a word of the page's
// keys or values, `page` being what they find the page by.

struct PackedParams {
    chunk: u32,
    norm_k: f32,
    norm_v: f32,
    // How keys and values are packed, by PACKED_SIGNS and so on, and channels of their centroids.
    key_form: u32,
    value_form: u32,
    key_width: u32,
    value_width: u32,
    key_sign: u32,
    key_s1: u32,
    key_s2: u32,
    key_o: u32,
    key_grid: u32,
    value_sign: u32,
    value_s1: u32,
    value_s2: u32,
    value_o: u32,
    value_grid: u32,
    // Words from one page's keys, values and positions to the next's, where those of the first page
    // lie, and where the books of keys and values start.
    key_words: u32,
    value_words: u32,
    position_words: u32,
    values_at: u32,
    positions_at: u32,
    key_book: u32,
    value_book: u32,
    // Where the queries times the rows' key scales lie, transformed; 0 where there are none.
    scaled_at: u32,
    // For plain books: tokens of a page that are taken in together.
    span: u32,
    // Lanes that share a page, each with every so many-th of its tokens, and the division by their
    // number; channels of a key, for loops that compilers are to leave loops.
    subs: u32,
    subs_multiplier: u32,
    subs_shift1: u32,
    subs_shift2: u32,
    head_dim: u32,
    // Where the queries' bytes lie (rotate.wgsl), where there are any.
    bytes_at: u32,
}

// There are sign bits; scales and means have 4 bits; the mean is in the Hadamard domain; centroids are
// brought to norm sqrt(d); indices have 6 bits; first scales and means have 4 bits on linear grids.
const PACKED_SIGNS: u32 = 1u;
const PACKED_FOUR: u32 = 2u;
const PACKED_TURNED: u32 = 4u;
const PACKED_NORMED: u32 = 8u;
const PACKED_SIX: u32 = 16u;
const PACKED_LINEAR: u32 = 32u;

fn packed_has(form: u32, what: u32) -> bool {
    return (form & what) != 0u;
}

// Where keys, values and positions of page `index` lie.
fn packed_at(index: u32) -> vec4<u32> {
    return vec4<u32>(
        index * params.packed.key_words,
        index * params.packed.value_words + params.packed.values_at,
        index * params.packed.position_words + params.packed.positions_at,
        0u,
    );
}

// Puts what meets the centroids of keys before the workgroup. A barrier must follow.
fn packed_show(lane: u32, query: Whole) {
    let at = params.packed.scaled_at;
    if at == 0u {
        attend_show(lane, query, HEAD_DIM);
        return;
    }
    let first = query * HEAD_DIM + Whole(at);
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[i] = heads_four(first, i);
    }
}

fn packed_mean(page: vec4<u32>, channel: u32) -> f32 {
    if packed_has(packed_value_form(), PACKED_FOUR | PACKED_LINEAR) {
        let linear = packed_has(packed_value_form(), PACKED_LINEAR);
        let number = select(2u, 1u + (channel >> 5u), linear);
        let grid = grid_parts(packed_value(page, params.packed.value_grid + number));
        let word = packed_value(page, params.packed.value_o + (channel >> 3u));
        return grid_value(grid, grid_nibble(word, channel));
    }
    return page_real(packed_value(page, params.packed.value_o + (channel >> 1u)), channel);
}

fn packed_key_mean(page: vec4<u32>, channel: u32) -> f32 {
    if packed_has(packed_key_form(), PACKED_FOUR | PACKED_LINEAR) {
        let linear = packed_has(packed_key_form(), PACKED_LINEAR);
        let number = select(2u, 1u + (channel >> 5u), linear);
        let grid = grid_parts(packed_key(page, params.packed.key_grid + number));
        let word = packed_key(page, params.packed.key_o + (channel >> 3u));
        return grid_value(grid, grid_nibble(word, channel));
    }
    return page_real(packed_key(page, params.packed.key_o + (channel >> 1u)), channel);
}

// Both scales of a key or a value.
fn packed_key_scales(page: vec4<u32>, token: u32) -> vec2<f32> {
    let plan = params.packed;
    if packed_has(packed_key_form(), PACKED_FOUR) {
        let first = grid_parts(packed_key(page, plan.key_grid));
        let second = grid_parts(packed_key(page, plan.key_grid + 1u));
        let word = token >> 3u;
        return vec2<f32>(
            grid_scale(first, grid_nibble(packed_key(page, plan.key_s1 + word), token)),
            grid_scale(second, grid_nibble(packed_key(page, plan.key_s2 + word), token)),
        );
    }
    let half = token >> 1u;
    if packed_has(packed_key_form(), PACKED_LINEAR) {
        let grid = grid_linear_parts(packed_key(page, plan.key_grid));
        let word = packed_key(page, plan.key_s1 + (token >> 3u));
        return vec2<f32>(
            grid_value(grid, grid_nibble(word, token)),
            page_real(packed_key(page, plan.key_s2 + half), token),
        );
    }
    return vec2<f32>(
        page_scale(packed_key(page, plan.key_s1 + half), token),
        page_real(packed_key(page, plan.key_s2 + half), token),
    );
}

fn packed_value_scales(page: vec4<u32>, token: u32) -> vec2<f32> {
    let plan = params.packed;
    if packed_has(packed_value_form(), PACKED_FOUR) {
        let first = grid_parts(packed_value(page, plan.value_grid));
        let second = grid_parts(packed_value(page, plan.value_grid + 1u));
        let word = token >> 3u;
        return vec2<f32>(
            grid_scale(first, grid_nibble(packed_value(page, plan.value_s1 + word), token)),
            grid_scale(second, grid_nibble(packed_value(page, plan.value_s2 + word), token)),
        );
    }
    let half = token >> 1u;
    if packed_has(packed_value_form(), PACKED_LINEAR) {
        let grid = grid_linear_parts(packed_value(page, plan.value_grid));
        let word = packed_value(page, plan.value_s1 + (token >> 3u));
        return vec2<f32>(
            grid_value(grid, grid_nibble(word, token)),
            page_real(packed_value(page, plan.value_s2 + half), token),
        );
    }
    return vec2<f32>(
        page_scale(packed_value(page, plan.value_s1 + half), token),
        page_real(packed_value(page, plan.value_s2 + half), token),
    );
}
