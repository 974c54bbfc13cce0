// Packed pages of plain books by products of integers: a round of attend_pages.wgsl in which books are bytes.
// Queries are rounded to a 127th of their largest channel, weights to a 127th of the largest that a round
// can have; what rounding leaves of a weight goes to the lane's next token, so that many small weights
// are not lost. Sums of products are exact.
//
// Needs attend_pages.wgsl and what it needs.
//
// Wants PLAIN_PART of 8, PLAIN_SUBS (a quarter of the tokens of a page that a round takes, a multiple of PLAIN_GROUPS;
// rounds take every page in equal parts) and values whose scales have 4 bits.

const PLAIN_TOGETHER: u32 = 2u;
// The queries that meet the means of pages.
const HEADS_PARTS: u32 = 1u;
const PLAIN_PLACES: u32 = max(2u * SOFTMAX_LANES, VALUE_DIM);
// What the largest channel and the largest weight become.
const PLAIN_LARGEST: f32 = 127.0;
const PLAIN_SMALLEST: f32 = 1e-30;
// The least that a round's largest weight counts as: its inverse is finite.
const PLAIN_FAINT: f32 = 1e-36;
// Words of the codes of a value.
const PLAIN_STRIDE: u32 = (VALUE_DIM / 32u) * VALUE_BITS;

// The queries that meet the centroids, four channels a word, and what their products with bytes of the
// book count in.
var<workgroup> plain_queries: array<Whole, HEAD_DIM / 4u>;
var<private> plain_unit: Real;
// Weights of tokens sub, sub + subs, sub + 2 subs and sub + 3 subs of a page, in the order 0, 2, 1, 3 (see
// plain_four_channels), and what their products count in.
var<workgroup> plain_weight: array<Whole, PLAIN_PLACES>;
var<private> plain_weight_unit: Real;
var<private> plain_carry: Real;
// Of each page: the largest product of both scales of its values that their grids have.
var<workgroup> plain_most: array<f32, PLAIN_PAGES>;

fn plain_subs() -> u32 {
    return PLAIN_SUBS;
}

fn plain_leave(at: u32, value: Real) {
    plain_weight[at] = bitcast<Whole>(value);
}

fn plain_left(at: u32) -> Real {
    return bitcast<Real>(plain_weight[at]);
}

// Puts the queries before the workgroup. A barrier must follow.
fn plain_show(lane: u32, query: Whole) {
    let scaled = params.packed.scaled_at;
    let at = select(query * HEAD_DIM + Whole(scaled), query * ATTEND_STRIDE + Whole(HEAD_DIM),
        scaled == 0u);
    var most = Real(0.0);
    for (var c = lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        most = max(most, abs(bitcast<Real>(heads_prepared(at + c))));
    }
    most = softmax_max(lane, most);
    let inverse = select(Real(0.0), PLAIN_LARGEST / max(most, Real(PLAIN_SMALLEST)),
        most > Real(PLAIN_SMALLEST));
    plain_unit = most * (PLAIN_UNIT / PLAIN_LARGEST);
    for (var i = lane; i < HEAD_DIM / 4u; i += SOFTMAX_LANES) {
        var word = Whole(0u);
        for (var k = 0u; k < 4u; k++) {
            let channel = bitcast<Real>(heads_prepared(at + (4u * i + k)));
            let whole = bitcast<Whole>(Integer(round(channel * inverse)));
            word |= (whole & Whole(255u)) << Whole(8u * k);
        }
        plain_queries[i] = word;
    }
    plain_first = plain_mean_first(query);
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[i] = heads_four(plain_first, i);
    }
}

fn plain_mean_query(c: u32) -> HeadsQuery {
    return heads_query(c);
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
    var sums: PlainDots;
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

// A logit but for what few calls ask for (plain_bent), given a token's product and codes of its scales.
fn plain_logit(own: AttendBlock, page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32, dot: Integer, mean: Real) -> Real {
    let scales = plain_key_scales(page, grids, codes, token);
    let product = scales.x * (Real(dot) * (scales.y * plain_unit) + mean);
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
fn plain_logits(own: AttendBlock, mine: PlainMine, page: vec4<u32>, flags: u32, codes: u32, first: u32, dots: PlainDots) -> PlainFour {
    let grids = plain_key_grids(page);
    let mean = plain_page[mine.page];
    var x = PlainFour(
        plain_logit(own, page, grids, codes, first, dots.a, mean),
        plain_logit(own, page, grids, codes >> 8u, first + PLAIN_SUBS, dots.b, mean),
        plain_logit(own, page, grids, codes >> 16u, first + 2u * PLAIN_SUBS, dots.c, mean),
        plain_logit(own, page, grids, codes >> 24u, first + 3u * PLAIN_SUBS, dots.d, mean),
    );
    if heads_any(own.boost != Whole(0u)) | (params.attend.cap > 0.0) {
        x = PlainFour(plain_bent(own, x.a), plain_bent(own, x.b), plain_bent(own, x.c), plain_bent(own, x.d));
    }
    let unseen = Real(SOFTMAX_UNSEEN);
    if (flags & PLAIN_WHOLE) == 0u {
        let a = attend_seen(own, packed_position(page, first));
        let b = attend_seen(own, packed_position(page, first + PLAIN_SUBS));
        let c = attend_seen(own, packed_position(page, first + 2u * PLAIN_SUBS));
        let d = attend_seen(own, packed_position(page, first + 3u * PLAIN_SUBS));
        return PlainFour(select(unseen, x.a, a), select(unseen, x.b, b), select(unseen, x.c, c), select(unseen, x.d, d));
    }
    let all = own.low <= own.high;
    return PlainFour(select(unseen, x.a, all), select(unseen, x.b, all), select(unseen, x.c, all), select(unseen, x.d, all));
}

// What a token's weight comes to: its own, the same times the first scale, and as it is before it is rounded.
struct PlainWeight {
    own: Real,
    scaled: Real,
    wanted: Real,
}

fn plain_weigh(logit: Real, top: Real, page: vec4<u32>, grids: vec4<f32>, codes: u32, token: u32) -> PlainWeight {
    let weight = softmax_power(logit - top) * SOFTMAX_FACTOR;
    let scales = plain_value_scales(page, grids, codes, token);
    let scaled = weight * scales.x;
    return PlainWeight(weight, scaled, scaled * scales.y);
}

// What a weight is rounded to, in units whose inverse is given.
fn plain_round_weight(wanted: Real, inverse: Real) -> Integer {
    return Integer(clamp(wanted * inverse + 0.5, Real(0.0), Real(PLAIN_LARGEST)));
}

// The weights of a lane's four tokens.
struct PlainWeights {
    own: Real,
    scaled: Real,
    word: Whole,
}

fn plain_weights(logits: PlainFour, top: Real, page: vec4<u32>, codes: u32, first: u32, largest: Real) -> PlainWeights {
    // Lower than any logit that is seen, where none is.
    let least = select(top, Real(0.0), top <= Real(SOFTMAX_UNSEEN));
    let grids = plain_value_grids(page);
    let a = plain_weigh(logits.a, least, page, grids, codes, first);
    let b = plain_weigh(logits.b, least, page, grids, codes >> 8u, first + PLAIN_SUBS);
    let c = plain_weigh(logits.c, least, page, grids, codes >> 16u, first + 2u * PLAIN_SUBS);
    let d = plain_weigh(logits.d, least, page, grids, codes >> 24u, first + 3u * PLAIN_SUBS);
    let inverse = PLAIN_LARGEST / largest;
    let unit = largest * (1.0 / PLAIN_LARGEST);
    var wanted = a.wanted + plain_carry;
    let p = plain_round_weight(wanted, inverse);
    wanted = b.wanted + (wanted - Real(p) * unit);
    let q = plain_round_weight(wanted, inverse);
    wanted = c.wanted + (wanted - Real(q) * unit);
    let r = plain_round_weight(wanted, inverse);
    wanted = d.wanted + (wanted - Real(r) * unit);
    let s = plain_round_weight(wanted, inverse);
    plain_carry = wanted - Real(s) * unit;
    let low = bitcast<Whole>(p) | (bitcast<Whole>(r) << Whole(8u));
    let high = bitcast<Whole>(q) | (bitcast<Whole>(s) << Whole(8u));
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

// The bits of `a` where the mask has one, those of `b` elsewhere.
fn plain_pick(a: u32, b: u32, mask: u32) -> u32 {
    return b ^ ((a ^ b) & mask);
}

// Four channels of four tokens, a word a channel, given a word a token: tokens 0, 2, 1, 3, lowest byte first.
fn plain_four_channels(a: u32, b: u32, c: u32, d: u32) -> vec4<u32> {
    let p = insertBits(a, b, 16u, 16u);
    let q = insertBits(c, d, 16u, 16u);
    let r = insertBits(b, a >> 16u, 0u, 16u);
    let s = insertBits(d, c >> 16u, 0u, 16u);
    let even = 0x00ff00ffu;
    return vec4<u32>(plain_pick(p, q << 8u, even), plain_pick(p >> 8u, q, even),
        plain_pick(r, s << 8u, even), plain_pick(r >> 8u, s, even));
}

// Adds eight channels of four tokens.
fn plain_add(sums: PlainSums, weights: Whole, codes: vec4<u32>) -> PlainSums {
    let a = plain_value_words_of(codes.x);
    let b = plain_value_words_of(codes.y);
    let c = plain_value_words_of(codes.z);
    let d = plain_value_words_of(codes.w);
    let low = plain_four_channels(a.x, b.x, c.x, d.x);
    let high = plain_four_channels(a.y, b.y, c.y, d.y);
    return PlainSums(
        heads_dot_bytes(sums.a, weights, low.x), heads_dot_bytes(sums.b, weights, low.y),
        heads_dot_bytes(sums.c, weights, low.z), heads_dot_bytes(sums.d, weights, low.w),
        heads_dot_bytes(sums.e, weights, high.x), heads_dot_bytes(sums.f, weights, high.y),
        heads_dot_bytes(sums.g, weights, high.z), heads_dot_bytes(sums.h, weights, high.w),
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
    return own.group * PLAIN_STRIDE + word;
}

fn plain_two(slab: u32, at: u32) -> vec2<u32> {
    if VALUE_BITS < 3u {
        return vec2<u32>(plain_value(slab, at), 0u);
    }
    return vec2<u32>(plain_value(slab, at), plain_value(slab, at + 1u));
}

fn plain_four_words(page: vec4<u32>, offset: u32) -> PlainWords {
    let at = page.y + offset;
    let apart = PLAIN_SUBS * PLAIN_STRIDE;
    return PlainWords(plain_two(page.w, at), plain_two(page.w, at + apart),
        plain_two(page.w, at + 2u * apart), plain_two(page.w, at + 3u * apart));
}

// Adds the values of all pages, and of their means. The words of the next step are on their way while
// those at hand are decoded; the first are given.
fn plain_values(own: AttendLane, pages: u32, offset: u32, first: PlainWords, first_mean: u32, run: ptr<function, PlainRun>) {
    let odd = (own.piece & 2u) == 2u;
    let second = (own.piece & 1u) == 1u;
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
            let coming = plain_four_words(next, offset + after * PLAIN_STRIDE);
            // Pages that are skipped have weights of 0.
            let weights = plain_weight[number * PLAIN_SUBS + base + own.group];
            let a = plain_value_codes(words.a, odd);
            let b = plain_value_codes(words.b, odd);
            let c = plain_value_codes(words.c, odd);
            let d = plain_value_codes(words.d, odd);
            let codes = select(
                vec4<u32>(a.x, b.x, c.x, d.x), vec4<u32>(a.y, b.y, c.y, d.y), second);
            sums = plain_add(sums, weights, codes);
            words = coming;
        }
    }
    (*run).low = attend_join((*run).low, plain_real(sums));
}

// Takes in tokens `start` to `start + count` of `pages` pages; several pages come with all their
// tokens. A lane is given its own page; the workgroup must have done with the pages before.
fn plain_round(own: AttendLane, mine: PlainMine, block: AttendBlock, page: vec4<u32>, flags: u32, pages: u32, start: u32, count: u32, run: ptr<function, PlainRun>) {
    let lane = own.lane;
    let live = mine.page < pages && (flags & PLAIN_SKIP) == 0u;
    let first = start + mine.sub;
    let last = start + count - 1u;
    let key_codes = plain_key_codes(page, first, PLAIN_SUBS, last);
    let value_codes = plain_value_codes_of_four(page, first, PLAIN_SUBS, last);
    let tokens = vec4<u32>(first, first + PLAIN_SUBS, first + 2u * PLAIN_SUBS, first + 3u * PLAIN_SUBS);
    let key_words = page.x + ((HEAD_DIM >> 5u) * KEY_BITS) * min(tokens, vec4<u32>(last));
    let keys = plain_key_words(page.w, key_words);
    var part = Real(0.0);
    if mine.page < pages {
        if mine.sub == 0u {
            plain_at[mine.page] = page;
            plain_flags[mine.page] = flags;
            plain_grids[mine.page] = plain_mean_grid(page);
            let grids = plain_value_grids(page);
            plain_most[mine.page] = plain_scale(grids.xy, 15u) * plain_scale(grids.zw, 15u);
        }
        part = plain_mean_dots(mine, page);
    }
    softmax_scratch[lane] = part;
    workgroupBarrier();
    if lane < pages {
        plain_page[lane] = plain_sum(lane, min(PLAIN_SUBS, HEAD_DIM / 8u));
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
    for (var k = 1u; k < pages; k++) {
        most = max(most, plain_most[k]);
    }
    let largest = max(softmax_power(highest - top) * (most * SOFTMAX_FACTOR), Real(PLAIN_FAINT));
    plain_weight_unit = largest * (PLAIN_UNIT / PLAIN_LARGEST);
    plain_carry *= shrink;
    var weights = PlainWeights(Real(0.0), Real(0.0), Whole(0u));
    if live {
        weights = plain_weights(logits, top, page, value_codes, first, largest);
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
