// Packed pages of plain books by products of integers: a round of attend_pages.wgsl in which books are bytes.
// Queries come as bytes, 127ths of their largest channel, and where they meet means as 16 bits
// (rotate.wgsl); weights are rounded to a 127th of the largest that a round can have; what rounding leaves of a
// weight goes to the lane's next token, so that many small weights are not lost. Sums of products are exact.
//
// Needs attend_pages.wgsl and what it needs.
//
// Wants PLAIN_PART of 8, PLAIN_SUBS (a quarter of the tokens of a page that a round takes, a multiple of
// PLAIN_GROUPS, which is one of 4; rounds take every page in equal parts) and values whose scales have 4 bits.

const PLAIN_TOGETHER: u32 = 2u;
// None are shown as floats.
const HEADS_PARTS: u32 = 1u;
// Numbers beyond these are left where others are exchanged.
const PLAIN_PLACES: u32 = max(SOFTMAX_LANES, VALUE_DIM - min(VALUE_DIM, SOFTMAX_LANES));
// What the largest weight becomes.
const PLAIN_LARGEST: f32 = 127.0;
// What goes on of what rounding leaves of a weight, and the most of it that a round hands to the next, in what
// a weight counts in there.
const PLAIN_KEPT: f32 = 0.9999;
const PLAIN_REST: f32 = 0.4999;
// The least that a round's largest weight counts as: its inverse is finite.
const PLAIN_FAINT: f32 = 1e-36;
// PLAIN_FIXED as bits. Sums that start there are, as floats, the same and PLAIN_FIXED, where they are below 2^22.
const PLAIN_FIXED_BITS: i32 = select(0x4b400000, 0, HEAD_DIM > 256u);
// Words of the queries that meet centroids, and of those that meet means, high bytes and low bytes.
const PLAIN_FOURS: u32 = HEAD_DIM / 4u;
// Behind them: what the former and the latter count in, and the sum of the latter.
const PLAIN_CENTROID_UNIT: u32 = 3u * PLAIN_FOURS;
const PLAIN_MEAN_UNIT: u32 = 3u * PLAIN_FOURS + 1u;
const PLAIN_MEAN_TOTAL: u32 = 3u * PLAIN_FOURS + 2u;
const PLAIN_BYTE_WORDS: u32 = 3u * PLAIN_FOURS + 4u;
// Grids of a page: of both scales and the mean of its keys, then of its values.
const PLAIN_GRIDS: u32 = 6u;
// Words of the codes of a value.
const PLAIN_STRIDE: u32 = (VALUE_DIM / 32u) * VALUE_BITS;

// Queries as rotate.wgsl leaves their bytes.
var<workgroup> plain_queries: array<Whole, PLAIN_BYTE_WORDS>;
// Weights of a lane's four tokens, and what their products count in.
var<workgroup> plain_weight: array<Whole, PLAIN_PLACES>;
var<private> plain_weight_unit: Real;
var<private> plain_carry: Real;
// Of each page: its grids, low end and step.
var<workgroup> plain_page_grids: array<vec2<f32>, PLAIN_PAGES * PLAIN_GRIDS>;
// Of each page: the largest product of both scales of its values that their grids have.
var<workgroup> plain_most: array<f32, PLAIN_PAGES>;

fn plain_subs() -> u32 {
    return PLAIN_SUBS;
}

fn plain_leave(at: u32, value: Real) {
    if at < PLAIN_PLACES {
        plain_weight[at] = bitcast<Whole>(value);
    } else {
        softmax_scratch[at - PLAIN_PLACES] = value;
    }
}

fn plain_left(at: u32) -> Real {
    if at < PLAIN_PLACES {
        return bitcast<Real>(plain_weight[at]);
    }
    return softmax_scratch[at - PLAIN_PLACES];
}

// Puts the queries before the workgroup. A barrier must follow.
fn plain_show(lane: u32, query: Whole) {
    let at = Whole(params.packed.bytes_at) + query * PLAIN_BYTE_WORDS;
    for (var i = lane; i < PLAIN_BYTE_WORDS; i += SOFTMAX_LANES) {
        plain_queries[i] = heads_prepared(at + i);
    }
    plain_first = plain_mean_first(query);
}

fn plain_mean_query(c: u32) -> HeadsQuery {
    return heads_given(plain_first, c);
}

// Products of a lane's pieces of the mean of its page's keys, whose codes have 4 bits, with the queries that
// meet means.
fn plain_mean_products(mine: PlainMine, page: vec4<u32>) -> Real {
    var high = Integer(0);
    var low = Integer(0);
    for (var piece = mine.sub; piece < HEAD_DIM / 8u; piece += PLAIN_SUBS) {
        let word = packed_key(page, params.packed.key_o + piece);
        let even = word & 0x0f0f0f0fu;
        let odd = (word >> 4u) & 0x0f0f0f0fu;
        let at = PLAIN_FOURS + 2u * piece;
        high = heads_dot_bytes(high, plain_queries[at], even);
        high = heads_dot_bytes(high, plain_queries[at + 1u], odd);
        low = heads_dot_bytes(low, plain_queries[at + PLAIN_FOURS], even);
        low = heads_dot_bytes(low, plain_queries[at + PLAIN_FOURS + 1u], odd);
    }
    return Real(high * 256 + low);
}

// What a page's mean adds to its logits, given what its lanes left.
fn plain_mean_of(lane: u32) -> Real {
    let sum = plain_sum(lane, min(PLAIN_SUBS, HEAD_DIM / 8u));
    if !packed_has(packed_key_form(), PACKED_FOUR) {
        return sum;
    }
    let grid = plain_page_grids[lane * PLAIN_GRIDS + 2u];
    return sum * (bitcast<Real>(plain_queries[PLAIN_MEAN_UNIT]) * grid.y)
        + bitcast<Real>(plain_queries[PLAIN_MEAN_TOTAL]) * grid.x;
}

// Puts a lane's part of the grids of its page before the workgroup.
fn plain_show_grids(mine: PlainMine, page: vec4<u32>) {
    for (var number = mine.sub; number < PLAIN_GRIDS; number += PLAIN_SUBS) {
        var word = 0u;
        if number >= 3u {
            word = packed_value(page, params.packed.value_grid + number - 3u);
        } else if packed_has(packed_key_form(), PACKED_FOUR) {
            word = packed_key(page, params.packed.key_grid + number);
        }
        plain_page_grids[mine.page * PLAIN_GRIDS + number] = grid_parts(word);
    }
}

fn plain_both_grids(page: u32, first: u32) -> vec4<f32> {
    let at = page * PLAIN_GRIDS + first;
    return vec4<f32>(plain_page_grids[at], plain_page_grids[at + 1u]);
}

// A lane's first token among those of a page that a round takes. Its second and fourth lie half of them behind
// its first and third, and these two 4 apart: so a lane's scales are in two words, each plane, and tokens lie
// beside those of other lanes.
fn plain_token(sub: u32) -> u32 {
    return ((sub >> 2u) << 3u) | (sub & 3u);
}

const PLAIN_SECOND: u32 = 2u * PLAIN_SUBS;
const PLAIN_THIRD: u32 = 4u;
const PLAIN_FOURTH: u32 = PLAIN_SECOND + PLAIN_THIRD;
// Words of scales from that of the first token to that of the second.
const PLAIN_WORDS_APART: u32 = PLAIN_SECOND / 8u;

// Codes of both scales of a lane's four tokens, a byte each, given both words of both.
fn plain_codes_of(first: u32, a: vec2<u32>, b: vec2<u32>) -> u32 {
    let shift = vec2<u32>((first & 3u) << 2u);
    let mask = vec2<u32>(0x000f000fu);
    let both = ((a >> shift) & mask) | (((b >> shift) & mask) << vec2<u32>(4u));
    return both.x | (both.y << 8u);
}

fn plain_codes_of_keys(page: vec4<u32>, first: u32) -> u32 {
    if !packed_has(packed_key_form(), PACKED_FOUR) {
        return 0u;
    }
    let at = params.packed.key_s1 + (first >> 3u);
    let to = params.packed.key_s2 + (first >> 3u);
    return plain_codes_of(first,
        vec2<u32>(packed_key(page, at), packed_key(page, at + PLAIN_WORDS_APART)),
        vec2<u32>(packed_key(page, to), packed_key(page, to + PLAIN_WORDS_APART)));
}

fn plain_codes_of_values(page: vec4<u32>, first: u32) -> u32 {
    let at = params.packed.value_s1 + (first >> 3u);
    let to = params.packed.value_s2 + (first >> 3u);
    return plain_codes_of(first,
        vec2<u32>(packed_value(page, at), packed_value(page, at + PLAIN_WORDS_APART)),
        vec2<u32>(packed_value(page, to), packed_value(page, to + PLAIN_WORDS_APART)));
}

// Products of a lane's four tokens with centroids.
struct PlainDots {
    a: Integer,
    b: Integer,
    c: Integer,
    d: Integer,
}

// Words of 32 channels of four tokens.
struct PlainKeys {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

fn plain_key_words(slab: u32, at: vec4<u32>) -> PlainKeys {
    return PlainKeys(plain_words(slab, at.x), plain_words(slab, at.y), plain_words(slab, at.z),
        plain_words(slab, at.w));
}

// Adds the products of eight channels, piece `piece` of the words, from channel `c` on.
fn plain_eight(sums: PlainDots, words: PlainKeys, piece: u32, c: u32) -> PlainDots {
    let a = plain_key_bytes(plain_code(words.a, piece));
    let b = plain_key_bytes(plain_code(words.b, piece));
    let e = plain_key_bytes(plain_code(words.c, piece));
    let f = plain_key_bytes(plain_code(words.d, piece));
    let low = plain_queries[c >> 2u];
    let high = plain_queries[(c >> 2u) + 1u];
    return PlainDots(
        heads_dot_bytes(heads_dot_bytes(sums.a, low, a.x), high, a.y),
        heads_dot_bytes(heads_dot_bytes(sums.b, low, b.x), high, b.y),
        heads_dot_bytes(heads_dot_bytes(sums.c, low, e.x), high, e.y),
        heads_dot_bytes(heads_dot_bytes(sums.d, low, f.x), high, f.y),
    );
}

// Products of four tokens, whose words start at `at`, of which the first 32 channels' are given.
fn plain_dots(slab: u32, first: PlainKeys, from_words: vec4<u32>) -> PlainDots {
    var at = from_words;
    var words = first;
    let start = Integer(PLAIN_FIXED_BITS);
    var sums = PlainDots(start, start, start, start);
    for (var c = 0u; c < params.packed.head_dim; c += 32u) {
        sums = plain_eight(sums, words, 0u, c);
        sums = plain_eight(sums, words, 1u, c + 8u);
        sums = plain_eight(sums, words, 2u, c + 16u);
        sums = plain_eight(sums, words, 3u, c + 24u);
        at += vec4<u32>(KEY_BITS);
        if c + 32u < params.packed.head_dim {
            words = plain_key_words(slab, at);
        }
    }
    return sums;
}

// A product given its sum, which started at PLAIN_FIXED_BITS.
fn plain_dot_of(sum: Integer) -> Real {
    if HEAD_DIM > 256u {
        return Real(sum);
    }
    return bitcast<Real>(sum) - PLAIN_FIXED;
}

// A logit but for what few calls ask for (plain_bent), given a token's product and codes of its scales.
fn plain_logit(own: AttendBlock, page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32, dot: Integer,
    mean: Real, unit: Real) -> Real {
    let scales = plain_key_scales(page, grids, codes, token);
    let product = scales.x * (plain_dot_of(dot) * (scales.y * unit) + mean);
    return softmax_product(product, own.limit, own.factor);
}

// Factors beyond a product of floats, and soft caps.
fn plain_bent(own: AttendBlock, product: Real) -> Real {
    let logit = softmax_boosted(product, own.boost);
    if params.attend.cap > 0.0 {
        return softmax_cap(logit, params.attend.cap, params.attend.cap_inverse);
    }
    return logit;
}

// Logits of a lane's four tokens, the first of them token `first` of its page.
fn plain_logits(own: AttendBlock, mine: PlainMine, page: vec4<u32>, flags: u32, codes: u32, first: u32,
    dots: PlainDots) -> PlainFour {
    let grids = plain_both_grids(mine.page, 0u);
    let unit = bitcast<Real>(plain_queries[PLAIN_CENTROID_UNIT]) * PLAIN_UNIT;
    let mean = plain_page[mine.page];
    var x = PlainFour(
        plain_logit(own, page, grids, codes, first, dots.a, mean, unit),
        plain_logit(own, page, grids, codes >> 8u, first + PLAIN_SECOND, dots.b, mean, unit),
        plain_logit(own, page, grids, codes >> 16u, first + PLAIN_THIRD, dots.c, mean, unit),
        plain_logit(own, page, grids, codes >> 24u, first + PLAIN_FOURTH, dots.d, mean, unit),
    );
    if heads_any(own.boost != Whole(0u)) | (params.attend.cap > 0.0) {
        x = PlainFour(plain_bent(own, x.a), plain_bent(own, x.b), plain_bent(own, x.c), plain_bent(own, x.d));
    }
    let unseen = Real(SOFTMAX_UNSEEN);
    if (flags & PLAIN_WHOLE) == 0u {
        let a = attend_seen(own, packed_position(page, first));
        let b = attend_seen(own, packed_position(page, first + PLAIN_SECOND));
        let c = attend_seen(own, packed_position(page, first + PLAIN_THIRD));
        let d = attend_seen(own, packed_position(page, first + PLAIN_FOURTH));
        return PlainFour(select(unseen, x.a, a), select(unseen, x.b, b), select(unseen, x.c, c),
            select(unseen, x.d, d));
    }
    let all = own.low <= own.high;
    return PlainFour(select(unseen, x.a, all), select(unseen, x.b, all), select(unseen, x.c, all),
        select(unseen, x.d, all));
}

// As softmax_power, but for 2^-106 where that is 0.
fn plain_power(x: Real) -> Real {
    return exp2(max(x, Real(-106.0)));
}

// What a token's weight comes to: its own, the same times the first scale, and as it is before it is rounded.
struct PlainWeight {
    own: Real,
    scaled: Real,
    wanted: Real,
}

fn plain_weigh(logit: Real, top: Real, page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32) -> PlainWeight {
    let weight = plain_power(logit - top) * SOFTMAX_FACTOR;
    let scales = plain_value_scales(page, grids, codes, token);
    let scaled = weight * scales.x;
    return PlainWeight(weight, scaled, scaled * scales.y);
}

// A weight in units whose inverse is given, rounded; its bits end in the whole number.
fn plain_round_weight(wanted: Real, inverse: Real) -> Whole {
    return bitcast<Whole>(clamp(wanted * inverse, Real(0.0), Real(PLAIN_LARGEST)) + PLAIN_FIXED);
}

// The number again, by way of bits, which no compiler may take for the sum that made it.
fn plain_rounded(bits: Whole) -> Real {
    return bitcast<Real>((bits & Whole(255u)) | Whole(0x4b000000u)) - 8388608.0;
}

// The weights of a lane's four tokens.
struct PlainWeights {
    own: Real,
    scaled: Real,
    word: Whole,
}

fn plain_weights(logits: PlainFour, top: Real, mine: PlainMine, page: vec4<u32>, codes: u32, first: u32,
    largest: Real) -> PlainWeights {
    // Lower than any logit that is seen, where none is.
    let least = select(top, Real(0.0), top <= Real(SOFTMAX_UNSEEN));
    let grids = plain_both_grids(mine.page, 3u);
    let a = plain_weigh(logits.a, least, page, grids, codes, first);
    let b = plain_weigh(logits.b, least, page, grids, codes >> 8u, first + PLAIN_SECOND);
    let c = plain_weigh(logits.c, least, page, grids, codes >> 16u, first + PLAIN_THIRD);
    let d = plain_weigh(logits.d, least, page, grids, codes >> 24u, first + PLAIN_FOURTH);
    let inverse = PLAIN_LARGEST / largest;
    let unit = largest * (1.0 / PLAIN_LARGEST);
    // Less than half of what the next token's weight counts in, so that one that is not seen gets none of it.
    var wanted = a.wanted + clamp(plain_carry, -PLAIN_REST * unit, PLAIN_REST * unit);
    let p = plain_round_weight(wanted, inverse);
    wanted = b.wanted + (wanted - plain_rounded(p) * unit) * PLAIN_KEPT;
    let q = plain_round_weight(wanted, inverse);
    wanted = c.wanted + (wanted - plain_rounded(q) * unit) * PLAIN_KEPT;
    let r = plain_round_weight(wanted, inverse);
    wanted = d.wanted + (wanted - plain_rounded(r) * unit) * PLAIN_KEPT;
    let s = plain_round_weight(wanted, inverse);
    plain_carry = wanted - plain_rounded(s) * unit;
    let byte = Whole(255u);
    let low = (p & byte) | ((q & byte) << Whole(8u));
    let high = (r & byte) | ((s & byte) << Whole(8u));
    return PlainWeights(a.own + b.own + c.own + d.own, a.scaled + b.scaled + c.scaled + d.scaled,
        low | (high << Whole(16u)));
}

// Sums of weighted bytes of eight channels.
struct PlainSums {
    a: Integer,
    b: Integer,
    c: Integer,
    d: Integer,
    e: Integer,
    f: Integer,
    g: Integer,
    h: Integer,
}

fn plain_zero() -> PlainSums {
    let zero = Integer(0);
    return PlainSums(zero, zero, zero, zero, zero, zero, zero, zero);
}

fn plain_real(sums: PlainSums) -> AttendSums {
    let unit = plain_weight_unit;
    return AttendSums(Real(sums.a) * unit, Real(sums.b) * unit, Real(sums.c) * unit, Real(sums.d) * unit,
        Real(sums.e) * unit, Real(sums.f) * unit, Real(sums.g) * unit, Real(sums.h) * unit);
}

// Eight channels of four tokens, a word a channel.
struct PlainTurned {
    low: vec4<u32>,
    high: vec4<u32>,
}

// Two channels of four tokens, given a word a token that holds them wide.
fn plain_two_channels(a: u32, b: u32, c: u32, d: u32) -> vec2<u32> {
    let low = a + (b << 8u);
    let high = c + (d << 8u);
    return vec2<u32>(insertBits(low, high, 16u, 16u), insertBits(high, low >> 16u, 0u, 16u));
}

// The bits of `a` where the mask has one, those of `b` elsewhere.
fn plain_pick(a: u32, b: u32, mask: u32) -> u32 {
    return b ^ ((a ^ b) & mask);
}

// Four channels of four tokens, given a word a token that holds them; `even` is the mask of every other byte.
fn plain_four_channels(a: u32, b: u32, c: u32, d: u32, even: u32) -> vec4<u32> {
    let p = insertBits(a, c, 16u, 16u);
    let q = insertBits(b, d, 16u, 16u);
    let r = insertBits(c, a >> 16u, 0u, 16u);
    let s = insertBits(d, b >> 16u, 0u, 16u);
    return vec4<u32>(plain_pick(p, q << 8u, even), plain_pick(p >> 8u, q, even),
        plain_pick(r, s << 8u, even), plain_pick(r >> 8u, s, even));
}

fn plain_turned(codes: vec4<u32>, even: u32) -> PlainTurned {
    if PLAIN_WIDE {
        let a = plain_value_pairs(codes.x);
        let b = plain_value_pairs(codes.y);
        let c = plain_value_pairs(codes.z);
        let d = plain_value_pairs(codes.w);
        return PlainTurned(
            vec4<u32>(plain_two_channels(a.x, b.x, c.x, d.x), plain_two_channels(a.y, b.y, c.y, d.y)),
            vec4<u32>(plain_two_channels(a.z, b.z, c.z, d.z), plain_two_channels(a.w, b.w, c.w, d.w)),
        );
    }
    let a = plain_value_bytes(codes.x);
    let b = plain_value_bytes(codes.y);
    let c = plain_value_bytes(codes.z);
    let d = plain_value_bytes(codes.w);
    return PlainTurned(plain_four_channels(a.x, b.x, c.x, d.x, even),
        plain_four_channels(a.y, b.y, c.y, d.y, even));
}

// Adds eight channels of four tokens.
fn plain_add(sums: PlainSums, weights: Whole, own: PlainTurned) -> PlainSums {
    return PlainSums(
        heads_dot_bytes(sums.a, weights, own.low.x), heads_dot_bytes(sums.b, weights, own.low.y),
        heads_dot_bytes(sums.c, weights, own.low.z), heads_dot_bytes(sums.d, weights, own.low.w),
        heads_dot_bytes(sums.e, weights, own.high.x), heads_dot_bytes(sums.f, weights, own.high.y),
        heads_dot_bytes(sums.g, weights, own.high.z), heads_dot_bytes(sums.h, weights, own.high.w),
    );
}

// The words of a lane's channels of four tokens.
struct PlainWords {
    a: vec2<u32>,
    b: vec2<u32>,
    c: vec2<u32>,
    d: vec2<u32>,
}

// Where a lane's words start in the codes of a round's tokens.
fn plain_offset(own: AttendLane) -> u32 {
    let part = own.piece >> 1u;
    let word = select(select(part, part >> 1u, VALUE_BITS == 1u), (3u * part) >> 1u, VALUE_BITS == 3u);
    return plain_token(own.group) * PLAIN_STRIDE + word;
}

fn plain_two(slab: u32, at: u32) -> vec2<u32> {
    if VALUE_BITS < 3u {
        return vec2<u32>(plain_value(slab, at), 0u);
    }
    return vec2<u32>(plain_value(slab, at), plain_value(slab, at + 1u));
}

fn plain_four_words(page: vec4<u32>, offset: u32) -> PlainWords {
    let at = page.y + offset;
    return PlainWords(plain_two(page.w, at), plain_two(page.w, at + PLAIN_SECOND * PLAIN_STRIDE),
        plain_two(page.w, at + PLAIN_THIRD * PLAIN_STRIDE), plain_two(page.w, at + PLAIN_FOURTH * PLAIN_STRIDE));
}

// The codes of a lane's channels of four tokens.
fn plain_value_codes_of(own: AttendLane, words: PlainWords) -> vec4<u32> {
    if VALUE_BITS == 3u {
        let odd = (own.piece & 2u) == 2u;
        let a = plain_value_codes(words.a, odd);
        let b = plain_value_codes(words.b, odd);
        let c = plain_value_codes(words.c, odd);
        let d = plain_value_codes(words.d, odd);
        return select(vec4<u32>(a.x, b.x, c.x, d.x), vec4<u32>(a.y, b.y, c.y, d.y),
            (own.piece & 1u) == 1u);
    }
    let shift = (8u * VALUE_BITS) * (own.piece & (4u / VALUE_BITS - 1u));
    return (vec4<u32>(words.a.x, words.b.x, words.c.x, words.d.x) >> vec4<u32>(shift))
        & vec4<u32>((1u << (8u * VALUE_BITS)) - 1u);
}

// Adds the values of all pages, and of their means. The words of the next step are on their way while
// those at hand are decoded; the first are given.
fn plain_values(own: AttendLane, pages: u32, offset: u32, first: PlainWords, first_mean: u32,
    run: ptr<function, PlainRun>) {
    // Not a constant, with which compilers make two instructions of a selection.
    let even = 0x00ff00ffu + (params.packed.chunk >> 31u);
    var sums = plain_zero();
    var words = first;
    var mean = first_mean;
    for (var number = 0u; number < pages; number++) {
        let following = min(number + 1u, pages - 1u);
        let mean_coming = plain_mean_word(following, own.lane);
        if (plain_flags[number] & PLAIN_SKIP) == 0u {
            plain_add_means(run, number, own.lane, mean);
        }
        mean = mean_coming;
        for (var base = 0u; base < PLAIN_SUBS; base += PLAIN_GROUPS) {
            let within = base + PLAIN_GROUPS < PLAIN_SUBS;
            let next = plain_at[select(following, number, within)];
            let after = select(0u, base + PLAIN_GROUPS, within);
            let coming = plain_four_words(next, offset + 2u * after * PLAIN_STRIDE);
            // Pages that are skipped have weights of 0.
            let weights = plain_weight[number * PLAIN_SUBS + base + own.group];
            let codes = plain_value_codes_of(own, words);
            sums = plain_add(sums, weights, plain_turned(codes, even));
            words = coming;
        }
    }
    (*run).low = attend_join((*run).low, plain_real(sums));
}

// Takes in tokens `start` to `start + count` of `pages` pages; several pages come with all their
// tokens. A lane is given its own page; the workgroup must have done with the pages before.
fn plain_round(own: AttendLane, mine: PlainMine, block: AttendBlock, page: vec4<u32>, flags: u32, pages: u32,
    start: u32, count: u32, run: ptr<function, PlainRun>) {
    let lane = own.lane;
    let live = mine.page < pages && (flags & PLAIN_SKIP) == 0u;
    let first = start + plain_token(mine.sub);
    let key_codes = plain_codes_of_keys(page, first);
    let value_codes = plain_codes_of_values(page, first);
    let stride = (HEAD_DIM >> 5u) * KEY_BITS;
    let key_words = vec4<u32>(page.x + stride * first)
        + stride * vec4<u32>(0u, PLAIN_SECOND, PLAIN_THIRD, PLAIN_FOURTH);
    let keys = plain_key_words(page.w, key_words);
    var part = Real(0.0);
    if mine.page < pages {
        if mine.sub == 0u {
            plain_at[mine.page] = page;
            plain_flags[mine.page] = flags;
        }
        plain_show_grids(mine, page);
        if packed_has(packed_key_form(), PACKED_FOUR) {
            part = plain_mean_products(mine, page);
        } else {
            part = plain_mean_dots(mine, page);
        }
    }
    softmax_scratch[lane] = part;
    workgroupBarrier();
    if lane < pages {
        plain_page[lane] = plain_mean_of(lane);
        let grids = plain_both_grids(lane, 3u);
        plain_grids[lane] = plain_page_grids[lane * PLAIN_GRIDS + 5u];
        plain_most[lane] = plain_scale(grids.xy, 15u) * plain_scale(grids.zw, 15u);
    } else if lane < PLAIN_PAGES {
        plain_most[lane] = 0.0;
    }
    var dots: PlainDots;
    if live {
        dots = plain_dots(page.w, keys, key_words);
    }
    workgroupBarrier();

    let unseen = Real(SOFTMAX_UNSEEN);
    var logits = PlainFour(unseen, unseen, unseen, unseen);
    if live {
        logits = plain_logits(plain_own(block), mine, page, flags, key_codes, first, dots);
    }
    let highest = plain_max(lane, max(max(logits.a, logits.b), max(logits.c, logits.d)));
    let top = max((*run).top, highest);
    let shrink = softmax_power((*run).top - top);
    (*run).top = top;
    var most = plain_most[0];
    for (var k = 1u; k < PLAIN_PAGES; k++) {
        most = max(most, plain_most[k]);
    }
    let largest = max(softmax_power(highest - top) * (most * SOFTMAX_FACTOR), Real(PLAIN_FAINT));
    plain_weight_unit = largest * (PLAIN_UNIT / PLAIN_LARGEST);
    plain_carry *= shrink;
    var weights = PlainWeights(Real(0.0), Real(0.0), Whole(0u));
    if live {
        weights = plain_weights(logits, top, mine, page, value_codes, first, largest);
    }
    (*run).weights = (*run).weights * shrink + weights.own;
    plain_weight[lane] = weights.word;
    softmax_scratch[lane] = weights.scaled;
    let offset = start * PLAIN_STRIDE + plain_offset(own);
    let words = plain_four_words(plain_at[0], offset);
    let mean = plain_mean_word(0u, lane);
    workgroupBarrier();
    if lane < pages {
        plain_page[lane] = plain_sum(lane, PLAIN_SUBS);
    }
    plain_shrink(run, shrink);
    workgroupBarrier();
    plain_values(own, pages, offset, words, mean, run);
}
