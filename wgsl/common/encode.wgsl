// Packs one chunk of token rows into a page: scales s1 and s2 of each token, mean o of each channel,
// Hadamard transform, indices of the nearest centroids (and signs) of each piece of 8 channels.
// Twin: src/nsnquant/cpu/encode.rs, with the same order of sums.
// It goes over the tokens twice, in batches that fill hadamard_data: for s1 and o, then for the rest.
// A lane owns two pieces of a batch, `place` and `place + LANES`.
// Needs element.wgsl, hadamard.wgsl, grid.wgsl, divide.wgsl, rope.wgsl, key_scale.wgsl and nearest.wgsl,
// encode_position (place) -> u32 for the position of a token row, these bindings: `data` (read),
// `book` (uniform), `key_scales` (read), `pages` (written), `params` with dtype, chunk, sign_offset, s1_offset, s2_offset, o_offset,
// grid_offset and scale, and the codec's constants (src/nsnquant/gpu/device.rs).

const LANES: u32 = HADAMARD_LANES;
const MIN_SCALE: f32 = 1e-8;
// As in the twin: divisors stay below 2^126, and a row's scaled root mean square below 4.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
const BELOW_FOUR: f32 = 3.9999998;
// Rows of unit books are shorter by sqrt(8).
const MAX_GAIN: f32 = select(11.313709, 4.0, PLAIN == 1u);
// Scales and means of 16 bits; of 4; first scales and means of 4 on linear grids.
const FORM_HALF: u32 = 0u;
const FORM_FOUR: u32 = 1u;
const FORM_LINEAR: u32 = 2u;
const GAIN_TOKEN: u32 = 0u;
const GAIN_NORM: u32 = 2u;

var<workgroup> wg_scale: array<f32, SCALES>;
var<workgroup> wg_mean: array<f32, HEAD_DIM>;
var<workgroup> wg_piece: array<u32, 2 * HADAMARD_LANES>;
var<workgroup> wg_token: array<u32, BATCH>;
var<workgroup> wg_square: array<f32, BATCH>;

// Token of the batch that owns a piece. Exact for places below 256 and up to 64 pieces a token.
fn batch_token(place: u32) -> u32 {
    return (place * PIECES_MAGIC) >> 16u;
}

fn read4(index: u32) -> vec4<f32> {
    let dtype = params.dtype;
    if dtype == 0u {
        return vec4<f32>(
            element_read(data[index], 0u, 0u),
            element_read(data[index + 1u], 0u, 0u),
            element_read(data[index + 2u], 0u, 0u),
            element_read(data[index + 3u], 0u, 0u),
        );
    }
    let first = data[index >> 1u];
    let second = data[(index >> 1u) + 1u];
    return vec4<f32>(
        element_read(first, 0u, dtype),
        element_read(first, 1u, dtype),
        element_read(second, 0u, dtype),
        element_read(second, 1u, dtype),
    );
}

fn read_piece(index: u32, live: bool) -> Piece {
    var piece = Piece(vec4<f32>(0.0), vec4<f32>(0.0));
    if live {
        piece = Piece(read4(index), read4(index + 4u));
    }
    return piece;
}

// The token divided by s1, which is at least 1e-8.
fn divide_piece(piece: Piece, s1: f32) -> Piece {
    let shrink = select(1.0, SHRINK, s1 > HUGE);
    let divisor = s1 * shrink;
    return Piece(piece.low * shrink / divisor, piece.high * shrink / divisor);
}

fn top_bits(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn store_piece(place: u32, piece: Piece) {
    let at = place * 8u;
    hadamard_data[at] = piece.low.x;
    hadamard_data[at + 1u] = piece.low.y;
    hadamard_data[at + 2u] = piece.low.z;
    hadamard_data[at + 3u] = piece.low.w;
    hadamard_data[at + 4u] = piece.high.x;
    hadamard_data[at + 5u] = piece.high.y;
    hadamard_data[at + 6u] = piece.high.z;
    hadamard_data[at + 7u] = piece.high.w;
}

fn load_piece(place: u32) -> Piece {
    let at = place * 8u;
    return Piece(
        vec4<f32>(
            hadamard_data[at],
            hadamard_data[at + 1u],
            hadamard_data[at + 2u],
            hadamard_data[at + 3u],
        ),
        vec4<f32>(
            hadamard_data[at + 4u],
            hadamard_data[at + 5u],
            hadamard_data[at + 6u],
            hadamard_data[at + 7u],
        ),
    );
}

fn load_scaled(place: u32) -> Piece {
    let piece = load_piece(place);
    return Piece(piece.low * params.scale, piece.high * params.scale);
}

fn mean_piece(channel: u32) -> Piece {
    return Piece(
        vec4<f32>(
            wg_mean[channel],
            wg_mean[channel + 1u],
            wg_mean[channel + 2u],
            wg_mean[channel + 3u],
        ),
        vec4<f32>(
            wg_mean[channel + 4u],
            wg_mean[channel + 5u],
            wg_mean[channel + 6u],
            wg_mean[channel + 7u],
        ),
    );
}

// Takes the mean, turned to each token's position, off the tokens of the batch, `row` being the place
// of the first one's position. To be called by the whole workgroup; barriers must stand around it.
fn take_turned_mean(lane: u32, row: u32, last: u32) {
    for (var i = lane; i < BATCH * (HEAD_DIM / 2u); i += LANES) {
        let token = batch_token(i >> 2u);
        let pair = i - token * (HEAD_DIM / 2u);
        let turn = rope_turn(pair, encode_position(row + min(token, last)));
        let at = rope_channels(pair);
        let mean = vec2<f32>(wg_mean[at.x], wg_mean[at.y]);
        hadamard_data[token * HEAD_DIM + at.x] -= mean.x * turn.x - mean.y * turn.y;
        hadamard_data[token * HEAD_DIM + at.y] -= mean.y * turn.x + mean.x * turn.y;
    }
}

fn signs4(v: vec4<f32>) -> u32 {
    let bits = select(vec4<u32>(0u), vec4<u32>(1u, 2u, 4u, 8u), v >= vec4<f32>(0.0));
    return (bits.x | bits.y) | (bits.z | bits.w);
}

// Bit e is set where channel e is at least 0.
fn signs_of(piece: Piece) -> u32 {
    return signs4(piece.low) | (signs4(piece.high) << 4u);
}

// What is compared with the centroids: magnitudes where the signs are stored apart.
fn target_of(piece: Piece) -> Piece {
    if SIGNS == 1u {
        return Piece(abs(piece.low), abs(piece.high));
    }
    return piece;
}

// The second factor of the gain's quotient, whose first is the token's own square.
fn gain_part(target_piece: Piece, code: u32) -> f32 {
    let c = centroids_of(code);
    if GAIN == GAIN_NORM {
        return square_sum(c);
    }
    let a = target_piece.low * c.low;
    let b = target_piece.high * c.high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// What the gain does to a second scale, given the squares of a token and what gain_part adds up to.
fn gain_of(square: f32, other: f32) -> f32 {
    if other > 0.0 {
        let ratio = square / other;
        return min(select(ratio, sqrt(ratio), GAIN == GAIN_NORM), MAX_GAIN);
    }
    return 0.0;
}

fn half_bits(value: f32) -> u32 {
    return element_half(bitcast<u32>(value));
}

// Adds up the numbers that the lanes left for each piece of a token.
fn token_sum(t: u32) -> f32 {
    let at = t * PIECES;
    var sum = 0.0;
    for (var p = 0u; p < PIECES; p += 4u) {
        sum += bitcast<f32>(wg_piece[at + p]);
        if p + 1u < PIECES {
            sum += bitcast<f32>(wg_piece[at + p + 1u]);
        }
        if p + 2u < PIECES {
            sum += bitcast<f32>(wg_piece[at + p + 2u]);
        }
        if p + 3u < PIECES {
            sum += bitcast<f32>(wg_piece[at + p + 3u]);
        }
    }
    return sum;
}

// Largest of the pieces of a token, and of `least`.
fn token_top(t: u32, least: u32) -> u32 {
    let last = (t + 1u) * PIECES - 1u;
    var top = least;
    for (var p = t * PIECES; p <= last; p += 4u) {
        let low = max(wg_piece[p], wg_piece[min(p + 1u, last)]);
        let high = max(wg_piece[min(p + 2u, last)], wg_piece[min(p + 3u, last)]);
        top = max(top, max(low, high));
    }
    return top;
}

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
            let code = grid_code(parts, wg_mean[8u * w + i]);
            wg_mean[8u * w + i] = grid_value(parts, code);
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
            let key = grid_key(wg_mean[c]);
            low = min(low, key);
            high = max(high, key);
        }
        let grid = grid_spanning(grid_unkey(low), grid_unkey(high));
        let parts = grid_parts(grid);
        for (var eight = first; eight < end; eight += 8u) {
            var codes = 0u;
            for (var i = 0u; i < 8u; i++) {
                let code = grid_code(parts, wg_mean[eight + i]);
                wg_mean[eight + i] = grid_value(parts, code);
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

// Transforms the mean, or transforms it back. To be called by the whole workgroup.
fn turn_mean(lane: u32, back: bool) {
    for (var i = lane; i < HADAMARD_VALUES; i += LANES) {
        hadamard_data[i] = select(0.0, wg_mean[min(i, HEAD_DIM - 1u)], i < HEAD_DIM);
    }
    if back {
        hadamard_back(lane);
    } else {
        hadamard_forward(lane);
    }
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = hadamard_data[c] * params.scale;
    }
    workgroupBarrier();
}

// Value `channel` of a token of the batch, turned back from its position.
fn still_value(t: u32, channel: u32, row: u32) -> f32 {
    let value = hadamard_data[t * HEAD_DIM + channel];
    if ROPE == 0u {
        return value;
    }
    let place = rope_place(channel);
    let turn = rope_turn(place.pair, encode_position(row + t));
    return rope_back(place, turn, value, hadamard_data[t * HEAD_DIM + place.other]);
}

// Adds the tokens of a batch, divided by their scales, to the mean; `row` is the place of the first
// one's position. To be called by the whole workgroup.
fn add_means(
    lane: u32,
    a: Piece,
    b: Piece,
    s1: vec2<f32>,
    inside: vec2<bool>,
    count: u32,
    row: u32,
) {
    let place = vec2<u32>(lane, lane + LANES);
    if inside.x {
        store_piece(place.x, divide_piece(a, s1.x));
    }
    if inside.y {
        store_piece(place.y, divide_piece(b, s1.y));
    }
    workgroupBarrier();
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        var sum = wg_mean[c];
        for (var t = 0u; t < count; t++) {
            sum += still_value(t, c, row);
        }
        wg_mean[c] = sum;
    }
    workgroupBarrier();
}

// Writes the indices of four pieces, `group` of the batch of which `at` is the first word, and their
// signs. Whole words only, each by one lane: a batch holds a multiple of 4 tokens, and what the last
// word of a plane has beyond the chunk is 0.
fn write_codes(out: u32, at: u32, group: u32) {
    let c = vec4<u32>(wg_piece[4u * group], wg_piece[4u * group + 1u], wg_piece[4u * group + 2u],
        wg_piece[4u * group + 3u]);
    let first = at + group * CODE_BYTES;
    var words = vec4<u32>(c.x, c.y, c.z, c.w);
    if CODE_BYTES == 1u {
        let low = c & vec4<u32>(0xffu);
        words.x = low.x | (low.y << 8u) | (low.z << 16u) | (low.w << 24u);
    } else if CODE_BYTES == 2u {
        words.x = c.x | (c.y << 16u);
        words.y = c.z | (c.w << 16u);
    } else if CODE_BYTES == 3u {
        words.x = c.x | (c.y << 24u);
        words.y = (c.y >> 8u) | (c.z << 16u);
        words.z = (c.z >> 16u) | (c.w << 8u);
    }
    if first < params.sign_offset {
        pages[out + first] = words.x;
        if SIGNS == 1u {
            pages[out + params.sign_offset + first] =
                (c.x >> 8u) | (c.y & 0xff00u) | ((c.z & 0xff00u) << 8u) | ((c.w & 0xff00u) << 16u);
        }
    }
    if CODE_BYTES > 1u && first + 1u < params.sign_offset {
        pages[out + first + 1u] = words.y;
    }
    if CODE_BYTES > 2u && first + 2u < params.sign_offset {
        pages[out + first + 2u] = words.z;
    }
    if CODE_BYTES > 3u && first + 3u < params.sign_offset {
        pages[out + first + 3u] = words.w;
    }
}

// The centred piece, divided by the key scale that starts at a word.
fn unscale_piece(piece: Piece, key_scale: u32, channel: u32) -> Piece {
    return Piece(
        piece.low / key_scale_four(key_scale, channel),
        piece.high / key_scale_four(key_scale, channel + 4u),
    );
}

// Packs `chunk` tokens, whose elements start at `base` of `data` and whose positions are those from
// place `row` on, into the page at word `out`; all of params.chunk, or none. With KEY_SCALED they are
// keys under the scale that starts at word `key_scale`. To be called by the whole workgroup.
fn encode_chunk(lane: u32, chunk: u32, base: u32, row: u32, out: u32, key_scale: u32) {
    let place = vec2<u32>(lane, lane + LANES);
    let token = vec2<u32>(batch_token(place.x), batch_token(place.y));
    let channel = (place - token * PIECES) * 8u;
    let inside = token < vec2<u32>(BATCH);
    let last = max(chunk, 1u) - 1u;

    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = 0.0;
    }
    for (var first = 0u; first < chunk; first += BATCH) {
        let live = inside & (token + first < vec2<u32>(chunk));
        let index = base + (first + token) * HEAD_DIM + channel;
        let a = read_piece(index.x, live.x);
        let b = read_piece(index.y, live.y);
        wg_piece[place.x] = max(top_bits(a.low), top_bits(a.high));
        wg_piece[place.y] = max(top_bits(b.low), top_bits(b.high));
        workgroupBarrier();
        for (var t = lane; t < BATCH; t += LANES) {
            wg_token[t] = token_top(t, 64u << 23u) >> 23u;
        }
        workgroupBarrier();
        let up_a = bitcast<f32>((255u - wg_token[min(token.x, BATCH - 1u)]) << 23u);
        let up_b = bitcast<f32>((255u - wg_token[min(token.y, BATCH - 1u)]) << 23u);
        wg_piece[place.x] = bitcast<u32>(square_sum(Piece(a.low * up_a, a.high * up_a)));
        wg_piece[place.y] = bitcast<u32>(square_sum(Piece(b.low * up_b, b.high * up_b)));
        workgroupBarrier();
        for (var t = lane; t < BATCH; t += LANES) {
            let square = token_sum(t);
            if first + t < chunk {
                let down = bitcast<f32>((wg_token[t] - 1u) << 23u);
                let rms = min(sqrt(square / f32(HEAD_DIM)), BELOW_FOUR);
                wg_scale[first + t] = max(rms * down, MIN_SCALE);
            }
        }
        workgroupBarrier();
        if FORM == FORM_HALF {
            let at = min(first + token, vec2<u32>(last));
            let s1 = vec2<f32>(wg_scale[at.x], wg_scale[at.y]);
            add_means(lane, a, b, s1, inside, min(BATCH, chunk - first), row + first);
        }
    }
    if FORM != FORM_HALF {
        // Scales of 4 bits depend on the whole chunk, so the tokens are read once more.
        quantise_scales(lane, chunk, out + params.s1_offset, out + params.grid_offset);
        for (var first = 0u; first < chunk; first += BATCH) {
            let live = inside & (token + first < vec2<u32>(chunk));
            let index = base + (first + token) * HEAD_DIM + channel;
            let at = min(first + token, vec2<u32>(last));
            let s1 = vec2<f32>(wg_scale[at.x], wg_scale[at.y]);
            let a = read_piece(index.x, live.x);
            let b = read_piece(index.y, live.y);
            add_means(lane, a, b, s1, inside, min(BATCH, chunk - first), row + first);
        }
    }

    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = wg_mean[c] / f32(params.chunk);
    }
    workgroupBarrier();
    if TURNED == 1u {
        turn_mean(lane, false);
    }
    if FORM == FORM_LINEAR {
        quantise_groups(lane, chunk, out + params.o_offset, out + params.grid_offset + 1u);
    } else if FORM == FORM_FOUR {
        quantise_mean(lane, chunk, out + params.o_offset, out + params.grid_offset + 2u);
    } else {
        for (var pair = lane; pair < HEAD_DIM / 2u; pair += LANES) {
            if chunk > 0u {
                let low = half_bits(wg_mean[2u * pair]);
                let high = half_bits(wg_mean[2u * pair + 1u]);
                pages[out + params.o_offset + pair] = low | (high << 16u);
            }
        }
    }
    if TURNED == 1u {
        workgroupBarrier();
        turn_mean(lane, true);
    }

    for (var first = 0u; first < chunk; first += BATCH) {
        let live = inside & (token + first < vec2<u32>(chunk));
        let index = base + (first + token) * HEAD_DIM + channel;
        var a = divide_piece(read_piece(index.x, live.x), wg_scale[min(first + token.x, last)]);
        var b = divide_piece(read_piece(index.y, live.y), wg_scale[min(first + token.y, last)]);
        if ROPE == 1u {
            if inside.x {
                store_piece(place.x, a);
            }
            if inside.y {
                store_piece(place.y, b);
            }
            workgroupBarrier();
            take_turned_mean(lane, row + first, last - first);
            workgroupBarrier();
            if inside.x {
                a = load_piece(place.x);
            }
            if inside.y {
                b = load_piece(place.y);
            }
        } else {
            let mean_a = mean_piece(channel.x);
            let mean_b = mean_piece(channel.y);
            a = Piece(a.low - mean_a.low, a.high - mean_a.high);
            b = Piece(b.low - mean_b.low, b.high - mean_b.high);
        }
        if KEY_SCALED == 1u {
            a = unscale_piece(a, key_scale, channel.x);
            b = unscale_piece(b, key_scale, channel.y);
        }
        wg_piece[place.x] = bitcast<u32>(square_sum(a));
        wg_piece[place.y] = bitcast<u32>(square_sum(b));
        workgroupBarrier();
        for (var t = lane; t < BATCH; t += LANES) {
            wg_token[t] = bitcast<u32>(max(sqrt(token_sum(t) / f32(HEAD_DIM)), MIN_SCALE));
        }
        workgroupBarrier();
        let s2_a = bitcast<f32>(wg_token[min(token.x, BATCH - 1u)]);
        let s2_b = bitcast<f32>(wg_token[min(token.y, BATCH - 1u)]);
        if inside.x {
            store_piece(place.x, Piece(a.low / s2_a, a.high / s2_a));
        }
        if inside.y {
            store_piece(place.y, Piece(b.low / s2_b, b.high / s2_b));
        }
        hadamard_forward(lane);
        if inside.x {
            a = load_scaled(place.x);
        }
        if inside.y {
            b = load_scaled(place.y);
        }
        let target_a = target_of(a);
        let target_b = target_of(b);
        var found = vec2<u32>(0u);
        if live.x || live.y {
            found = nearest(target_a, target_b);
        }
        if GAIN != GAIN_TOKEN {
            wg_piece[place.x] = bitcast<u32>(square_sum(target_a));
            wg_piece[place.y] = bitcast<u32>(square_sum(target_b));
            workgroupBarrier();
            for (var t = lane; t < BATCH; t += LANES) {
                wg_square[t] = token_sum(t);
            }
            workgroupBarrier();
            wg_piece[place.x] = bitcast<u32>(gain_part(target_a, found.x));
            wg_piece[place.y] = bitcast<u32>(gain_part(target_b, found.y));
            workgroupBarrier();
            for (var t = lane; t < BATCH; t += LANES) {
                let s2 = bitcast<f32>(wg_token[t]) * gain_of(wg_square[t], token_sum(t));
                wg_token[t] = bitcast<u32>(s2);
            }
            workgroupBarrier();
        }
        var signs = vec2<u32>(0u);
        if SIGNS == 1u {
            signs = vec2<u32>(signs_of(a) << 8u, signs_of(b) << 8u);
        }
        wg_piece[place.x] = select(0u, found.x | signs.x, live.x);
        wg_piece[place.y] = select(0u, found.y | signs.y, live.y);
        workgroupBarrier();
        for (var group = lane; group < BATCH * PIECES / 4u; group += LANES) {
            write_codes(out, (first >> 2u) * PIECES * CODE_BYTES, group);
        }
        if FORM == FORM_FOUR {
            // The first scales of these tokens are no longer needed.
            for (var t = lane; t < min(BATCH, chunk - first); t += LANES) {
                wg_scale[first + t] = bitcast<f32>(wg_token[t]);
            }
        } else {
            for (var pair = lane; pair < BATCH / 2u; pair += LANES) {
                let low = first + 2u * pair;
                if low < chunk {
                    let both = low + 1u < chunk;
                    let s1_low = element_encode_scale(wg_scale[low]);
                    let s1_high = element_encode_scale(wg_scale[min(low + 1u, last)]);
                    let s2_low = element_half(wg_token[2u * pair]);
                    let s2_high = element_half(wg_token[2u * pair + 1u]);
                    let at = out + (low >> 1u);
                    if FORM == FORM_HALF {
                        pages[at + params.s1_offset] = s1_low | select(0u, s1_high << 16u, both);
                    }
                    pages[at + params.s2_offset] = s2_low | select(0u, s2_high << 16u, both);
                }
            }
        }
        workgroupBarrier();
    }
    if FORM == FORM_FOUR {
        quantise_scales(lane, chunk, out + params.s2_offset, out + params.grid_offset + 1u);
    }
}
