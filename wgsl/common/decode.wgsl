// Unpacks the first tokens of a page: token t is s1 * (s2 * H^T c + o), c being its centroids, at norm
// sqrt(d) where the gain is the token's own. Twin: src/nsnquant/cpu/decode.rs, with the same order of
// sums.
// Tokens come in batches that fill hadamard_data. A lane owns two pieces of a batch.
// With a rotary embedding the mean is turned to the token's position.
// Needs element.wgsl, page.wgsl, hadamard.wgsl, grid.wgsl, divide.wgsl, rope.wgsl and key_scale.wgsl,
// decode_position (place) -> u32 for the position of a token, these bindings: `pages` (read), `book`
// (read), `key_scales` (read), `rows` (written), `params` with dtype, sign_offset, s1_offset, s2_offset, o_offset,
// grid_offset, scale and norm, and the codec's constants (src/nsnquant/gpu/device.rs).

const LANES: u32 = HADAMARD_LANES;
const MIN_SCALE: f32 = 1e-8;
// As in encode.wgsl.
const FORM_HALF: u32 = 0u;
const FORM_FOUR: u32 = 1u;
const FORM_LINEAR: u32 = 2u;
// Largest magnitude of a decoded value: of f32, and of f16.
const LIMIT: f32 = 3.4e38;
const HALF_LIMIT: f32 = 65504.0;
// Scales above this are multiplied after they and the limit were shrunk by 2^64, so that no product
// overflows before it is clamped. Not by a quotient: a GPU may flush the reciprocal of such a scale.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 5.421010862427522e-20;
const GROW: f32 = 1.8446744073709552e19;

var<workgroup> wg_square: array<f32, 2 * HADAMARD_LANES>;
var<workgroup> wg_gain: array<f32, BATCH>;
var<workgroup> wg_s1: array<f32, BATCH>;
var<workgroup> wg_s2: array<f32, BATCH>;
var<workgroup> wg_position: array<u32, BATCH>;
var<workgroup> wg_mean: array<f32, HEAD_DIM>;

// Token of the batch that owns a piece. Exact for places below 256 and up to 64 pieces a token.
fn batch_token(place: u32) -> u32 {
    return (place * PIECES_MAGIC) >> 16u;
}

// The indices of piece `piece` of the page at word `page`, lowest bits first.
fn page_code(page: u32, piece: u32) -> u32 {
    let byte = piece * CODE_BYTES;
    let word = page + (byte >> 2u);
    let shift = (byte & 3u) * 8u;
    var code = pages[word] >> shift;
    // Only indices of three bytes can lie in two words.
    if shift + 8u * CODE_BYTES > 32u {
        code |= pages[word + 1u] << (32u - shift);
    }
    return code & (0xffffffffu >> (32u - 8u * CODE_BYTES));
}

fn row2(index: u32) -> vec2<f32> {
    let pair = book[index >> 1u];
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

// Fills the piece `place` of the batch from piece `piece` of the page at word `page`.
fn look_up(page: u32, piece: u32, place: u32, live: bool) {
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    var square = 0.0;
    if live {
        let code = page_code(page, piece);
        if WIDTH == 8u {
            low = book[2u * code];
            high = book[2u * code + 1u];
        } else if WIDTH == 4u {
            low = book[code & 0xffu];
            high = book[code >> 8u];
        } else {
            let mask = ROWS - 1u;
            low = vec4<f32>(row2(code & mask), row2((code >> INDEX_BITS) & mask));
            high = vec4<f32>(row2((code >> (2u * INDEX_BITS)) & mask),
                row2((code >> (3u * INDEX_BITS)) & mask));
        }
        let a = low * low;
        let b = high * high;
        square = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
        if SIGNS == 1u {
            let signs = page_byte(pages[page + params.sign_offset + (piece >> 2u)], piece);
            low = page_signed(low, signs);
            high = page_signed(high, signs >> 4u);
        }
    }
    wg_square[place] = square;
    let at = place * 8u;
    if at < HADAMARD_VALUES {
        hadamard_data[at] = low.x;
        hadamard_data[at + 1u] = low.y;
        hadamard_data[at + 2u] = low.z;
        hadamard_data[at + 3u] = low.w;
        hadamard_data[at + 4u] = high.x;
        hadamard_data[at + 5u] = high.y;
        hadamard_data[at + 6u] = high.z;
        hadamard_data[at + 7u] = high.w;
    }
}

// Puts the mean of the page at word `page`, not transformed, into wg_mean. To be called by the whole
// workgroup.
fn load_mean(lane: u32, page: u32) {
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        if FORM != FORM_HALF {
            let number = select(2u, 1u + (c >> 5u), FORM == FORM_LINEAR);
            let grid = grid_parts(pages[page + params.grid_offset + number]);
            let word = pages[page + params.o_offset + (c >> 3u)];
            wg_mean[c] = grid_value(grid, grid_nibble(word, c));
        } else {
            wg_mean[c] = page_real(pages[page + params.o_offset + (c >> 1u)], c);
        }
    }
    if TURNED == 1u {
        workgroupBarrier();
        for (var i = lane; i < HADAMARD_VALUES; i += LANES) {
            hadamard_data[i] = select(0.0, wg_mean[min(i, HEAD_DIM - 1u)], i < HEAD_DIM);
        }
        hadamard_back(lane);
        for (var c = lane; c < HEAD_DIM; c += LANES) {
            wg_mean[c] = hadamard_data[c] * params.scale;
        }
        workgroupBarrier();
    }
}

// Channel `channel` of the mean as a token of the batch has it.
fn own_mean(token: u32, channel: u32) -> f32 {
    if ROPE == 0u {
        return wg_mean[channel];
    }
    let place = rope_place(channel);
    let turn = rope_turn(place.pair, wg_position[token]);
    return rope_forward(place, turn, wg_mean[channel], wg_mean[place.other]);
}

// Value `at` of the batch, restored; with KEY_SCALED that of keys under the scale at a word.
fn restore(at: u32, key_scale: u32) -> f32 {
    let token = batch_token(at >> 3u);
    let channel = at - token * HEAD_DIM;
    let s1 = wg_s1[token];
    var value = hadamard_data[at];
    if KEY_SCALED == 1u {
        value *= key_scale_factor(key_scale, channel);
    }
    let inner = wg_s2[token] * (value * wg_gain[token]) + own_mean(token, channel);
    if s1 > HUGE {
        return clamp((s1 * SHRINK) * inner, -LIMIT * SHRINK, LIMIT * SHRINK) * GROW;
    }
    return s1 * inner;
}

// Sixteen bits of a value for dtype 1 (f16, saturating) or 2 (bf16).
fn narrow(value: f32) -> u32 {
    if params.dtype == 1u {
        return element_half(bitcast<u32>(clamp(value, -HALF_LIMIT, HALF_LIMIT)));
    }
    let bits = bitcast<u32>(value);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// Unpacks `chunk` tokens of the page at word `page`, whose positions are those from place `row` on,
// into rows that start at word `out` of `rows`. To be called by the whole workgroup.
fn decode_chunk(lane: u32, chunk: u32, page: u32, row: u32, out: u32, key_scale: u32) {
    let place = vec2<u32>(lane, lane + LANES);
    let token = vec2<u32>(batch_token(place.x), batch_token(place.y));
    load_mean(lane, page);
    var grids = vec4<f32>(0.0);
    if FORM == FORM_FOUR {
        let at = page + params.grid_offset;
        grids = vec4<f32>(grid_parts(pages[at]), grid_parts(pages[at + 1u]));
    }
    if FORM == FORM_LINEAR {
        grids = vec4<f32>(grid_linear_parts(pages[page + params.grid_offset]), 0.0, 0.0);
    }
    for (var first = 0u; first < chunk; first += BATCH) {
        let live = (token < vec2<u32>(BATCH)) & (token + first < vec2<u32>(chunk));
        let piece = first * PIECES + place;
        look_up(page, piece.x, place.x, live.x);
        look_up(page, piece.y, place.y, live.y);
        workgroupBarrier();
        for (var t = lane; t < BATCH; t += LANES) {
            var square = 0.0;
            for (var p = 0u; p < PIECES; p++) {
                square += wg_square[t * PIECES + p];
            }
            let at = min(first + t, chunk - 1u);
            wg_gain[t] = params.scale;
            if GAIN == 0u {
                wg_gain[t] = params.norm / max(sqrt(square), MIN_SCALE) * params.scale;
            }
            if ROPE == 1u {
                wg_position[t] = decode_position(row + at);
            }
            if FORM == FORM_LINEAR {
                let word = pages[page + params.s1_offset + (at >> 3u)];
                wg_s1[t] = grid_value(grids.xy, grid_nibble(word, at));
                wg_s2[t] = page_real(pages[page + params.s2_offset + (at >> 1u)], at);
            } else if FORM == FORM_FOUR {
                let first_word = pages[page + params.s1_offset + (at >> 3u)];
                let second_word = pages[page + params.s2_offset + (at >> 3u)];
                wg_s1[t] = grid_scale(grids.xy, grid_nibble(first_word, at));
                wg_s2[t] = grid_scale(grids.zw, grid_nibble(second_word, at));
            } else {
                wg_s1[t] = page_scale(pages[page + params.s1_offset + (at >> 1u)], at);
                wg_s2[t] = page_real(pages[page + params.s2_offset + (at >> 1u)], at);
            }
        }
        hadamard_back(lane);
        let count = min(BATCH, chunk - first) * HEAD_DIM;
        let at_first = first * HEAD_DIM;
        if params.dtype == 0u {
            for (var at = lane; at < count; at += LANES) {
                rows[out + at_first + at] = bitcast<u32>(restore(at, key_scale));
            }
        } else {
            for (var pair = lane; pair < (count >> 1u); pair += LANES) {
                let low = narrow(restore(2u * pair, key_scale));
                let high = narrow(restore(2u * pair + 1u, key_scale));
                rows[out + (at_first >> 1u) + pair] = low | (high << 16u);
            }
        }
        workgroupBarrier();
    }
}
