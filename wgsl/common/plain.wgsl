// Plain books before the workgroup, and the indices of pages that they decode. A book is held as f16,
// which holds it exactly, or as bytes where it lies on a grid of 1/32: half the memory to read, and
// products of integers with keys. And the scales of tokens. Needs element.wgsl, grid.wgsl, attend.wgsl,
// attend_page.wgsl and heads_4.wgsl or a sibling.
//
// Wants SOFTMAX_LANES, KEY_BITS, VALUE_BITS and PLAIN_BYTES (1 where books are held as bytes); packed_key_row and
// packed_value_row (row) -> vec4<f32>, four numbers of the books; plain_key and plain_value (slab, at) -> u32, a
// word of keys or values.

// Whether bytes of values have half a word each, so that what several tokens have of a channel comes side by
// side by additions. Rows of two channels take a word either way.
const PLAIN_WIDE: bool = PLAIN_BYTES == 1u && VALUE_BITS > 2u;
// Whether keys and values read one array.
const PLAIN_SHARED: bool = KEY_BITS == VALUE_BITS && !PLAIN_WIDE;
// What a byte of a book counts in.
const PLAIN_UNIT: f32 = 0.03125;

const KEY_ROWS: u32 = select(256u, 64u, KEY_BITS == 3u);
const VALUE_ROWS: u32 = select(256u, 64u, VALUE_BITS == 3u);
// Words of a row: 8, 4 or 2 channels of f16 or bytes.
const KEY_WORDS: u32 = select(select(1u, 2u, KEY_BITS == 2u), 4u, KEY_BITS == 1u) >> select(PLAIN_BYTES, 0u, KEY_BITS > 2u);
const VALUE_WORDS: u32 = select(select(1u, 2u, VALUE_BITS == 2u), 4u, VALUE_BITS == 1u) >> select(PLAIN_BYTES, 0u, VALUE_BITS > 2u);
const KEY_ONES: u32 = select(1u, KEY_ROWS, KEY_WORDS == 1u);
const KEY_TWOS: u32 = select(1u, KEY_ROWS, KEY_WORDS == 2u);
const KEY_FOURS: u32 = select(1u, KEY_ROWS, KEY_WORDS == 4u);
const VALUE_ONES: u32 = select(1u, VALUE_ROWS, VALUE_WORDS == 1u && !PLAIN_SHARED);
const VALUE_TWOS: u32 = select(1u, VALUE_ROWS, VALUE_WORDS == 2u && !PLAIN_SHARED);
const VALUE_FOURS: u32 = select(1u, VALUE_ROWS, VALUE_WORDS == 4u && !PLAIN_SHARED);

var<workgroup> plain_key_one: array<u32, KEY_ONES>;
var<workgroup> plain_key_two: array<vec2<u32>, KEY_TWOS>;
var<workgroup> plain_key_four: array<vec4<u32>, KEY_FOURS>;
var<workgroup> plain_value_one: array<u32, VALUE_ONES>;
var<workgroup> plain_value_two: array<vec2<u32>, VALUE_TWOS>;
var<workgroup> plain_value_four: array<vec4<u32>, VALUE_FOURS>;

fn plain_pair(pair: vec2<f32>) -> u32 {
    let bits = bitcast<vec2<u32>>(pair);
    return element_half(bits.x) | (element_half(bits.y) << 16u);
}

fn plain_halves(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        plain_pair(low.xy), plain_pair(low.zw), plain_pair(high.xy), plain_pair(high.zw));
}

// 2^23 + 2^22: added to a small whole number, it leaves the number in the lowest bits.
const PLAIN_FIXED: f32 = 12582912.0;

fn plain_bytes(four: vec4<f32>) -> vec4<u32> {
    return bitcast<vec4<u32>>(four * (1.0 / PLAIN_UNIT) + PLAIN_FIXED) & vec4<u32>(255u);
}

fn plain_four_bytes(four: vec4<f32>) -> u32 {
    let bytes = plain_bytes(four);
    return bytes.x | (bytes.y << 8u) | (bytes.z << 16u) | (bytes.w << 24u);
}

// Eight numbers, or the first four or two, of a book.
struct PlainNumbers {
    low: vec4<f32>,
    high: vec4<f32>,
}

// A row of keys given its numbers, as bytes or as f16.
fn plain_key_row(own: PlainNumbers) -> vec4<u32> {
    if PLAIN_BYTES == 1u {
        return vec4<u32>(plain_four_bytes(own.low), plain_four_bytes(own.high), 0u, 0u);
    }
    return plain_halves(own.low, own.high);
}

// A row of values, as bytes, two or four a word, or as f16.
fn plain_value_row(own: PlainNumbers) -> vec4<u32> {
    if PLAIN_BYTES == 1u && !PLAIN_WIDE {
        return vec4<u32>(plain_four_bytes(own.low), plain_four_bytes(own.high), 0u, 0u);
    }
    if PLAIN_BYTES == 1u {
        let low = plain_bytes(own.low);
        let high = plain_bytes(own.high);
        return vec4<u32>(low.x | (low.y << 16u), low.z | (low.w << 16u),
            high.x | (high.y << 16u), high.z | (high.w << 16u));
    }
    return plain_halves(own.low, own.high);
}

// The half of four numbers that a row of 2 channels is.
fn plain_half(pairs: vec4<f32>, row: u32) -> vec4<f32> {
    return vec4<f32>(select(pairs.xy, pairs.zw, (row & 1u) == 1u), 0.0, 0.0);
}

fn plain_key_numbers(row: u32) -> PlainNumbers {
    if KEY_BITS == 1u {
        return PlainNumbers(packed_key_row(2u * row), packed_key_row(2u * row + 1u));
    } else if KEY_BITS == 2u {
        return PlainNumbers(packed_key_row(row), vec4<f32>(0.0));
    }
    return PlainNumbers(plain_half(packed_key_row(row >> 1u), row), vec4<f32>(0.0));
}

fn plain_value_numbers(row: u32) -> PlainNumbers {
    if VALUE_BITS == 1u {
        return PlainNumbers(packed_value_row(2u * row), packed_value_row(2u * row + 1u));
    } else if VALUE_BITS == 2u {
        return PlainNumbers(packed_value_row(row), vec4<f32>(0.0));
    }
    return PlainNumbers(plain_half(packed_value_row(row >> 1u), row), vec4<f32>(0.0));
}

fn plain_keep_key(i: u32) {
    let numbers = plain_key_numbers(i);
    let row = plain_key_row(numbers);
    if KEY_WORDS == 4u {
        plain_key_four[i] = row;
    } else if KEY_WORDS == 2u {
        plain_key_two[i] = row.xy;
    } else {
        plain_key_one[i] = row.x;
    }
    if PLAIN_WIDE && KEY_BITS == VALUE_BITS {
        plain_value_one[i] = plain_value_row(numbers).x;
    }
}

fn plain_keep_value(i: u32) {
    let row = plain_value_row(plain_value_numbers(i));
    if VALUE_WORDS == 4u {
        plain_value_four[i] = row;
    } else if VALUE_WORDS == 2u {
        plain_value_two[i] = row.xy;
    } else {
        plain_value_one[i] = row.x;
    }
}

// Puts the books before the workgroup. A barrier must follow. Rows are multiples of lanes or fewer, so
// that the loops have a constant count.
fn plain_books(lane: u32) {
    for (var first = 0u; first < KEY_ROWS; first += SOFTMAX_LANES) {
        if KEY_ROWS >= SOFTMAX_LANES || lane < KEY_ROWS {
            plain_keep_key(first + lane);
        }
    }
    if KEY_BITS == VALUE_BITS {
        return;
    }
    for (var first = 0u; first < VALUE_ROWS; first += SOFTMAX_LANES) {
        if VALUE_ROWS >= SOFTMAX_LANES || lane < VALUE_ROWS {
            plain_keep_value(first + lane);
        }
    }
}

fn plain_pairs(a: u32, b: u32, c: u32, d: u32) -> AttendPiece {
    return AttendPiece(
        vec4<f32>(unpack2x16float(a), unpack2x16float(b)),
        vec4<f32>(unpack2x16float(c), unpack2x16float(d)),
    );
}

// Eight channels of a key from a book of f16, given their indices, lowest bits first.
fn plain_key_halves(code: u32) -> AttendPiece {
    if KEY_BITS == 1u {
        let row = plain_key_four[code];
        return plain_pairs(row.x, row.y, row.z, row.w);
    } else if KEY_BITS == 2u {
        let low = plain_key_two[code & 255u];
        let high = plain_key_two[code >> 8u];
        return plain_pairs(low.x, low.y, high.x, high.y);
    } else if KEY_BITS == 3u {
        return plain_pairs(
            plain_key_one[code & 63u],
            plain_key_one[(code >> 6u) & 63u],
            plain_key_one[(code >> 12u) & 63u],
            plain_key_one[code >> 18u],
        );
    }
    return plain_pairs(
        plain_key_one[code & 255u],
        plain_key_one[(code >> 8u) & 255u],
        plain_key_one[(code >> 16u) & 255u],
        plain_key_one[code >> 24u],
    );
}

// The same from a book of bytes, as bytes.
fn plain_key_bytes(code: u32) -> vec2<u32> {
    if KEY_BITS == 1u {
        return plain_key_two[code];
    } else if KEY_BITS == 2u {
        return vec2<u32>(plain_key_one[code & 255u], plain_key_one[code >> 8u]);
    } else if KEY_BITS == 3u {
        return vec2<u32>(
            plain_key_one[code & 63u] | (plain_key_one[(code >> 6u) & 63u] << 16u),
            plain_key_one[(code >> 12u) & 63u] | (plain_key_one[code >> 18u] << 16u),
        );
    }
    return vec2<u32>(
        plain_key_one[code & 255u] | (plain_key_one[(code >> 8u) & 255u] << 16u),
        plain_key_one[(code >> 16u) & 255u] | (plain_key_one[code >> 24u] << 16u),
    );
}

// Eight channels of a value from a book of f16, given their indices, lowest bits first.
fn plain_value_halves(code: u32) -> AttendPiece {
    if VALUE_BITS == 1u {
        let row = plain_value_four[code];
        return plain_pairs(row.x, row.y, row.z, row.w);
    } else if VALUE_BITS == 2u {
        let low = plain_value_two[code & 255u];
        let high = plain_value_two[code >> 8u];
        return plain_pairs(low.x, low.y, high.x, high.y);
    } else if VALUE_BITS == 3u {
        return plain_pairs(
            plain_value_one[code & 63u],
            plain_value_one[(code >> 6u) & 63u],
            plain_value_one[(code >> 12u) & 63u],
            plain_value_one[code >> 18u],
        );
    }
    return plain_pairs(
        plain_value_one[code & 255u],
        plain_value_one[(code >> 8u) & 255u],
        plain_value_one[(code >> 16u) & 255u],
        plain_value_one[code >> 24u],
    );
}

// The same from a book of bytes, four channels a word, where they are not wide.
fn plain_value_bytes(code: u32) -> vec2<u32> {
    if PLAIN_SHARED {
        return plain_key_bytes(code);
    } else if VALUE_BITS == 1u {
        return plain_value_two[code];
    }
    return vec2<u32>(plain_value_one[code & 255u], plain_value_one[code >> 8u]);
}

// The same from a book of wide bytes, two channels a word.
fn plain_value_pairs(code: u32) -> vec4<u32> {
    return vec4<u32>(
        plain_value_one[code & 63u],
        plain_value_one[(code >> 6u) & 63u],
        plain_value_one[(code >> 12u) & 63u],
        plain_value_one[code >> 18u],
    );
}

// Eight channels of a value from a book of f16.
fn plain_value_piece(code: u32) -> AttendPiece {
    if PLAIN_SHARED {
        return plain_key_halves(code);
    }
    return plain_value_halves(code);
}

// The indices of 8 channels out of those of 32, which are the first KEY_BITS words of `words`.
fn plain_code(words: vec4<u32>, piece: u32) -> u32 {
    if KEY_BITS == 1u {
        return (words.x >> (8u * piece)) & 255u;
    } else if KEY_BITS == 2u {
        return (select(words.x, words.y, piece > 1u) >> (16u * (piece & 1u))) & 0xffffu;
    } else if KEY_BITS == 3u {
        let base = select(select(words.z, words.y, piece == 2u), words.x, piece < 2u);
        let next = select(words.z, words.y, piece == 1u);
        switch piece {
            case 0u: {
                return base & 0xffffffu;
            }
            case 1u: {
                return ((base >> 24u) | (next << 8u)) & 0xffffffu;
            }
            case 2u: {
                return ((base >> 16u) | (next << 16u)) & 0xffffffu;
            }
            default: {
                return base >> 8u;
            }
        }
    }
    return select(
        select(words.x, words.y, piece == 1u), select(words.z, words.w, piece == 3u), piece > 1u);
}

// The words that hold the indices of part `part` of a value, counted over the tokens of a page that
// starts at word `at`.
fn plain_value_words(slab: u32, at: u32, part: u32) -> vec2<u32> {
    if VALUE_BITS == 1u {
        return vec2<u32>(plain_value(slab, at + (part >> 1u)), 0u);
    } else if VALUE_BITS == 2u {
        return vec2<u32>(plain_value(slab, at + part), 0u);
    } else if VALUE_BITS == 3u {
        let first = at + ((3u * part) >> 1u);
        return vec2<u32>(plain_value(slab, first), plain_value(slab, first + 1u));
    }
    return vec2<u32>(
        plain_value(slab, at + 2u * part), plain_value(slab, at + 2u * part + 1u));
}

// The indices of the first and the last 8 channels of a part out of its words, `odd` being whether its
// number is.
fn plain_value_codes(words: vec2<u32>, odd: bool) -> vec2<u32> {
    if VALUE_BITS == 1u {
        let half = select(words.x, words.x >> 16u, odd);
        return vec2<u32>(half & 255u, (half >> 8u) & 255u);
    } else if VALUE_BITS == 2u {
        return vec2<u32>(words.x & 0xffffu, words.x >> 16u);
    } else if VALUE_BITS == 3u {
        let low = select(words.x, (words.x >> 16u) | (words.y << 16u), odd);
        let high = select(words.y, words.y >> 16u, odd);
        return vec2<u32>(low & 0xffffffu, ((low >> 24u) | (high << 8u)) & 0xffffffu);
    }
    return words;
}

// Codes of both scales of four tokens, a byte each, where they have 4 bits.
fn plain_key_codes(page: vec4<u32>, first: u32, step: u32, last: u32) -> u32 {
    if !packed_has(packed_key_form(), PACKED_FOUR) {
        return 0u;
    }
    let t = min(vec4<u32>(first, first + step, first + 2u * step, first + 3u * step), vec4<u32>(last));
    let a = vec4<u32>(packed_key(page, params.packed.key_s1 + (t.x >> 3u)), packed_key(page, params.packed.key_s1 + (t.y >> 3u)),
        packed_key(page, params.packed.key_s1 + (t.z >> 3u)), packed_key(page, params.packed.key_s1 + (t.w >> 3u)));
    let b = vec4<u32>(packed_key(page, params.packed.key_s2 + (t.x >> 3u)), packed_key(page, params.packed.key_s2 + (t.y >> 3u)),
        packed_key(page, params.packed.key_s2 + (t.z >> 3u)), packed_key(page, params.packed.key_s2 + (t.w >> 3u)));
    return plain_pack(a, b, t);
}

fn plain_value_codes_of_four(page: vec4<u32>, first: u32, step: u32, last: u32) -> u32 {
    if !packed_has(packed_value_form(), PACKED_FOUR) {
        return 0u;
    }
    let t = min(vec4<u32>(first, first + step, first + 2u * step, first + 3u * step), vec4<u32>(last));
    let a = vec4<u32>(packed_value(page, params.packed.value_s1 + (t.x >> 3u)), packed_value(page, params.packed.value_s1 + (t.y >> 3u)),
        packed_value(page, params.packed.value_s1 + (t.z >> 3u)), packed_value(page, params.packed.value_s1 + (t.w >> 3u)));
    let b = vec4<u32>(packed_value(page, params.packed.value_s2 + (t.x >> 3u)), packed_value(page, params.packed.value_s2 + (t.y >> 3u)),
        packed_value(page, params.packed.value_s2 + (t.z >> 3u)), packed_value(page, params.packed.value_s2 + (t.w >> 3u)));
    return plain_pack(a, b, t);
}

fn plain_pack(a: vec4<u32>, b: vec4<u32>, t: vec4<u32>) -> u32 {
    let shift = (t & vec4<u32>(7u)) << vec4<u32>(2u);
    let both = ((a >> shift) & vec4<u32>(15u)) | (((b >> shift) & vec4<u32>(15u)) << vec4<u32>(4u));
    return both.x | (both.y << 8u) | (both.z << 16u) | (both.w << 24u);
}

// What a code of 4 bits on a grid of scales stands for; below the smallest log, some number as small.
fn plain_scale(grid: vec2<f32>, code: u32) -> f32 {
    let power = grid_value(grid, code & 15u);
    return exp2(min(power, GRID_MAX_LOG));
}

// Both grids of scales, where they have 4 bits.
fn plain_key_grids(page: vec4<u32>) -> vec4<f32> {
    if !packed_has(packed_key_form(), PACKED_FOUR) {
        return vec4<f32>(0.0);
    }
    let grid = params.packed.key_grid;
    return vec4<f32>(grid_parts(packed_key(page, grid)), grid_parts(packed_key(page, grid + 1u)));
}

fn plain_value_grids(page: vec4<u32>) -> vec4<f32> {
    if !packed_has(packed_value_form(), PACKED_FOUR) {
        return vec4<f32>(0.0);
    }
    let grid = params.packed.value_grid;
    return vec4<f32>(grid_parts(packed_value(page, grid)), grid_parts(packed_value(page, grid + 1u)));
}

fn plain_key_scales(page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32) -> vec2<f32> {
    if packed_has(packed_key_form(), PACKED_FOUR) {
        return vec2<f32>(plain_scale(grids.xy, codes), plain_scale(grids.zw, codes >> 4u));
    }
    return packed_key_scales(page, token);
}

fn plain_value_scales(page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32) -> vec2<f32> {
    if packed_has(packed_value_form(), PACKED_FOUR) {
        return vec2<f32>(plain_scale(grids.xy, codes), plain_scale(grids.zw, codes >> 4u));
    }
    return packed_value_scales(page, token);
}
