// Packs one chunk of token rows into a page: scales s1 and s2 of each token, mean o of each channel,
// Hadamard transform, indices of the nearest centroids (and signs) of each piece of 8 channels.
// Twin: src/nsnquant/cpu/encode.rs, with the same order of sums.
// It goes over the tokens twice, in batches that fill hadamard_data: for s1 and o, then for the rest.
// A lane owns two pieces of a batch, `place` and `place + LANES`.
// Needs element.wgsl, hadamard.wgsl and grid.wgsl, these bindings: `data` (read), `book` (uniform),
// `pages` (written), `params` with dtype, chunk, sign_offset, s1_offset, s2_offset, o_offset,
// grid_offset and scale, and the codec's constants (src/nsnquant/gpu/device.rs).

const LANES: u32 = HADAMARD_LANES;
const MIN_SCALE: f32 = 1e-8;
// As in the twin: divisors stay below 2^126, and a row's scaled root mean square below 4.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
const BELOW_FOUR: f32 = 3.9999998;
const MAX_GAIN: f32 = 4.0;
const GAIN_TOKEN: u32 = 0u;
const GAIN_NORM: u32 = 2u;

var<workgroup> wg_scale: array<f32, SCALES>;
var<workgroup> wg_mean: array<f32, HEAD_DIM>;
var<workgroup> wg_piece: array<u32, 2 * HADAMARD_LANES>;
var<workgroup> wg_token: array<u32, BATCH>;
var<workgroup> wg_square: array<f32, BATCH>;

struct Piece {
    low: vec4<f32>,
    high: vec4<f32>,
}

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

fn square_sum(piece: Piece) -> f32 {
    let a = piece.low * piece.low;
    let b = piece.high * piece.high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
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
        ) * params.scale,
        vec4<f32>(
            hadamard_data[at + 4u],
            hadamard_data[at + 5u],
            hadamard_data[at + 6u],
            hadamard_data[at + 7u],
        ) * params.scale,
    );
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

// Half the squared norm of a centroid, taken off its dot products; nothing in unit books.
fn half_square(piece: Piece) -> f32 {
    return select(0.0, 0.5 * square_sum(piece), PLAIN == 1u);
}

fn dot8(a: Piece, c: Piece, half: f32) -> f32 {
    var sum = a.low.x * c.low.x - half;
    sum += a.low.y * c.low.y;
    sum += a.low.z * c.low.z;
    sum += a.low.w * c.low.w;
    sum += a.high.x * c.high.x;
    sum += a.high.y * c.high.y;
    sum += a.high.z * c.high.z;
    return sum + a.high.w * c.high.w;
}

struct Best8 {
    scores: vec2<f32>,
    index: vec2<u32>,
}

fn better8(best: Best8, row: u32, a: Piece, b: Piece) -> Best8 {
    let c = Piece(book[2u * row], book[2u * row + 1u]);
    let half = half_square(c);
    let scores = vec2<f32>(dot8(a, c, half), dot8(b, c, half));
    let better = scores > best.scores;
    let rows = vec2<u32>(row);
    return Best8(select(best.scores, scores, better), select(best.index, rows, better));
}

// Indices of the centroids of 8 channels nearest to two pieces, the first of equals. Eight rows at a
// time, and other long loops go in steps too: llvmpipe lets an invocation go round its loops 65,535
// times in all and leaves them without a word after that; the largest chunks took twice as many.
fn nearest8(a: Piece, b: Piece) -> vec2<u32> {
    var best = Best8(vec2<f32>(-3e38), vec2<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better8(best, row, a, b);
        best = better8(best, row + 1u, a, b);
        best = better8(best, row + 2u, a, b);
        best = better8(best, row + 3u, a, b);
        best = better8(best, row + 4u, a, b);
        best = better8(best, row + 5u, a, b);
        best = better8(best, row + 6u, a, b);
        best = better8(best, row + 7u, a, b);
    }
    return best.index;
}

struct Best4 {
    scores: vec4<f32>,
    index: vec4<u32>,
}

fn better4(best: Best4, row: u32, x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32>) -> Best4 {
    let c = book[row];
    let s = c * c;
    let half = 0.5 * ((s.x + s.y) + (s.z + s.w));
    let scores = (((x * c.x - half) + y * c.y) + z * c.z) + w * c.w;
    let better = scores > best.scores;
    let rows = vec4<u32>(row);
    return Best4(select(best.scores, scores, better), select(best.index, rows, better));
}

// The same of 4 channels: two indices a piece.
fn nearest4(a: Piece, b: Piece) -> vec2<u32> {
    let x = vec4<f32>(a.low.x, a.high.x, b.low.x, b.high.x);
    let y = vec4<f32>(a.low.y, a.high.y, b.low.y, b.high.y);
    let z = vec4<f32>(a.low.z, a.high.z, b.low.z, b.high.z);
    let w = vec4<f32>(a.low.w, a.high.w, b.low.w, b.high.w);
    var best = Best4(vec4<f32>(-3e38), vec4<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better4(best, row, x, y, z, w);
        best = better4(best, row + 1u, x, y, z, w);
        best = better4(best, row + 2u, x, y, z, w);
        best = better4(best, row + 3u, x, y, z, w);
        best = better4(best, row + 4u, x, y, z, w);
        best = better4(best, row + 5u, x, y, z, w);
        best = better4(best, row + 6u, x, y, z, w);
        best = better4(best, row + 7u, x, y, z, w);
    }
    let index = best.index;
    return vec2<u32>(index.x | (index.y << 8u), index.z | (index.w << 8u));
}

struct Best2 {
    a: vec4<f32>,
    b: vec4<f32>,
    index_a: vec4<u32>,
    index_b: vec4<u32>,
}

// The channels of two pieces, by their place in a centroid.
struct Pairs {
    ax: vec4<f32>,
    ay: vec4<f32>,
    bx: vec4<f32>,
    by: vec4<f32>,
}

fn better2(best: Best2, row: u32, p: Pairs, c: vec2<f32>) -> Best2 {
    let s = c * c;
    let half = 0.5 * (s.x + s.y);
    let a = (p.ax * c.x - half) + p.ay * c.y;
    let b = (p.bx * c.x - half) + p.by * c.y;
    let better_a = a > best.a;
    let better_b = b > best.b;
    let rows = vec4<u32>(row);
    return Best2(
        select(best.a, a, better_a),
        select(best.b, b, better_b),
        select(best.index_a, rows, better_a),
        select(best.index_b, rows, better_b),
    );
}

// Two rows lie in four numbers of the book.
fn better2_both(best: Best2, row: u32, p: Pairs) -> Best2 {
    let both = book[row >> 1u];
    return better2(better2(best, row, p, both.xy), row + 1u, p, both.zw);
}

fn join(index: vec4<u32>) -> u32 {
    return index.x | (index.y << INDEX_BITS) | (index.z << (2u * INDEX_BITS))
        | (index.w << (3u * INDEX_BITS));
}

// The same of 2 channels: four indices a piece.
fn nearest2(a: Piece, b: Piece) -> vec2<u32> {
    let p = Pairs(
        vec4<f32>(a.low.x, a.low.z, a.high.x, a.high.z),
        vec4<f32>(a.low.y, a.low.w, a.high.y, a.high.w),
        vec4<f32>(b.low.x, b.low.z, b.high.x, b.high.z),
        vec4<f32>(b.low.y, b.low.w, b.high.y, b.high.w),
    );
    let least = vec4<f32>(-3e38);
    var best = Best2(least, least, vec4<u32>(0u), vec4<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better2_both(best, row, p);
        best = better2_both(best, row + 2u, p);
        best = better2_both(best, row + 4u, p);
        best = better2_both(best, row + 6u, p);
    }
    return vec2<u32>(join(best.index_a), join(best.index_b));
}

// The indices of two pieces of 8 channels, lowest bits first.
fn nearest(a: Piece, b: Piece) -> vec2<u32> {
    if WIDTH == 8u {
        return nearest8(a, b);
    }
    if WIDTH == 4u {
        return nearest4(a, b);
    }
    return nearest2(a, b);
}

fn row2(index: u32) -> vec2<f32> {
    let pair = book[index >> 1u];
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

// The centroids that a piece's indices stand for.
fn centroids_of(code: u32) -> Piece {
    if WIDTH == 8u {
        return Piece(book[2u * code], book[2u * code + 1u]);
    }
    if WIDTH == 4u {
        return Piece(book[code & 0xffu], book[code >> 8u]);
    }
    let mask = ROWS - 1u;
    return Piece(
        vec4<f32>(row2(code & mask), row2((code >> INDEX_BITS) & mask)),
        vec4<f32>(row2((code >> (2u * INDEX_BITS)) & mask), row2((code >> (3u * INDEX_BITS)) & mask)),
    );
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
    let grid = grid_of_scales(grid_unkey(both.x), grid_unkey(both.y));
    let parts = grid_parts(grid);
    for (var w = lane; 8u * w < chunk; w += LANES) {
        var codes = 0u;
        for (var i = 0u; i < 8u; i++) {
            let t = 8u * w + i;
            if t < chunk {
                let code = grid_code(parts, grid_log(wg_scale[t]));
                wg_scale[t] = grid_scale(parts, code);
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

// Adds the tokens of a batch, divided by their scales, to the mean. To be called by the whole
// workgroup.
fn add_means(lane: u32, a: Piece, b: Piece, s1: vec2<f32>, inside: vec2<bool>, count: u32) {
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
            sum += hadamard_data[t * HEAD_DIM + c];
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

// Packs `chunk` tokens, whose elements start at `base` of `data`, into the page at word `out`; all of
// params.chunk, or none. To be called by the whole workgroup.
fn encode_chunk(lane: u32, chunk: u32, base: u32, out: u32) {
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
        if FOUR == 0u {
            let at = min(first + token, vec2<u32>(last));
            let s1 = vec2<f32>(wg_scale[at.x], wg_scale[at.y]);
            add_means(lane, a, b, s1, inside, min(BATCH, chunk - first));
        }
    }
    if FOUR == 1u {
        // Scales of 4 bits depend on the whole chunk, so the tokens are read once more.
        quantise_scales(lane, chunk, out + params.s1_offset, out + params.grid_offset);
        for (var first = 0u; first < chunk; first += BATCH) {
            let live = inside & (token + first < vec2<u32>(chunk));
            let index = base + (first + token) * HEAD_DIM + channel;
            let at = min(first + token, vec2<u32>(last));
            let s1 = vec2<f32>(wg_scale[at.x], wg_scale[at.y]);
            let a = read_piece(index.x, live.x);
            let b = read_piece(index.y, live.y);
            add_means(lane, a, b, s1, inside, min(BATCH, chunk - first));
        }
    }

    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = wg_mean[c] / f32(params.chunk);
    }
    workgroupBarrier();
    if TURNED == 1u {
        turn_mean(lane, false);
    }
    if FOUR == 1u {
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
        let mean_a = mean_piece(channel.x);
        let mean_b = mean_piece(channel.y);
        a = Piece(a.low - mean_a.low, a.high - mean_a.high);
        b = Piece(b.low - mean_b.low, b.high - mean_b.high);
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
            a = load_piece(place.x);
        }
        if inside.y {
            b = load_piece(place.y);
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
        if FOUR == 1u {
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
                    pages[at + params.s1_offset] = s1_low | select(0u, s1_high << 16u, both);
                    pages[at + params.s2_offset] = s2_low | select(0u, s2_high << 16u, both);
                }
            }
        }
        workgroupBarrier();
    }
    if FOUR == 1u {
        quantise_scales(lane, chunk, out + params.s2_offset, out + params.grid_offset + 1u);
    }
}
