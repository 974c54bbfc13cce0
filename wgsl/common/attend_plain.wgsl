// Packed pages of plain books, a few pages at a time: first a lane is a few tokens, whose logits it
// makes and weighs; then a lane is 16 channels of every `groups`-th token.
//
// Needs attend.wgsl for parts of 16 channels, attend_page.wgsl and plain.wgsl. Head dimensions are
// multiples of 32.
//
// Wants SOFTMAX_LANES (64 or 128), HEAD_DIM, PLAIN_PAGES (most pages at a time, 1 to 16); plain_keys (slab, at) ->
// vec4<u32>, four words of keys, and packed_position (page, token) -> u32.

// Whether workgroup memory and registers are to be spared: with four queries fewer workgroups than could
// hide how long memory takes have room side by side. Then queries that meet means are read where they
// lie, and the block lies in workgroup memory.
const PLAIN_SPARE: bool = HEADS > 2u;
// The queries that meet the centroids, unless books of bytes do, and behind them those that meet the
// means of pages.
const PLAIN_MEANS: u32 = 1u - KEY_BYTES;
const HEADS_PARTS: u32 = select(1u + PLAIN_MEANS, 1u, PLAIN_SPARE);
// Where the queries that meet means start.
var<private> plain_first: Whole;
// Parts of a value, and tokens that the lanes take at once.
const PLAIN_PARTS: u32 = VALUE_DIM / 16u;
const PLAIN_GROUPS: u32 = max(SOFTMAX_LANES / PLAIN_PARTS, 1u);
// Channels of the mean of a page's values that a lane adds.
const PLAIN_SPANS: u32 = (VALUE_DIM + SOFTMAX_LANES - 1u) / SOFTMAX_LANES;
// Tokens at a time.
const PLAIN_ROUND: u32 = 4u * SOFTMAX_LANES;
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

fn packed_key_form() -> u32 {
    return KEY_FORM;
}

fn packed_value_form() -> u32 {
    return VALUE_FORM;
}

// The queries as integers of 16 bits, four channels a word: the upper bytes, the lower ones, which have
// a sign of their own, and what their products with bytes of the book count in.
const PLAIN_QUADS: u32 = select(1u, HEAD_DIM / 4u, KEY_BYTES == 1u);
const PLAIN_LARGEST: f32 = 32512.0;
const PLAIN_SMALLEST: f32 = 1e-30;
var<workgroup> plain_high: array<Whole, PLAIN_QUADS>;
var<workgroup> plain_low: array<Whole, PLAIN_QUADS>;
var<private> plain_unit: Real;

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
var<workgroup> plain_held: AttendBlock;
// Of each page: where it lies, what it is skipped for, and what its mean adds to a logit or how much
// of its mean is added to the values.
var<workgroup> plain_at: array<vec4<u32>, PLAIN_PAGES>;
var<workgroup> plain_flags: array<u32, PLAIN_PAGES>;
// Between the two, the largest logits of an eighth of the lanes.
var<workgroup> plain_page: array<Real, max(PLAIN_PAGES, SOFTMAX_ROWS)>;
// Of each page: the grid of the mean of its values.
var<workgroup> plain_grids: array<vec2<f32>, PLAIN_PAGES>;
// What is to be done with a page; whose positions ascend where the kernel says so.
fn plain_sight(block: AttendBlock, page: vec4<u32>) -> u32 {
    if page.w == PLAIN_NOWHERE {
        return PLAIN_SKIP;
    }
    if params.attend.causal == 0u {
        return PLAIN_WHOLE;
    }
    if !PLAIN_ASCENDING {
        return 0u;
    }
    let first = packed_position(page, 0u);
    let last = packed_position(page, params.packed.chunk - 1u);
    if !attend_reaches(block, first, last) {
        return PLAIN_SKIP;
    }
    let whole = (Whole(first) >= block.low) & (Whole(last) <= block.high);
    let none = block.low > block.high;
    return select(PLAIN_WHOLE, 0u, heads_any(!(whole | none)));
}

const PLAIN_NOWHERE: u32 = 0xffffffffu;

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

// Of two tokens: products with centroids of f16, or with centroids of bytes.
struct PlainTwo {
    a: Real,
    b: Real,
}

struct PlainSums {
    real: PlainTwo,
    high_a: Integer,
    high_b: Integer,
    low_a: Integer,
    low_b: Integer,
}

// Adds the products of eight channels, from channel `c` on.
fn plain_eight(sums: PlainSums, code_a: u32, code_b: u32, c: u32) -> PlainSums {
    var all = sums;
    if KEY_BYTES == 1u {
        let a = plain_key_bytes(code_a);
        let b = plain_key_bytes(code_b);
        let at = c >> 2u;
        let high = plain_high[at];
        let high_next = plain_high[at + 1u];
        all.high_a = heads_dot_bytes(heads_dot_bytes(sums.high_a, high, a.x), high_next, a.y);
        all.high_b = heads_dot_bytes(heads_dot_bytes(sums.high_b, high, b.x), high_next, b.y);
        let low = plain_low[at];
        let low_next = plain_low[at + 1u];
        all.low_a = heads_dot_bytes(heads_dot_bytes(sums.low_a, low, a.x), low_next, a.y);
        all.low_b = heads_dot_bytes(heads_dot_bytes(sums.low_b, low, b.x), low_next, b.y);
        return all;
    }
    let low = heads_query(c);
    let high = heads_query(c + 4u);
    let a = plain_key_halves(code_a);
    let b = plain_key_halves(code_b);
    all.real.a = heads_dot(heads_dot(sums.real.a, low, a.low), high, a.high);
    all.real.b = heads_dot(heads_dot(sums.real.b, low, b.low), high, b.high);
    return all;
}

// Adds the products of 32 channels, from channel `c` on.
fn plain_block(sums: PlainSums, a: vec4<u32>, b: vec4<u32>, c: u32) -> PlainSums {
    var all = plain_eight(sums, plain_code(a, 0u), plain_code(b, 0u), c);
    all = plain_eight(all, plain_code(a, 1u), plain_code(b, 1u), c + 8u);
    all = plain_eight(all, plain_code(a, 2u), plain_code(b, 2u), c + 16u);
    return plain_eight(all, plain_code(a, 3u), plain_code(b, 3u), c + 24u);
}

// Whether words of keys are read four at a time.
const PLAIN_VECTORS: bool = (HEAD_DIM & 127u) == 0u && KEY_BITS != 3u;
// Channels of a step, and words from one to the next.
const PLAIN_CHANNELS: u32 =
    select(32u, select(select(32u, 64u, KEY_BITS == 2u), 128u, KEY_BITS == 1u), PLAIN_VECTORS);
const PLAIN_ADVANCE: u32 = select(KEY_BITS, 4u, PLAIN_VECTORS);

fn plain_next_words(slab: u32, at: u32) -> vec4<u32> {
    if PLAIN_VECTORS {
        return plain_keys(slab, at);
    }
    return plain_words(slab, at);
}

// Adds the products of the channels of a step, from channel `c` on.
fn plain_step(sums: PlainSums, a: vec4<u32>, b: vec4<u32>, c: u32) -> PlainSums {
    var all = plain_block(sums, a, b, c);
    if PLAIN_CHANNELS == 64u {
        all = plain_block(all, a.zwzw, b.zwzw, c + 32u);
    } else if PLAIN_CHANNELS == 128u {
        all = plain_block(all, a.yyyy, b.yyyy, c + 32u);
        all = plain_block(all, a.zzzz, b.zzzz, c + 64u);
        all = plain_block(all, a.wwww, b.wwww, c + 96u);
    }
    return all;
}

fn plain_products(sums: PlainSums) -> PlainTwo {
    if KEY_BYTES == 0u {
        return sums.real;
    }
    return PlainTwo(
        (Real(sums.high_a) * 256.0 + Real(sums.low_a)) * plain_unit,
        (Real(sums.high_b) * 256.0 + Real(sums.low_b)) * plain_unit,
    );
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
    var t = plain_four_tokens(token);
    if PLAIN_EVEN == 0u {
        t = min(t, vec4<u32>(count - 1u));
    }
    let part = (t + start) * PLAIN_PARTS + own.piece;
    return PlainWords(
        plain_value_words(page.w, page.y, part.x), plain_value_words(page.w, page.y, part.y),
        plain_value_words(page.w, page.y, part.z), plain_value_words(page.w, page.y, part.w));
}

fn plain_four_tokens(first: u32) -> vec4<u32> {
    return vec4<u32>(
        first, first + PLAIN_GROUPS, first + 2u * PLAIN_GROUPS, first + 3u * PLAIN_GROUPS);
}

// The weights of four tokens, `PLAIN_GROUPS` apart, of page `number`; 0 from token `count` on.
fn plain_four_weights(number: u32, token: u32, count: u32) -> PlainFour {
    let t = plain_four_tokens(token);
    let first = number * 4u * params.packed.subs;
    if PLAIN_EVEN == 1u {
        return PlainFour(plain_weight[first + t.x], plain_weight[first + t.y],
            plain_weight[first + t.z], plain_weight[first + t.w]);
    }
    let at = min(t, vec4<u32>(count - 1u)) + first;
    return PlainFour(
        select(Real(0.0), plain_weight[at.x], Flag(t.x < count)),
        select(Real(0.0), plain_weight[at.y], Flag(t.y < count)),
        select(Real(0.0), plain_weight[at.z], Flag(t.z < count)),
        select(Real(0.0), plain_weight[at.w], Flag(t.w < count)),
    );
}

// Adds the values of tokens `start` to `start + count` of all pages, and of their means. The words of the
// next step are on their way while those at hand are decoded; the first are given.
fn plain_values(
    own: AttendLane,
    pages: u32,
    start: u32,
    count: u32,
    first: PlainWords,
    first_mean: u32,
    run: ptr<function, PlainRun>,
) {
    let step = 4u * PLAIN_GROUPS;
    let odd = (own.piece & 1u) == 1u;
    var words = first;
    var mean = first_mean;
    for (var number = 0u; number < pages; number++) {
        let live = (plain_flags[number] & PLAIN_SKIP) == 0u;
        let following = min(number + 1u, pages - 1u);
        let mean_coming = plain_mean_word(following, own.lane);
        if live {
            (*run).means.a = plain_mean((*run).means.a, number, own.lane, mean);
            if PLAIN_SPANS > 1u {
                (*run).means.b = plain_mean((*run).means.b, number, own.lane + SOFTMAX_LANES, plain_mean_word(number, own.lane + SOFTMAX_LANES));
            }
            if PLAIN_SPANS > 2u {
                (*run).means.c = plain_mean((*run).means.c, number, own.lane + 2u * SOFTMAX_LANES, plain_mean_word(number, own.lane + 2u * SOFTMAX_LANES));
            }
            if PLAIN_SPANS > 3u {
                (*run).means.d = plain_mean((*run).means.d, number, own.lane + 3u * SOFTMAX_LANES, plain_mean_word(number, own.lane + 3u * SOFTMAX_LANES));
            }
        }
        mean = mean_coming;
        for (var base = 0u; base < count; base += step) {
            let within = base + step < count;
            let next = select(following, number, within);
            let after = select(0u, base + step, within) + own.group;
            let coming = plain_value_four_words(own, next, start, after, count);
            if live {
                let weights = plain_four_weights(number, base + own.group, count);
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

// A lane's page among those at hand, and which of the page's tokens are its own: sub, sub + subs, ...
struct PlainMine {
    page: u32,
    sub: u32,
}

fn plain_mine(lane: u32) -> PlainMine {
    let page = divide_magic(lane, params.packed.subs_multiplier, params.packed.subs_shift1,
        params.packed.subs_shift2);
    return PlainMine(page, lane - page * params.packed.subs);
}

// Eight channels of the mean of a page's keys.
fn plain_key_means(page: vec4<u32>, piece: u32) -> AttendPiece {
    let c = 8u * piece;
    if packed_has(packed_key_form(), PACKED_FOUR) {
        let grid = grid_parts(packed_key(page, params.packed.key_grid + 2u));
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
    if KEY_BYTES == 1u {
        plain_split(lane, query);
    } else {
        packed_show(lane, query);
    }
    // A mean in the Hadamard domain meets the transformed query.
    let part = select(0u, HEAD_DIM, packed_has(packed_key_form(), PACKED_TURNED));
    plain_first = query * ATTEND_STRIDE + Whole(part);
    if PLAIN_SPARE {
        return;
    }
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[PLAIN_MEANS * HEADS_FOURS + i] = heads_four(plain_first, i);
    }
}

// Four channels of the queries that meet means.
fn plain_mean_query(c: u32) -> HeadsQuery {
    if PLAIN_SPARE {
        return heads_given(plain_first, c);
    }
    return heads_query(PLAIN_MEANS * HEAD_DIM + c);
}

// The queries' block.
fn plain_own(block: AttendBlock) -> AttendBlock {
    if PLAIN_SPARE {
        return plain_held;
    }
    return block;
}

// Puts the queries that meet the centroids before the workgroup as integers, the largest as large as
// both bytes hold.
fn plain_split(lane: u32, query: Whole) {
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
        var high = Whole(0u);
        var low = Whole(0u);
        for (var k = 0u; k < 4u; k++) {
            let channel = bitcast<Real>(heads_prepared(at + (4u * i + k)));
            let whole = Integer(round(channel * inverse));
            let upper = (whole + Integer(128)) >> Whole(8u);
            let lower = whole - upper * 256;
            high |= (bitcast<Whole>(upper) & Whole(255u)) << Whole(8u * k);
            low |= (bitcast<Whole>(lower) & Whole(255u)) << Whole(8u * k);
        }
        plain_high[i] = high;
        plain_low[i] = low;
    }
}

fn plain_logit(
    block: AttendBlock,
    mine: PlainMine,
    page: vec4<u32>,
    flags: u32,
    grids: vec4<f32>,
    codes: u32,
    token: u32,
    dot: Real,
) -> Real {
    let scales = plain_key_scales(page, grids, codes, token);
    let own = plain_own(block);
    let logit = attend_logit(own, scales.x * (scales.y * dot + plain_page[mine.page]));
    var seen = own.low <= own.high;
    if (flags & PLAIN_WHOLE) == 0u {
        seen = attend_seen(own, packed_position(page, token));
    }
    return select(Real(SOFTMAX_UNSEEN), logit, seen);
}

fn plain_weigh(logit: Real, top: Real) -> Real {
    let weight = softmax_power(logit - top) * SOFTMAX_FACTOR;
    return select(Real(0.0), weight, logit > Real(SOFTMAX_UNSEEN));
}

// The word that holds a channel of the mean of a page's values, where it has 4 bits.
fn plain_mean_word(number: u32, channel: u32) -> u32 {
    if !packed_has(packed_value_form(), PACKED_FOUR) {
        return 0u;
    }
    let held = min(channel, VALUE_DIM - 1u);
    return packed_value(plain_at[number], params.packed.value_o + (held >> 3u));
}

// Adds a channel of a page's mean.
fn plain_mean(sum: Real, number: u32, channel: u32, word: u32) -> Real {
    if channel >= params.attend.head_dim_v {
        return sum;
    }
    if packed_has(packed_value_form(), PACKED_FOUR) {
        return sum + plain_page[number] * grid_value(plain_grids[number], grid_nibble(word, channel));
    }
    return sum + plain_page[number] * packed_mean(plain_at[number], channel);
}

// Adds up what the lanes of a page left in softmax_scratch; lane `number` does for page `number`.
fn plain_sum(number: u32, filled: u32) -> Real {
    var sum = Real(0.0);
    for (var i = 0u; i < filled; i++) {
        sum += softmax_scratch[number * params.packed.subs + i];
    }
    return sum;
}

// As softmax_max, by way of plain_page, whose numbers must be done with; a barrier must follow before it is
// written to again.
fn plain_max(lane: u32, value: Real) -> Real {
    softmax_scratch[lane] = value;
    workgroupBarrier();
    if lane < SOFTMAX_ROWS {
        var best = value;
        for (var k = 1u; k < 8u; k++) {
            best = max(best, softmax_scratch[lane + k * SOFTMAX_ROWS]);
        }
        plain_page[lane] = best;
    }
    workgroupBarrier();
    var best = plain_page[0];
    for (var k = 1u; k < SOFTMAX_ROWS; k++) {
        best = max(best, plain_page[k]);
    }
    return best;
}

// Takes in tokens `start` to `start + count` of `pages` pages; several pages come with all their
// tokens. A lane is given its own page; the workgroup must have done with the pages before.
fn plain_round(
    own: AttendLane,
    mine: PlainMine,
    block: AttendBlock,
    page: vec4<u32>,
    flags: u32,
    pages: u32,
    start: u32,
    count: u32,
    run: ptr<function, PlainRun>,
) {
    let lane = own.lane;
    let live = mine.page < pages && (flags & PLAIN_SKIP) == 0u;
    let slot = 4u * mine.page * params.packed.subs;
    let last = start + count - 1u;
    let words = (HEAD_DIM >> 5u) * KEY_BITS;
    let key_codes = plain_key_codes(page, start + mine.sub, params.packed.subs, last);
    var value_codes = plain_value_codes_of_four(page, start + mine.sub, params.packed.subs, last);
    var at = page.x + words * min(start + vec2<u32>(mine.sub, mine.sub + params.packed.subs), vec2<u32>(last));
    var a = plain_next_words(page.w, at.x);
    var b = plain_next_words(page.w, at.y);
    var part = Real(0.0);
    if mine.page < pages {
        if mine.sub == 0u {
            plain_at[mine.page] = page;
            plain_flags[mine.page] = flags;
            let value = select(0u, params.packed.value_grid + 2u, packed_has(packed_value_form(), PACKED_FOUR));
            plain_grids[mine.page] = grid_parts(packed_value(page, value));
        }
        for (var piece = mine.sub; piece < HEAD_DIM / 8u; piece += params.packed.subs) {
            let mean = plain_key_means(page, piece);
            part = heads_dot(part, plain_mean_query(8u * piece), mean.low);
            part = heads_dot(part, plain_mean_query(8u * piece + 4u), mean.high);
        }
    }
    softmax_scratch[lane] = part;
    workgroupBarrier();
    if lane < pages {
        plain_page[lane] = plain_sum(lane, min(params.packed.subs, HEAD_DIM / 8u));
    }
    if live {
        for (var t = mine.sub; t < count; t += 2u * params.packed.subs) {
            let next = t + params.packed.subs;
            let after = page.x + words * min(start + vec2<u32>(next + params.packed.subs, next + 2u * params.packed.subs), vec2<u32>(last));
            var sums: PlainSums;
            for (var c = 0u; c < params.packed.head_dim; c += PLAIN_CHANNELS) {
                at = select(after, at + vec2<u32>(PLAIN_ADVANCE), c + PLAIN_CHANNELS < params.packed.head_dim);
                let x = plain_next_words(page.w, at.x);
                let y = plain_next_words(page.w, at.y);
                sums = plain_step(sums, a, b, c);
                a = x;
                b = y;
            }
            let dots = plain_products(sums);
            plain_weight[slot + t] = dots.a;
            plain_weight[slot + next] = dots.b;
        }
    }
    workgroupBarrier();

    var best = Real(SOFTMAX_UNSEEN);
    if live {
        let grids = plain_key_grids(page);
        var codes = key_codes;
        for (var t = mine.sub; t < count; t += params.packed.subs) {
            let logit = plain_logit(block, mine, page, flags, grids, codes, start + t, plain_weight[slot + t]);
            codes = codes >> 8u;
            plain_weight[slot + t] = logit;
            best = max(best, logit);
        }
    }
    let top = max((*run).top, plain_max(lane, best));
    let shrink = softmax_power((*run).top - top);
    (*run).top = top;
    var weights = (*run).weights * shrink;
    var sum = Real(0.0);
    if live {
        let grids = plain_value_grids(page);
        for (var t = mine.sub; t < count; t += params.packed.subs) {
            let weight = plain_weigh(plain_weight[slot + t], top);
            let scales = plain_value_scales(page, grids, value_codes, start + t);
            value_codes = value_codes >> 8u;
            weights += weight;
            let scaled = weight * scales.x;
            sum += scaled;
            plain_weight[slot + t] = scaled * (scales.y * select(1.0, PLAIN_UNIT, VALUE_BYTES == 1u));
        }
    }
    (*run).weights = weights;
    softmax_scratch[lane] = sum;
    let first = plain_value_four_words(own, 0u, start, own.group, count);
    let mean = plain_mean_word(0u, lane);
    workgroupBarrier();
    if lane < pages {
        plain_page[lane] = plain_sum(lane, params.packed.subs);
    }
    (*run).low = attend_shrink((*run).low, shrink);
    (*run).high = attend_shrink((*run).high, shrink);
    (*run).means.a *= shrink;
    if PLAIN_SPANS > 1u {
        (*run).means.b *= shrink;
        (*run).means.c *= shrink;
        (*run).means.d *= shrink;
    }
    workgroupBarrier();
    plain_values(own, pages, start, count, first, mean, run);
}

// Takes in the pages of a unit of `total`.
fn plain_pages(lane: u32, block: AttendBlock, total: u32) -> PlainRun {
    if lane == 0u {
        plain_held = block;
    }
    workgroupBarrier();
    let own = attend_lane(lane);
    let mine = plain_mine(lane);
    let chunk = params.packed.chunk;
    var run = plain_start();
    var id = plain_id(min(mine.page, max(total, 1u) - 1u));
    for (var first = 0u; first < total; first += PLAIN_PAGES) {
        let pages = min(total - first, PLAIN_PAGES);
        let page = plain_place(id);
        id = plain_id(min(first + PLAIN_PAGES + mine.page, total - 1u));
        let flags = plain_sight(plain_own(block), page);
        for (var start = 0u; start < chunk; start += params.packed.span) {
            let count = min(chunk - start, params.packed.span);
            workgroupBarrier();
            plain_round(own, mine, block, page, flags, pages, start, count, &run);
        }
    }
    return run;
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
        if !packed_has(packed_value_form(), PACKED_TURNED) {
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
    if own.group == 0u && packed_has(packed_value_form(), PACKED_TURNED) {
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
