// Packed pages of plain books by products of floats: a round of attend_pages.wgsl in which books are f16.
//
// Needs attend_pages.wgsl and what it needs.
//
// Wants plain_keys (slab, at) -> vec4<u32>, four words of keys, and PLAIN_EVEN (1 where the lanes, all of
// them, take every round in steps of as many tokens).

// The queries that meet the centroids and behind them those that meet the means of pages, unless they are
// read where they lie.
const HEADS_PARTS: u32 = select(2u, 1u, PLAIN_SPARE);
const PLAIN_TOGETHER: u32 = 4u;

var<workgroup> plain_weight: array<Real, PLAIN_ROUND>;

// A parameter, so that loops that step by it stay loops.
fn plain_subs() -> u32 {
    return params.packed.subs;
}

fn plain_leave(at: u32, value: Real) {
    plain_weight[at] = value;
}

fn plain_left(at: u32) -> Real {
    return plain_weight[at];
}

// Puts the queries before the workgroup. A barrier must follow.
fn plain_show(lane: u32, query: Whole) {
    packed_show(lane, query);
    plain_first = plain_mean_first(query);
    if PLAIN_SPARE {
        return;
    }
    for (var i = lane; i < HEADS_FOURS; i += SOFTMAX_LANES) {
        heads_shown[HEADS_FOURS + i] = heads_four(plain_first, i);
    }
}

fn plain_mean_query(c: u32) -> HeadsQuery {
    if PLAIN_SPARE {
        return heads_given(plain_first, c);
    }
    return heads_query(HEAD_DIM + c);
}

// Products of two tokens with centroids.
struct PlainTwo {
    a: Real,
    b: Real,
}

// Adds the products of eight channels, from channel `c` on.
fn plain_eight(sums: PlainTwo, code_a: u32, code_b: u32, c: u32) -> PlainTwo {
    let low = heads_query(c);
    let high = heads_query(c + 4u);
    let a = plain_key_halves(code_a);
    let b = plain_key_halves(code_b);
    return PlainTwo(
        heads_dot(heads_dot(sums.a, low, a.low), high, a.high),
        heads_dot(heads_dot(sums.b, low, b.low), high, b.high),
    );
}

// Adds the products of 32 channels, from channel `c` on.
fn plain_block(sums: PlainTwo, a: vec4<u32>, b: vec4<u32>, c: u32) -> PlainTwo {
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
fn plain_step(sums: PlainTwo, a: vec4<u32>, b: vec4<u32>, c: u32) -> PlainTwo {
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
            plain_add_means(run, number, own.lane, mean);
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
            plain_grids[mine.page] = plain_mean_grid(page);
        }
        part = plain_mean_dots(mine, page);
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
            var sums: PlainTwo;
            for (var c = 0u; c < params.packed.head_dim; c += PLAIN_CHANNELS) {
                at = select(after, at + vec2<u32>(PLAIN_ADVANCE), c + PLAIN_CHANNELS < params.packed.head_dim);
                let x = plain_next_words(page.w, at.x);
                let y = plain_next_words(page.w, at.y);
                sums = plain_step(sums, a, b, c);
                a = x;
                b = y;
            }
            plain_weight[slot + t] = sums.a;
            plain_weight[slot + next] = sums.b;
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
            plain_weight[slot + t] = scaled * scales.y;
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
    plain_shrink(run, shrink);
    workgroupBarrier();
    plain_values(own, pages, start, count, first, mean, run);
}
