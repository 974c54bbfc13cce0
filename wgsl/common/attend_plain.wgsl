// Packed pages of plain books, a few pages at a time: first a lane is a few tokens, whose logits it
// makes and weighs; then a lane is 16 channels of every `groups`-th token.
//
// Needs attend.wgsl for parts of 16 channels, attend_page.wgsl and plain.wgsl. Head dimensions are
// multiples of 32.
//
// Wants SOFTMAX_LANES (64 or 128), HEAD_DIM, PLAIN_PAGES (most pages at a time, 1 to 16); plain_keys (slab, at) ->
// vec4<u32>, four words of keys, and packed_position (page, token) -> u32.

// The queries that meet the centroids, and behind them those that meet the means of pages.
const HEADS_PARTS: u32 = 2u;
// Tokens at a time.
const PLAIN_ROUND: u32 = 4u * SOFTMAX_LANES;
// Lanes that add up what belongs to one page.
const PLAIN_SUBS: u32 = SOFTMAX_LANES / 16u;
const PLAIN_SUBS_LOG: u32 = select(3u, 2u, SOFTMAX_LANES == 64u);

// A page of which no query sees a token.
const PLAIN_SKIP: u32 = 1u;
// A page all of whose tokens every query sees, so that positions are of no account.
const PLAIN_WHOLE: u32 = 2u;

struct PlainFour {
    a: Real,
    b: Real,
    c: Real,
    d: Real,
}

struct PlainRun {
    top: Real,
    weights: Real,
    // Sums of 16 channels of centroids.
    low: AttendSums,
    high: AttendSums,
    // Sums of the means of channels lane, lane + lanes, ...
    means: PlainFour,
}

var<workgroup> plain_weight: array<Real, PLAIN_ROUND>;
// Of each page: where it lies, what it is skipped for, and what its mean adds to a logit or how much
// of its mean is added to the values.
var<workgroup> plain_at: array<vec4<u32>, PLAIN_PAGES>;
var<workgroup> plain_flags: array<u32, PLAIN_PAGES>;
var<workgroup> plain_page: array<Real, PLAIN_PAGES>;
// Of each page: words of the grids of the means of keys and of values.
var<workgroup> plain_grids: array<vec2<u32>, PLAIN_PAGES>;
// Of each page: first and second scales of keys, then of values, by their codes.
var<workgroup> plain_scales: array<f32, 64u * PLAIN_PAGES>;

// What is to be done with a page of these first and last positions, which ascend.
fn plain_sight(block: AttendBlock, first: u32, last: u32) -> u32 {
    if !attend_reaches(block, first, last) {
        return PLAIN_SKIP;
    }
    let whole = (Whole(first) >= block.low) & (Whole(last) <= block.high);
    let none = block.low > block.high;
    return select(PLAIN_WHOLE, 0u, heads_any(!(whole | none)));
}

// Adds the products of 8 channels of four tokens.
fn plain_eight(sums: PlainFour, codes: vec4<u32>, c: u32) -> PlainFour {
    let low = heads_query(c);
    let high = heads_query(c + 4u);
    let x = plain_key_piece(codes.x);
    let y = plain_key_piece(codes.y);
    let z = plain_key_piece(codes.z);
    let w = plain_key_piece(codes.w);
    return PlainFour(
        heads_dot(heads_dot(sums.a, low, x.low), high, x.high),
        heads_dot(heads_dot(sums.b, low, y.low), high, y.high),
        heads_dot(heads_dot(sums.c, low, z.low), high, z.high),
        heads_dot(heads_dot(sums.d, low, w.low), high, w.high),
    );
}

fn plain_codes(
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    piece: u32,
) -> vec4<u32> {
    return vec4<u32>(
        plain_code(a, piece), plain_code(b, piece), plain_code(c, piece), plain_code(d, piece));
}

// Adds the products of 32 channels of four tokens, from channel `base` on.
fn plain_block(
    sums: PlainFour,
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
    base: u32,
) -> PlainFour {
    var all = plain_eight(sums, plain_codes(a, b, c, d, 0u), base);
    all = plain_eight(all, plain_codes(a, b, c, d, 1u), base + 8u);
    all = plain_eight(all, plain_codes(a, b, c, d, 2u), base + 16u);
    return plain_eight(all, plain_codes(a, b, c, d, 3u), base + 24u);
}

// Some words of 32 channels.
fn plain_words(slab: u32, at: u32) -> vec4<u32> {
    var words = vec4<u32>(plain_key(slab, at), 0u, 0u, 0u);
    if KEY_BITS > 1u {
        words.y = plain_key(slab, at + 1u);
    }
    if KEY_BITS > 2u {
        words.z = plain_key(slab, at + 2u);
    }
    if KEY_BITS > 3u {
        words.w = plain_key(slab, at + 3u);
    }
    return words;
}

// Dot products of the queries shown with the centroids of four tokens, whose codes start at these
// words of these slabs.
fn plain_dots(slabs: vec4<u32>, at: vec4<u32>) -> PlainFour {
    var sums = PlainFour(Real(0.0), Real(0.0), Real(0.0), Real(0.0));
    if (HEAD_DIM & 127u) != 0u {
        var word = at;
        for (var c = 0u; c < HEAD_DIM; c += 32u) {
            sums = plain_block(sums, plain_words(slabs.x, word.x), plain_words(slabs.y, word.y),
                plain_words(slabs.z, word.z), plain_words(slabs.w, word.w), c);
            word += vec4<u32>(KEY_BITS);
        }
        return sums;
    }
    var word = at;
    for (var c = 0u; c < HEAD_DIM; c += 128u) {
        let a = plain_keys(slabs.x, word.x);
        let b = plain_keys(slabs.y, word.y);
        let e = plain_keys(slabs.z, word.z);
        let f = plain_keys(slabs.w, word.w);
        if KEY_BITS == 1u {
            sums = plain_block(sums, a, b, e, f, c);
            sums = plain_block(sums, a.yyyy, b.yyyy, e.yyyy, f.yyyy, c + 32u);
            sums = plain_block(sums, a.zzzz, b.zzzz, e.zzzz, f.zzzz, c + 64u);
            sums = plain_block(sums, a.wwww, b.wwww, e.wwww, f.wwww, c + 96u);
        } else {
            let a2 = plain_keys(slabs.x, word.x + 4u);
            let b2 = plain_keys(slabs.y, word.y + 4u);
            let e2 = plain_keys(slabs.z, word.z + 4u);
            let f2 = plain_keys(slabs.w, word.w + 4u);
            if KEY_BITS == 2u {
                sums = plain_block(sums, a, b, e, f, c);
                sums = plain_block(sums, a.zwzw, b.zwzw, e.zwzw, f.zwzw, c + 32u);
                sums = plain_block(sums, a2, b2, e2, f2, c + 64u);
                sums = plain_block(sums, a2.zwzw, b2.zwzw, e2.zwzw, f2.zwzw, c + 96u);
            } else {
                let a3 = plain_keys(slabs.x, word.x + 8u);
                let b3 = plain_keys(slabs.y, word.y + 8u);
                let e3 = plain_keys(slabs.z, word.z + 8u);
                let f3 = plain_keys(slabs.w, word.w + 8u);
                if KEY_BITS == 3u {
                    sums = plain_block(sums, a, b, e, f, c);
                    sums = plain_block(sums, vec4<u32>(a.w, a2.xyz), vec4<u32>(b.w, b2.xyz),
                        vec4<u32>(e.w, e2.xyz), vec4<u32>(f.w, f2.xyz), c + 32u);
                    sums = plain_block(sums, vec4<u32>(a2.zw, a3.xy), vec4<u32>(b2.zw, b3.xy),
                        vec4<u32>(e2.zw, e3.xy), vec4<u32>(f2.zw, f3.xy), c + 64u);
                    sums = plain_block(sums, a3.yzww, b3.yzww, e3.yzww, f3.yzww, c + 96u);
                } else {
                    sums = plain_block(sums, a, b, e, f, c);
                    sums = plain_block(sums, a2, b2, e2, f2, c + 32u);
                    sums = plain_block(sums, a3, b3, e3, f3, c + 64u);
                    sums = plain_block(sums, plain_keys(slabs.x, word.x + 12u),
                        plain_keys(slabs.y, word.y + 12u), plain_keys(slabs.z, word.z + 12u),
                        plain_keys(slabs.w, word.w + 12u), c + 96u);
                }
            }
        }
        word += vec4<u32>(4u * KEY_BITS);
    }
    return sums;
}

fn plain_add(run: ptr<function, PlainRun>, weight: Real, codes: vec2<u32>) {
    (*run).low = attend_add((*run).low, weight, plain_value_piece(codes.x));
    (*run).high = attend_add((*run).high, weight, plain_value_piece(codes.y));
}

// The words of a lane's parts of four tokens, `groups` apart, from token `token` of `count` on; the last
// one's where there are fewer.
struct PlainWords {
    a: vec2<u32>,
    b: vec2<u32>,
    c: vec2<u32>,
    d: vec2<u32>,
}

fn plain_value_four_words(own: AttendLane, number: u32, start: u32, token: u32, count: u32) -> PlainWords {
    let page = plain_at[number];
    let groups = params.attend.groups;
    let t = min(vec4<u32>(token, token + groups, token + 2u * groups, token + 3u * groups),
        vec4<u32>(count - 1u));
    let part = (t + start) * params.attend.pieces_v + own.piece;
    return PlainWords(
        plain_value_words(page.w, page.y, part.x), plain_value_words(page.w, page.y, part.y),
        plain_value_words(page.w, page.y, part.z), plain_value_words(page.w, page.y, part.w));
}

// Adds the values of tokens `start` to `start + count` of all pages. The words of the next step are on
// their way while those at hand are decoded.
fn plain_values(
    own: AttendLane,
    pages: u32,
    start: u32,
    count: u32,
    run: ptr<function, PlainRun>,
) {
    let groups = params.attend.groups;
    let step = 4u * groups;
    let odd = (own.piece & 1u) == 1u;
    var words = plain_value_four_words(own, 0u, start, own.group, count);
    for (var number = 0u; number < pages; number++) {
        for (var base = 0u; base < count; base += step) {
            let within = base + step < count;
            let next = select(min(number + 1u, pages - 1u), number, within);
            let after = select(0u, base + step, within) + own.group;
            let coming = plain_value_four_words(own, next, start, after, count);
            if (plain_flags[number] & PLAIN_SKIP) == 0u {
                let t = base + own.group;
                let at = min(vec4<u32>(t, t + groups, t + 2u * groups, t + 3u * groups),
                    vec4<u32>(count - 1u)) + number * count;
                var weights = PlainFour(
                    plain_weight[at.x], plain_weight[at.y], plain_weight[at.z], plain_weight[at.w]);
                if base + step > count {
                    weights = PlainFour(
                        select(Real(0.0), weights.a, Flag(t < count)),
                        select(Real(0.0), weights.b, Flag(t + groups < count)),
                        select(Real(0.0), weights.c, Flag(t + 2u * groups < count)),
                        select(Real(0.0), weights.d, Flag(t + 3u * groups < count)),
                    );
                }
                plain_add(run, weights.a, plain_value_codes(words.a, odd));
                plain_add(run, weights.b, plain_value_codes(words.b, odd));
                plain_add(run, weights.c, plain_value_codes(words.c, odd));
                plain_add(run, weights.d, plain_value_codes(words.d, odd));
            }
            words = coming;
        }
    }
}

fn plain_start() -> PlainRun {
    var run: PlainRun;
    run.top = Real(SOFTMAX_UNSEEN);
    run.weights = Real(0.0);
    run.low = attend_zero();
    run.high = attend_zero();
    run.means = PlainFour(Real(0.0), Real(0.0), Real(0.0), Real(0.0));
    return run;
}

// Takes note of a page; lane `number` does.
fn plain_take(number: u32, page: vec4<u32>, flags: u32) {
    plain_at[number] = page;
    plain_flags[number] = flags;
    // Grids of means with PACKED_FOUR; else words that are there.
    let key = select(0u, params.packed.key_grid + 2u, packed_has(params.packed.key_form, PACKED_FOUR));
    let value =
        select(0u, params.packed.value_grid + 2u, packed_has(params.packed.value_form, PACKED_FOUR));
    plain_grids[number] = vec2<u32>(packed_key(page, key), packed_value(page, value));
}

// Puts the scales that codes of 4 bits stand for before the workgroup. A barrier must follow.
fn plain_tables(lane: u32, pages: u32) {
    let keys = packed_has(params.packed.key_form, PACKED_FOUR);
    let values = packed_has(params.packed.value_form, PACKED_FOUR);
    let key = select(0u, params.packed.key_grid, keys);
    let value = select(0u, params.packed.value_grid, values);
    if keys || values {
        for (var i = lane; i < 16u * pages; i += SOFTMAX_LANES) {
            let page = plain_at[i >> 4u];
            let a = packed_key(page, key);
            let b = packed_key(page, key + 1u);
            let c = packed_value(page, value);
            let d = packed_value(page, value + 1u);
            let at = 64u * (i >> 4u) + (i & 15u);
            plain_scales[at] = grid_scale(grid_parts(a), i & 15u);
            plain_scales[at + 16u] = grid_scale(grid_parts(b), i & 15u);
            plain_scales[at + 32u] = grid_scale(grid_parts(c), i & 15u);
            plain_scales[at + 48u] = grid_scale(grid_parts(d), i & 15u);
        }
    }
}

// Both scales of a key and of a value.
fn plain_token_scales(own: PlainToken, codes: vec4<u32>) -> vec4<f32> {
    let page = plain_at[own.page];
    let first = 64u * own.page;
    let token = own.token;
    var keys: vec2<f32>;
    var values: vec2<f32>;
    if packed_has(params.packed.key_form, PACKED_FOUR) {
        keys = vec2<f32>(plain_scales[first + grid_nibble(codes.x, token)],
            plain_scales[first + 16u + grid_nibble(codes.y, token)]);
    } else {
        keys = packed_key_scales(page, token);
    }
    if packed_has(params.packed.value_form, PACKED_FOUR) {
        values = vec2<f32>(plain_scales[first + 32u + grid_nibble(codes.z, token)],
            plain_scales[first + 48u + grid_nibble(codes.w, token)]);
    } else {
        values = packed_value_scales(page, token);
    }
    return vec4<f32>(keys, values);
}

// Words of the codes of these scales; with scales of 16 bits words that are there.
fn plain_scale_words(own: PlainToken) -> vec4<u32> {
    let page = plain_at[own.page];
    let word = own.token >> 3u;
    return vec4<u32>(
        packed_key(page, params.packed.key_s1 + word), packed_key(page, params.packed.key_s2 + word),
        packed_value(page, params.packed.value_s1 + word),
        packed_value(page, params.packed.value_s2 + word));
}

// Eight channels of the mean of a page's keys.
fn plain_key_means(number: u32, piece: u32) -> AttendPiece {
    let page = plain_at[number];
    let c = 8u * piece;
    if packed_has(params.packed.key_form, PACKED_FOUR) {
        let grid = grid_parts(plain_grids[number].x);
        let word = packed_key(page, params.packed.key_o + piece);
        let low = vec4<u32>(word, word >> 4u, word >> 8u, word >> 12u) & vec4<u32>(15u);
        let high = vec4<u32>(word >> 16u, word >> 20u, word >> 24u, word >> 28u) & vec4<u32>(15u);
        return AttendPiece(
            vec4<f32>(grid.x) + grid.y * vec4<f32>(low), vec4<f32>(grid.x) + grid.y * vec4<f32>(high));
    }
    return AttendPiece(
        vec4<f32>(packed_key_mean(page, c), packed_key_mean(page, c + 1u),
            packed_key_mean(page, c + 2u), packed_key_mean(page, c + 3u)),
        vec4<f32>(packed_key_mean(page, c + 4u), packed_key_mean(page, c + 5u),
            packed_key_mean(page, c + 6u), packed_key_mean(page, c + 7u)),
    );
}

// Puts the queries before the workgroup. A barrier must follow.
fn plain_show(lane: u32, query: Whole) {
    packed_show(lane, query);
    // A mean in the Hadamard domain meets the transformed query.
    let part = select(0u, HEAD_DIM, packed_has(params.packed.key_form, PACKED_TURNED));
    let first = query * ATTEND_STRIDE + Whole(part);
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[HEADS_FOURS + i] = heads_four(first, i);
    }
}

// A token of the pages at hand: its page and its number there; the last one where there are less.
struct PlainToken {
    page: u32,
    token: u32,
    live: bool,
}

fn plain_token(i: u32, pages: u32, start: u32, count: u32) -> PlainToken {
    let page = min(
        divide_magic(i, params.packed.span_multiplier, 1u, params.packed.span_shift), pages - 1u);
    let token = i - page * count;
    let live = token < count && (plain_flags[page] & PLAIN_SKIP) == 0u;
    return PlainToken(page, start + min(token, count - 1u), live);
}

fn plain_logit(block: AttendBlock, own: PlainToken, scales: vec4<f32>, dot: Real) -> Real {
    if !own.live {
        return Real(SOFTMAX_UNSEEN);
    }
    let product = scales.x * (scales.y * dot + plain_page[own.page]);
    let logit = attend_logit(block, product);
    var seen = block.low <= block.high;
    if (plain_flags[own.page] & PLAIN_WHOLE) == 0u {
        seen = attend_seen(block, packed_position(plain_at[own.page], own.token));
    }
    return select(Real(SOFTMAX_UNSEEN), logit, seen);
}

fn plain_weigh(logit: Real, top: Real) -> Real {
    let weight = softmax_power(logit - top) * SOFTMAX_FACTOR;
    return select(Real(0.0), weight, logit > Real(SOFTMAX_UNSEEN));
}

// Adds the means of the pages to the sum of a channel.
fn plain_mean(sum: Real, pages: u32, channel: u32) -> Real {
    var all = sum;
    if channel >= params.attend.head_dim_v {
        return all;
    }
    if packed_has(params.packed.value_form, PACKED_FOUR) {
        // Several loads at a time.
        let word = params.packed.value_o + (channel >> 3u);
        for (var page = 0u; page < pages; page += 4u) {
            let number = min(vec4<u32>(page, page + 1u, page + 2u, page + 3u), vec4<u32>(pages - 1u));
            let a = packed_value(plain_at[number.x], word);
            let b = packed_value(plain_at[number.y], word);
            let c = packed_value(plain_at[number.z], word);
            let d = packed_value(plain_at[number.w], word);
            all += plain_part(number.x, a, channel);
            all += select(Real(0.0), plain_part(number.y, b, channel), Flag(page + 1u < pages));
            all += select(Real(0.0), plain_part(number.z, c, channel), Flag(page + 2u < pages));
            all += select(Real(0.0), plain_part(number.w, d, channel), Flag(page + 3u < pages));
        }
        return all;
    }
    for (var page = 0u; page < pages; page++) {
        all += plain_page[page] * packed_mean(plain_at[page], channel);
    }
    return all;
}

fn plain_part(number: u32, word: u32, channel: u32) -> Real {
    let grid = grid_parts(plain_grids[number].y);
    return plain_page[number] * grid_value(grid, grid_nibble(word, channel));
}

// Takes in tokens `start` to `start + count` of `pages` pages; several pages come with all their
// tokens. What plain_at and plain_flags say of the pages must be seen by all.
fn plain_round(
    own: AttendLane,
    block: AttendBlock,
    pages: u32,
    start: u32,
    count: u32,
    run: ptr<function, PlainRun>,
) {
    let lane = own.lane;
    let page = lane >> PLAIN_SUBS_LOG;
    let sub = lane & (PLAIN_SUBS - 1u);
    plain_tables(lane, pages);
    var part = Real(0.0);
    if page < pages {
        for (var piece = sub; piece < HEAD_DIM / 8u; piece += PLAIN_SUBS) {
            let mean = plain_key_means(page, piece);
            part = heads_dot(part, heads_query(HEAD_DIM + 8u * piece), mean.low);
            part = heads_dot(part, heads_query(HEAD_DIM + 8u * piece + 4u), mean.high);
        }
    }
    softmax_scratch[lane] = part;
    workgroupBarrier();
    if lane < pages {
        var sum = softmax_scratch[lane << PLAIN_SUBS_LOG];
        for (var k = 1u; k < PLAIN_SUBS; k++) {
            sum += softmax_scratch[(lane << PLAIN_SUBS_LOG) + k];
        }
        plain_page[lane] = sum;
    }
    workgroupBarrier();

    let a = plain_token(lane, pages, start, count);
    let b = plain_token(lane + SOFTMAX_LANES, pages, start, count);
    let c = plain_token(lane + 2u * SOFTMAX_LANES, pages, start, count);
    let d = plain_token(lane + 3u * SOFTMAX_LANES, pages, start, count);
    let words_a = plain_scale_words(a);
    let words_b = plain_scale_words(b);
    let words_c = plain_scale_words(c);
    let words_d = plain_scale_words(d);
    var dots = PlainFour(Real(0.0), Real(0.0), Real(0.0), Real(0.0));
    if a.live || b.live || c.live || d.live {
        let x = plain_at[a.page];
        let y = plain_at[b.page];
        let z = plain_at[c.page];
        let w = plain_at[d.page];
        let words = (HEAD_DIM >> 5u) * KEY_BITS;
        let at = vec4<u32>(x.x, y.x, z.x, w.x)
            + words * vec4<u32>(a.token, b.token, c.token, d.token);
        let slabs = vec4<u32>(x.w, y.w, z.w, w.w);
        dots = plain_dots(slabs, at);
    }
    let scale_a = plain_token_scales(a, words_a);
    let scale_b = plain_token_scales(b, words_b);
    let scale_c = plain_token_scales(c, words_c);
    let scale_d = plain_token_scales(d, words_d);
    let logits = PlainFour(
        plain_logit(block, a, scale_a, dots.a), plain_logit(block, b, scale_b, dots.b),
        plain_logit(block, c, scale_c, dots.c), plain_logit(block, d, scale_d, dots.d));
    let best = max(max(logits.a, logits.b), max(logits.c, logits.d));
    let top = max((*run).top, softmax_max(lane, best));
    let shrink = softmax_power((*run).top - top);
    (*run).top = top;
    let weights = PlainFour(plain_weigh(logits.a, top), plain_weigh(logits.b, top),
        plain_weigh(logits.c, top), plain_weigh(logits.d, top));
    (*run).weights = (*run).weights * shrink
        + ((weights.a + weights.b) + (weights.c + weights.d));
    let scaled = PlainFour(weights.a * scale_a.z, weights.b * scale_b.z, weights.c * scale_c.z,
        weights.d * scale_d.z);
    plain_weight[lane] = scaled.a;
    plain_weight[lane + SOFTMAX_LANES] = scaled.b;
    plain_weight[lane + 2u * SOFTMAX_LANES] = scaled.c;
    plain_weight[lane + 3u * SOFTMAX_LANES] = scaled.d;
    workgroupBarrier();
    part = Real(0.0);
    if page < pages {
        for (var t = sub; t < count; t += PLAIN_SUBS) {
            part += plain_weight[page * count + t];
        }
    }
    softmax_scratch[lane] = part;
    workgroupBarrier();
    plain_weight[lane] = scaled.a * scale_a.w;
    plain_weight[lane + SOFTMAX_LANES] = scaled.b * scale_b.w;
    plain_weight[lane + 2u * SOFTMAX_LANES] = scaled.c * scale_c.w;
    plain_weight[lane + 3u * SOFTMAX_LANES] = scaled.d * scale_d.w;
    if lane < pages {
        var sum = softmax_scratch[lane << PLAIN_SUBS_LOG];
        for (var k = 1u; k < PLAIN_SUBS; k++) {
            sum += softmax_scratch[(lane << PLAIN_SUBS_LOG) + k];
        }
        plain_page[lane] = sum;
    }
    workgroupBarrier();

    (*run).low = attend_shrink((*run).low, shrink);
    (*run).high = attend_shrink((*run).high, shrink);
    let means = (*run).means;
    (*run).means = PlainFour(
        plain_mean(means.a * shrink, pages, lane),
        plain_mean(means.b * shrink, pages, lane + SOFTMAX_LANES),
        plain_mean(means.c * shrink, pages, lane + 2u * SOFTMAX_LANES),
        plain_mean(means.d * shrink, pages, lane + 3u * SOFTMAX_LANES),
    );
    if own.owns {
        plain_values(own, pages, start, count, run);
    }
}

// Sums of four channels of every part, base channel `from` of the part on.
fn plain_store(own: AttendLane, place: Whole, base: u32, sums: PlainFour) {
    plain_weight[own.lane] = sums.a;
    plain_weight[own.lane + SOFTMAX_LANES] = sums.b;
    plain_weight[own.lane + 2u * SOFTMAX_LANES] = sums.c;
    plain_weight[own.lane + 3u * SOFTMAX_LANES] = sums.d;
    workgroupBarrier();
    let parts = params.attend.pieces_v;
    for (var i = own.lane; i < 4u * parts; i += SOFTMAX_LANES) {
        let first = (i & 3u) * SOFTMAX_LANES + (i >> 2u);
        var sum = plain_weight[first];
        var group = 1u;
        for (; group + 3u < params.attend.groups; group += 4u) {
            let a = plain_weight[first + group * parts];
            let b = plain_weight[first + (group + 1u) * parts];
            let c = plain_weight[first + (group + 2u) * parts];
            let d = plain_weight[first + (group + 3u) * parts];
            sum += a;
            sum += b;
            sum += c;
            sum += d;
        }
        for (; group < params.attend.groups; group++) {
            sum += plain_weight[first + group * parts];
        }
        heads_store(place, 16u * (i >> 2u) + base + (i & 3u), sum);
    }
    workgroupBarrier();
}

fn plain_mean_store(place: Whole, channel: u32, mean: Real) {
    if channel < params.attend.head_dim_v {
        plain_weight[channel] = mean;
        if !packed_has(params.packed.value_form, PACKED_TURNED) {
            heads_store(place, channel, mean);
        }
    }
}

// Writes the partial result.
fn plain_finish(own: AttendLane, place: Whole, run: PlainRun) {
    let lane = own.lane;
    let total = softmax_sum(lane, run.weights);
    plain_mean_store(place, lane, run.means.a);
    plain_mean_store(place, lane + SOFTMAX_LANES, run.means.b);
    plain_mean_store(place, lane + 2u * SOFTMAX_LANES, run.means.c);
    plain_mean_store(place, lane + 3u * SOFTMAX_LANES, run.means.d);
    workgroupBarrier();
    var low = run.low;
    var high = run.high;
    // Means in the Hadamard domain go where the centroids go.
    if own.group == 0u && packed_has(params.packed.value_form, PACKED_TURNED) {
        let c = 16u * own.piece;
        low = attend_join(low, AttendSums(plain_weight[c], plain_weight[c + 1u],
            plain_weight[c + 2u], plain_weight[c + 3u], plain_weight[c + 4u],
            plain_weight[c + 5u], plain_weight[c + 6u], plain_weight[c + 7u]));
        high = attend_join(high, AttendSums(plain_weight[c + 8u], plain_weight[c + 9u],
            plain_weight[c + 10u], plain_weight[c + 11u], plain_weight[c + 12u],
            plain_weight[c + 13u], plain_weight[c + 14u], plain_weight[c + 15u]));
    }
    workgroupBarrier();
    let at = params.attend.head_dim_v + 2u;
    plain_store(own, place, at, PlainFour(low.a, low.b, low.c, low.d));
    plain_store(own, place, at + 4u, PlainFour(low.e, low.f, low.g, low.h));
    plain_store(own, place, at + 8u, PlainFour(high.a, high.b, high.c, high.d));
    plain_store(own, place, at + 12u, PlainFour(high.e, high.f, high.g, high.h));
    if lane == 0u {
        heads_store(place, params.attend.head_dim_v, run.top);
        heads_store(place, params.attend.head_dim_v + 1u, total);
    }
}
