// Packs one chunk of token rows into a page: scales s1 and s2 of each token, mean o of each channel,
// Hadamard transform, index of the nearest of 256 centroids (and signs) of each piece of 8 channels.
// Twin: src/nsnquant/cpu/encode.rs, with the same order of sums.
// It goes over the tokens twice, in batches that fill hadamard_data: for s1 and o, then for the rest.
// A lane owns two pieces of a batch, `place` and `place + LANES`.
// Needs element.wgsl and hadamard.wgsl, and these bindings: `data` (read), `book` (uniform), `pages`
// (written), and `params` with dtype, chunk, sign_offset, s1_offset, s2_offset, o_offset and scale.

const LANES: u32 = HADAMARD_LANES;
const MIN_SCALE: f32 = 1e-8;
// As in the twin: divisors stay below 2^126, and a row's scaled root mean square below 4.
const HUGE: f32 = 1.2676506e30;
const SHRINK: f32 = 9.313226e-10;
const BELOW_FOUR: f32 = 3.9999998;

var<workgroup> wg_scale: array<f32, SCALES>;
var<workgroup> wg_mean: array<f32, HEAD_DIM>;
var<workgroup> wg_piece: array<u32, 2 * HADAMARD_LANES>;
var<workgroup> wg_token: array<u32, BATCH>;

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
    if BITS == 2u {
        return Piece(abs(piece.low), abs(piece.high));
    }
    return piece;
}

fn dot8(a: Piece, low: vec4<f32>, high: vec4<f32>) -> f32 {
    var sum = a.low.x * low.x;
    sum += a.low.y * low.y;
    sum += a.low.z * low.z;
    sum += a.low.w * low.w;
    sum += a.high.x * high.x;
    sum += a.high.y * high.y;
    sum += a.high.z * high.z;
    return sum + a.high.w * high.w;
}

struct Nearest {
    dots: vec2<f32>,
    index: vec2<u32>,
}

fn nearer(best: Nearest, row: u32, a: Piece, b: Piece) -> Nearest {
    let low = book[2u * row];
    let high = book[2u * row + 1u];
    let dots = vec2<f32>(dot8(a, low, high), dot8(b, low, high));
    let better = dots > best.dots;
    let rows = vec2<u32>(row);
    return Nearest(select(best.dots, dots, better), select(best.index, rows, better));
}

// Indices of the centroids with the largest dot products, the first of equals. Four at a time, as
// all loops below go in larger steps: llvmpipe lets an invocation go round its loops 65,535 times in
// all, and leaves them without a word after that; the largest chunks would need twice as many.
fn nearest(a: Piece, b: Piece) -> vec2<u32> {
    var best = Nearest(vec2<f32>(-3e38), vec2<u32>(0u));
    for (var row = 0u; row < 256u; row += 4u) {
        best = nearer(best, row, a, b);
        best = nearer(best, row + 1u, a, b);
        best = nearer(best, row + 2u, a, b);
        best = nearer(best, row + 3u, a, b);
    }
    return best.index;
}

// Sum of the pieces of a token in their order.
fn token_sum(token: u32) -> f32 {
    let at = token * PIECES;
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
fn token_top(token: u32, least: u32) -> u32 {
    let at = token * PIECES;
    let last = at + PIECES - 1u;
    var top = least;
    for (var p = at; p <= last; p += 4u) {
        let low = max(wg_piece[p], wg_piece[min(p + 1u, last)]);
        let high = max(wg_piece[min(p + 2u, last)], wg_piece[min(p + 3u, last)]);
        top = max(top, max(low, high));
    }
    return top;
}

fn half_bits(value: f32) -> u32 {
    return element_half(bitcast<u32>(value));
}

// Packs `chunk` tokens, whose elements start at `base` of `data`, into the page at word `out`; all of
// params.chunk, or none. To be called by the whole workgroup.
fn encode_chunk(lane: u32, chunk: u32, base: u32, out: u32) {
    let place = vec2<u32>(lane, lane + LANES);
    let token = vec2<u32>(batch_token(place.x), batch_token(place.y));
    let channel = (place - token * PIECES) * 8u;
    let inside = token < vec2<u32>(BATCH);

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
        let last = chunk - 1u;
        if inside.x {
            store_piece(place.x, divide_piece(a, wg_scale[min(first + token.x, last)]));
        }
        if inside.y {
            store_piece(place.y, divide_piece(b, wg_scale[min(first + token.y, last)]));
        }
        workgroupBarrier();
        let count = min(BATCH, chunk - first);
        for (var c = lane; c < HEAD_DIM; c += LANES) {
            var sum = wg_mean[c];
            for (var t = 0u; t < count; t++) {
                sum += hadamard_data[t * HEAD_DIM + c];
            }
            wg_mean[c] = sum;
        }
        workgroupBarrier();
    }

    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = wg_mean[c] / f32(params.chunk);
    }
    workgroupBarrier();
    for (var pair = lane; pair < HEAD_DIM / 2u; pair += LANES) {
        if chunk > 0u {
            let low = half_bits(wg_mean[2u * pair]);
            let high = half_bits(wg_mean[2u * pair + 1u]);
            pages[out + params.o_offset + pair] = low | (high << 16u);
        }
    }

    for (var first = 0u; first < chunk; first += BATCH) {
        let live = inside & (token + first < vec2<u32>(chunk));
        let index = base + (first + token) * HEAD_DIM + channel;
        let last = chunk - 1u;
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
            let square = token_sum(t);
            wg_token[t] = bitcast<u32>(max(sqrt(square / f32(HEAD_DIM)), MIN_SCALE));
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
        hadamard_apply(lane, HADAMARD_FORWARD);
        if inside.x {
            a = load_piece(place.x);
        }
        if inside.y {
            b = load_piece(place.y);
        }
        var found = vec2<u32>(0u);
        if live.x || live.y {
            found = nearest(target_of(a), target_of(b));
        }
        wg_piece[place.x] = select(0u, found.x | (signs_of(a) << 8u), live.x);
        wg_piece[place.y] = select(0u, found.y | (signs_of(b) << 8u), live.y);
        workgroupBarrier();
        // Whole words only, each by one lane: a batch holds a multiple of 4 tokens, and what the
        // last word of a plane has beyond the chunk is 0.
        for (var word = lane; word < BATCH * PIECES / 4u; word += LANES) {
            let at = (first >> 2u) * PIECES + word;
            if at < params.sign_offset {
                let c0 = wg_piece[4u * word];
                let c1 = wg_piece[4u * word + 1u];
                let c2 = wg_piece[4u * word + 2u];
                let c3 = wg_piece[4u * word + 3u];
                pages[out + at] =
                    (c0 & 0xffu) | ((c1 & 0xffu) << 8u) | ((c2 & 0xffu) << 16u) | (c3 << 24u);
                if BITS == 2u {
                    pages[out + params.sign_offset + at] = (c0 >> 8u) | (c1 & 0xff00u)
                        | ((c2 & 0xff00u) << 8u) | ((c3 & 0xff00u) << 16u);
                }
            }
        }
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
        workgroupBarrier();
    }
}
