// Packs one chunk of token rows into a page: scales s1 and s2 of each token, mean o of each channel,
// Hadamard transform, indices of the nearest centroids (and signs) of each piece of 8 channels.
// Twin: src/nsnquant/cpu/encode.rs, with the same order of sums.
// It goes over the tokens twice, in batches that fill hadamard_data: for s1 and o, then for the rest.
// Needs element.wgsl, hadamard.wgsl, turn.wgsl, grid.wgsl, quantise.wgsl, divide.wgsl, rope.wgsl,
// key_scale.wgsl, nearest.wgsl, coarse.wgsl and pieces.wgsl,
// encode_position (place) -> u32 for the position of a token row, encode_words (word) -> vec4<u32> for
// four words of the elements, from one on that is a multiple of 4; these bindings:
// `book` (uniform), `centroids` (read), `key_scales` (read), `pages` (written), `params` with dtype, chunk, sign_offset, s1_offset, s2_offset, o_offset,
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
var<workgroup> wg_piece: array<u32, 4 * HADAMARD_LANES>;
var<workgroup> wg_token: array<u32, BATCH>;

// A piece of a token divided by its s1, which is at least 1e-8.
fn divide_piece(piece: Piece, s1: f32) -> Piece {
    let shrink = select(1.0, SHRINK, s1 > HUGE);
    let divisor = s1 * shrink;
    return Piece(piece.low * shrink / divisor, piece.high * shrink / divisor);
}

fn top_bits(v: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

fn mean_piece(channel: u32) -> Piece {
    let at = turn_mean_at(channel);
    return Piece(
        vec4<f32>(
            wg_mean[at],
            wg_mean[at + TURN_NEXT],
            wg_mean[at + 2u * TURN_NEXT],
            wg_mean[at + 3u * TURN_NEXT],
        ),
        vec4<f32>(
            wg_mean[at + 4u * TURN_NEXT],
            wg_mean[at + 5u * TURN_NEXT],
            wg_mean[at + 6u * TURN_NEXT],
            wg_mean[at + 7u * TURN_NEXT],
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
        let mean = vec2<f32>(wg_mean[turn_mean_at(at.x)], wg_mean[turn_mean_at(at.y)]);
        hadamard_data[turn_value_at(token, at.x)] -= mean.x * turn.x - mean.y * turn.y;
        hadamard_data[turn_value_at(token, at.y)] -= mean.y * turn.x + mean.x * turn.y;
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
        sum += bitcast<f32>(wg_piece[turn_slot(at + p)]);
        if p + 1u < PIECES {
            sum += bitcast<f32>(wg_piece[turn_slot(at + p + 1u)]);
        }
        if p + 2u < PIECES {
            sum += bitcast<f32>(wg_piece[turn_slot(at + p + 2u)]);
        }
        if p + 3u < PIECES {
            sum += bitcast<f32>(wg_piece[turn_slot(at + p + 3u)]);
        }
    }
    return sum;
}

// Largest of the pieces of a token, and of `least`.
fn token_top(t: u32, least: u32) -> u32 {
    let last = (t + 1u) * PIECES - 1u;
    var top = least;
    for (var p = t * PIECES; p <= last; p += 4u) {
        let low = max(wg_piece[turn_slot(p)], wg_piece[turn_slot(min(p + 1u, last))]);
        let high = max(
            wg_piece[turn_slot(min(p + 2u, last))],
            wg_piece[turn_slot(min(p + 3u, last))],
        );
        top = max(top, max(low, high));
    }
    return top;
}

// Transforms the mean, or transforms it back. To be called by the whole workgroup.
fn turn_mean(lane: u32, back: bool) {
    if TURN_PLAIN == 1u {
        turn_row(lane, back);
        return;
    }
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

// The same where there is nothing to mix, of one row alone.
fn turn_row(lane: u32, back: bool) {
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        let value = wg_mean[turn_mean_at(c)];
        hadamard_data[c] = select(turn_signed(c, value), value, back);
    }
    workgroupBarrier();
    for (var log = 0u; log < HADAMARD_RUN_LOG; log++) {
        for (var group = lane; group < HEAD_DIM / 2u; group += LANES) {
            let at = hadamard_first(group, log, 1u);
            let low = hadamard_data[at];
            let high = hadamard_data[at + (1u << log)];
            hadamard_data[at] = low + high;
            hadamard_data[at + (1u << log)] = low - high;
        }
        workgroupBarrier();
    }
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        let value = hadamard_data[c];
        wg_mean[turn_mean_at(c)] = select(value, turn_signed(c, value), back) * params.scale;
    }
    workgroupBarrier();
}

// Value `channel` of a token of the batch, turned back from its position.
fn still_value(t: u32, channel: u32, row: u32) -> f32 {
    let value = hadamard_data[turn_value_at(t, channel)];
    if ROPE == 0u {
        return value;
    }
    let place = rope_place(channel);
    let turn = rope_turn(place.pair, encode_position(row + t));
    return rope_back(place, turn, value, hadamard_data[turn_value_at(t, place.other)]);
}

// Adds `count` tokens, which are in hadamard_data divided by their scales, to the mean; `row` is the
// place of the first one's position. To be called by the whole workgroup.
fn add_means(lane: u32, count: u32, row: u32) {
    for (var i = lane; i < HEAD_DIM; i += LANES) {
        let c = turn_channel_of(i);
        var sum = wg_mean[i];
        // Tokens that lie as the eight before do, which takes no address of their own.
        let eights = select(0u, count & ~7u, ROPE == 0u && TURN_PLAIN == 1u && PIECES >= 8u);
        let low = vec4<u32>(
            turn_value_at(0u, c), turn_value_at(1u, c), turn_value_at(2u, c), turn_value_at(3u, c));
        let high = vec4<u32>(
            turn_value_at(4u, c), turn_value_at(5u, c), turn_value_at(6u, c), turn_value_at(7u, c));
        for (var t = 0u; t < eights; t += 8u) {
            sum += hadamard_data[low.x + t * PIECES];
            sum += hadamard_data[low.y + t * PIECES];
            sum += hadamard_data[low.z + t * PIECES];
            sum += hadamard_data[low.w + t * PIECES];
            sum += hadamard_data[high.x + t * PIECES];
            sum += hadamard_data[high.y + t * PIECES];
            sum += hadamard_data[high.z + t * PIECES];
            sum += hadamard_data[high.w + t * PIECES];
        }
        for (var t = eights; t < count; t++) {
            sum += still_value(t, c, row);
        }
        wg_mean[i] = sum;
    }
    workgroupBarrier();
}

// Writes the indices of four pieces, `group` of the batch of which `at` is the first word, and their
// signs. Whole words only, each by one lane: a batch holds a multiple of 4 tokens, and what the last
// word of a plane has beyond the chunk is 0.
fn write_codes(out: u32, at: u32, group: u32) {
    let c = vec4<u32>(
        wg_piece[turn_slot(4u * group)],
        wg_piece[turn_slot(4u * group + 1u)],
        wg_piece[turn_slot(4u * group + 2u)],
        wg_piece[turn_slot(4u * group + 3u)],
    );
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

// The centred piece, divided by the key scale that starts at a word, where there is one.
fn unscale_piece(piece: Piece, key_scale: u32, channel: u32) -> Piece {
    if KEY_SCALED == 0u {
        return piece;
    }
    return Piece(
        piece.low / key_scale_four(key_scale, channel),
        piece.high / key_scale_four(key_scale, channel + 4u),
    );
}

// First scale of the token of a piece, in the batch of `count` tokens from `first` on.
fn own_scale(place: Place, first: u32, count: u32) -> f32 {
    return wg_scale[first + min(place.token, count - 1u)];
}

// Leaves a number of a piece for the sum over its token.
fn leave(place: Place, value: f32) {
    wg_piece[turn_slot(place.index)] = bitcast<u32>(value);
}

// First scales of the tokens of a batch, whose elements start at `base`. Where they are as the page has
// them, the tokens go to hadamard_data, divided by them. To be called by the whole workgroup.
fn scale_tokens(lane: u32, first: u32, count: u32, base: u32) {
    let a = place_of(lane, count);
    let b = place_of(lane + LANES, count);
    let c = place_of(lane + 2u * LANES, count);
    let d = place_of(lane + 3u * LANES, count);
    let p = read_four(lane, count, base);
    // f16 needs no other power of two: its squares neither over- nor underflow.
    if params.dtype != 1u {
        leave_top(a, p.a);
        leave_top(b, p.b);
        leave_top(c, p.c);
        leave_top(d, p.d);
        workgroupBarrier();
        for (var t = lane; t < BATCH; t += LANES) {
            wg_token[t] = token_top(t, 64u << 23u) >> 23u;
        }
        workgroupBarrier();
    }
    leave(a, square_sum(raised(a, p.a)));
    leave(b, square_sum(raised(b, p.b)));
    leave(c, square_sum(raised(c, p.c)));
    leave(d, square_sum(raised(d, p.d)));
    workgroupBarrier();
    for (var t = lane; t < min(BATCH, count); t += LANES) {
        let rms = sqrt(token_sum(t) / f32(HEAD_DIM));
        var scale = rms;
        if params.dtype != 1u {
            scale = min(rms, BELOW_FOUR) * bitcast<f32>((wg_token[t] - 1u) << 23u);
        }
        wg_scale[first + t] = max(scale, MIN_SCALE);
    }
    workgroupBarrier();
    if FORM == FORM_HALF {
        store_divided(lane, p, first, count);
        workgroupBarrier();
    }
}

fn leave_top(place: Place, piece: Piece) {
    wg_piece[turn_slot(place.index)] = max(top_bits(piece.low), top_bits(piece.high));
}

// A piece in the power of two of its token.
fn raised(place: Place, piece: Piece) -> Piece {
    var up = 1.0;
    if params.dtype != 1u {
        up = bitcast<f32>((255u - wg_token[place.token]) << 23u);
    }
    return Piece(piece.low * up, piece.high * up);
}

// Brings the tokens of a batch, divided by their first scales, to hadamard_data. To be called by the
// whole workgroup.
fn load_tokens(lane: u32, first: u32, count: u32, base: u32) {
    store_divided(lane, read_four(lane, count, base), first, count);
    workgroupBarrier();
}

fn store_divided(lane: u32, p: Four, first: u32, count: u32) {
    let a = place_of(lane, count);
    let b = place_of(lane + LANES, count);
    let c = place_of(lane + 2u * LANES, count);
    let d = place_of(lane + 3u * LANES, count);
    store_inside(a, divide_piece(p.a, own_scale(a, first, count)));
    store_inside(b, divide_piece(p.b, own_scale(b, first, count)));
    store_inside(c, divide_piece(p.c, own_scale(c, first, count)));
    store_inside(d, divide_piece(p.d, own_scale(d, first, count)));
}

// The lane's piece `number` of a batch of `count` tokens, divided by its first scale and centred; not
// centred yet where the mean depends on the position.
fn centred_piece(
    lane: u32, number: u32, read: Piece, first: u32, count: u32, key_scale: u32,
) -> Piece {
    let place = place_of(lane + number * LANES, count);
    let piece = divide_piece(read, own_scale(place, first, count));
    if ROPE == 1u {
        return piece;
    }
    let mean = mean_piece(place.channel);
    return unscale_piece(
        Piece(piece.low - mean.low, piece.high - mean.high), key_scale, place.channel);
}

// Takes the means of their positions off the lane's pieces.
fn centre_turned(lane: u32, p: Four, count: u32, row: u32, key_scale: u32) -> Four {
    store_inside(place_of(lane, count), p.a);
    store_inside(place_of(lane + LANES, count), p.b);
    store_inside(place_of(lane + 2u * LANES, count), p.c);
    store_inside(place_of(lane + 3u * LANES, count), p.d);
    workgroupBarrier();
    take_turned_mean(lane, row, count - 1u);
    workgroupBarrier();
    return Four(
        turned_piece(lane, 0u, count, key_scale),
        turned_piece(lane, 1u, count, key_scale),
        turned_piece(lane, 2u, count, key_scale),
        turned_piece(lane, 3u, count, key_scale),
    );
}

fn store_inside(place: Place, piece: Piece) {
    if place.inside {
        turn_store(place.index, piece);
    }
}

fn turned_piece(lane: u32, number: u32, count: u32, key_scale: u32) -> Piece {
    let place = place_of(lane + number * LANES, count);
    return unscale_piece(load_inside(place), key_scale, place.channel);
}

fn leave_square(place: Place, piece: Piece) {
    if place.inside {
        leave(place, square_sum(piece));
    }
}

fn store_scaled(place: Place, piece: Piece) {
    if place.inside {
        let s2 = bitcast<f32>(wg_token[place.token]);
        turn_store_first(place.index, Piece(piece.low / s2, piece.high / s2), place.channel);
    }
}

// Second scales of the tokens of a batch, whose elements start at `base` and positions at place `row`;
// the tokens, divided by both scales and centred, go to hadamard_data. To be called by the whole
// workgroup.
fn normalise(lane: u32, first: u32, count: u32, base: u32, row: u32, key_scale: u32) {
    let read = read_four(lane, count, base);
    var p = Four(
        centred_piece(lane, 0u, read.a, first, count, key_scale),
        centred_piece(lane, 1u, read.b, first, count, key_scale),
        centred_piece(lane, 2u, read.c, first, count, key_scale),
        centred_piece(lane, 3u, read.d, first, count, key_scale),
    );
    if ROPE == 1u {
        p = centre_turned(lane, p, count, row, key_scale);
    }
    let a = place_of(lane, count);
    let b = place_of(lane + LANES, count);
    let c = place_of(lane + 2u * LANES, count);
    let d = place_of(lane + 3u * LANES, count);
    leave_square(a, p.a);
    leave_square(b, p.b);
    leave_square(c, p.c);
    leave_square(d, p.d);
    workgroupBarrier();
    for (var t = lane; t < BATCH; t += LANES) {
        wg_token[t] = bitcast<u32>(max(sqrt(token_sum(t) / f32(HEAD_DIM)), MIN_SCALE));
    }
    workgroupBarrier();
    store_scaled(a, p.a);
    store_scaled(b, p.b);
    store_scaled(c, p.c);
    store_scaled(d, p.d);
}

fn load_inside(place: Place) -> Piece {
    var piece = Piece(vec4<f32>(0.0), vec4<f32>(0.0));
    if place.inside {
        piece = turn_load(place.index);
    }
    return piece;
}

fn load_turned(place: Place) -> Piece {
    let piece = load_inside(place);
    return Piece(piece.low * params.scale, piece.high * params.scale);
}

// What is compared with the centroids, of the lane's piece `number` of a batch.
fn load_target(lane: u32, number: u32) -> Piece {
    return target_of(load_turned(place_of(lane + number * LANES, BATCH)));
}

fn gain_parts(place: u32) -> vec2<f32> {
    return vec2<f32>(hadamard_data[turn_at(place, 0u)], hadamard_data[turn_at(place, 1u)]);
}

// What gain_of wants of a token.
fn gain_sums(t: u32) -> vec2<f32> {
    let at = t * PIECES;
    var sum = vec2<f32>(0.0);
    for (var p = 0u; p < PIECES; p += 4u) {
        sum += gain_parts(at + p);
        if p + 1u < PIECES {
            sum += gain_parts(at + p + 1u);
        }
        if p + 2u < PIECES {
            sum += gain_parts(at + p + 2u);
        }
        if p + 3u < PIECES {
            sum += gain_parts(at + p + 3u);
        }
    }
    return sum;
}

// Indices and signs of the pieces of a batch of `count` tokens, and the gain on its second scales. To
// be called by the whole workgroup.
fn choose(lane: u32, count: u32) {
    var found = vec4<u32>(0u);
    if COARSE == 1u {
        found = coarse_nearest(lane);
    } else {
        found = nearest(Four(
            load_target(lane, 0u),
            load_target(lane, 1u),
            load_target(lane, 2u),
            load_target(lane, 3u),
        ));
    }
    for (var number = 0u; number < 4u; number++) {
        let place = place_of(lane + number * LANES, count);
        let low = select(found.x, found.y, number == 1u);
        let high = select(found.z, found.w, number == 3u);
        var code = select(low, high, number > 1u);
        if SIGNS == 1u || GAIN != GAIN_TOKEN {
            let piece = load_turned(place);
            let target_piece = target_of(piece);
            if GAIN != GAIN_TOKEN && place.inside {
                // The piece itself is no longer needed there.
                hadamard_data[turn_at(place.index, 0u)] = square_sum(target_piece);
                hadamard_data[turn_at(place.index, 1u)] = gain_part(target_piece, code);
            }
            if SIGNS == 1u {
                code |= signs_of(piece) << 8u;
            }
        }
        wg_piece[turn_slot(place.index)] = select(0u, code, place.live);
    }
    workgroupBarrier();
    if GAIN != GAIN_TOKEN {
        for (var t = lane; t < BATCH; t += LANES) {
            let sums = gain_sums(t);
            let s2 = bitcast<f32>(wg_token[t]) * gain_of(sums.x, sums.y);
            wg_token[t] = bitcast<u32>(s2);
        }
        workgroupBarrier();
    }
}

// Packs `chunk` tokens, whose elements start at `base` of `data` and whose positions are those from
// place `row` on, into the page at word `out`; all of params.chunk, or none. With KEY_SCALED they are
// keys under the scale that starts at word `key_scale`. To be called by the whole workgroup.
fn encode_chunk(lane: u32, chunk: u32, base: u32, row: u32, out: u32, key_scale: u32) {
    let last = max(chunk, 1u) - 1u;
    if COARSE == 1u {
        coarse_hold(lane);
    }
    for (var c = lane; c < HEAD_DIM; c += LANES) {
        wg_mean[c] = 0.0;
    }
    for (var first = 0u; first < chunk; first += BATCH) {
        scale_tokens(lane, first, chunk - first, base + first * HEAD_DIM);
        if FORM == FORM_HALF {
            add_means(lane, min(BATCH, chunk - first), row + first);
        }
    }
    if FORM != FORM_HALF {
        // Scales of 4 bits depend on the whole chunk, so the tokens are read once more.
        quantise_scales(lane, chunk, out + params.s1_offset, out + params.grid_offset);
        for (var first = 0u; first < chunk; first += BATCH) {
            load_tokens(lane, first, chunk - first, base + first * HEAD_DIM);
            add_means(lane, min(BATCH, chunk - first), row + first);
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
                let low = half_bits(wg_mean[turn_mean_at(2u * pair)]);
                let high = half_bits(wg_mean[turn_mean_at(2u * pair + 1u)]);
                pages[out + params.o_offset + pair] = low | (high << 16u);
            }
        }
    }
    if TURNED == 1u {
        workgroupBarrier();
        turn_mean(lane, true);
    }

    for (var first = 0u; first < chunk; first += BATCH) {
        let start = base + first * HEAD_DIM;
        normalise(lane, first, chunk - first, start, row + first, key_scale);
        turn_rest(lane);
        choose(lane, chunk - first);
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
