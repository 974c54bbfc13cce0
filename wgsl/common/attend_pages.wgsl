// What kernels over packed pages of plain books have in common, whether they multiply floats
// (attend_plain.wgsl) or integers (attend_bytes.wgsl): a few pages at a time, in rounds of four tokens a lane;
// first a lane is its tokens, whose logits it makes and weighs; then a lane is some channels of every
// `groups`-th token.
//
// Needs attend.wgsl, attend_page.wgsl and plain.wgsl. Head dimensions are multiples of 32.
//
// Wants SOFTMAX_LANES (64 or 128), HEAD_DIM, PLAIN_PAGES (most pages at a time, 1 to 16), PLAIN_PART (channels
// of a value that a lane adds, 16 or 8); packed_position (page, token) -> u32; of the kernel itself plain_subs, a
// quarter of a round's tokens of a page, plain_round, plain_mean_query (c) -> HeadsQuery, four channels of the queries that meet means, and plain_leave and
// plain_left, which put a number before the workgroup and take it, PLAIN_TOGETHER (4 or 2) times
// SOFTMAX_LANES of them at least.

// Whether workgroup memory and registers are to be spared: with four queries fewer workgroups than could
// hide how long memory takes have room side by side. Then queries that meet means are read where they
// lie, and the block lies in workgroup memory.
const PLAIN_SPARE: bool = HEADS > 2u;
// Where the queries that meet means start.
var<private> plain_first: Whole;
// Parts of a value, and tokens that the lanes take at once.
const PLAIN_PARTS: u32 = VALUE_DIM / PLAIN_PART;
const PLAIN_GROUPS: u32 = max(SOFTMAX_LANES / PLAIN_PARTS, 1u);
// Channels of the mean of a page's values that a lane adds.
const PLAIN_SPANS: u32 = (VALUE_DIM + SOFTMAX_LANES - 1u) / SOFTMAX_LANES;
// Largest logits that all lanes look at.
const PLAIN_TOPS: u32 = 8u;
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

struct PlainRun {
    top: Real,
    weights: Real,
    // Sums of the lane's channels of centroids, the second eight only with 16 channels a lane.
    low: AttendSums,
    high: AttendSums,
    // Sums of the means of channels lane, lane + lanes, ...
    means: PlainFour,
}

var<workgroup> plain_held: AttendBlock;
// Of each page: where it lies, what it is skipped for, and what its mean adds to a logit or how much
// of its mean is added to the values.
var<workgroup> plain_at: array<vec4<u32>, PLAIN_PAGES>;
var<workgroup> plain_flags: array<u32, PLAIN_PAGES>;
// Between the two, the largest logits of some lanes.
var<workgroup> plain_page: array<Real, max(PLAIN_PAGES, PLAIN_TOPS)>;
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
    return PlainMine(page, lane - page * plain_subs());
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

// Where the queries that meet means start: a mean in the Hadamard domain meets the transformed query.
fn plain_mean_first(query: Whole) -> Whole {
    let part = select(0u, HEAD_DIM, packed_has(packed_key_form(), PACKED_TURNED));
    return query * ATTEND_STRIDE + Whole(part);
}

// The queries' block.
fn plain_own(block: AttendBlock) -> AttendBlock {
    if PLAIN_SPARE {
        return plain_held;
    }
    return block;
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
    if VALUE_DIM % SOFTMAX_LANES != 0u && channel >= VALUE_DIM {
        return sum;
    }
    if packed_has(packed_value_form(), PACKED_FOUR) {
        return sum + plain_page[number] * grid_value(plain_grids[number], grid_nibble(word, channel));
    }
    return sum + plain_page[number] * packed_mean(plain_at[number], channel);
}

// Adds the mean of page `number`, whose first word for the lane is given.
fn plain_add_means(run: ptr<function, PlainRun>, number: u32, lane: u32, word: u32) {
    (*run).means.a = plain_mean((*run).means.a, number, lane, word);
    if PLAIN_SPANS > 1u {
        let c = lane + SOFTMAX_LANES;
        (*run).means.b = plain_mean((*run).means.b, number, c, plain_mean_word(number, c));
    }
    if PLAIN_SPANS > 2u {
        let c = lane + 2u * SOFTMAX_LANES;
        (*run).means.c = plain_mean((*run).means.c, number, c, plain_mean_word(number, c));
    }
    if PLAIN_SPANS > 3u {
        let c = lane + 3u * SOFTMAX_LANES;
        (*run).means.d = plain_mean((*run).means.d, number, c, plain_mean_word(number, c));
    }
}

fn plain_shrink(run: ptr<function, PlainRun>, shrink: Real) {
    (*run).low = attend_shrink((*run).low, shrink);
    if PLAIN_PART == 16u {
        (*run).high = attend_shrink((*run).high, shrink);
    }
    (*run).means.a *= shrink;
    if PLAIN_SPANS > 1u {
        (*run).means.b *= shrink;
        (*run).means.c *= shrink;
        (*run).means.d *= shrink;
    }
}

// Products of the queries that meet means with a lane's pieces of the mean of its page's keys.
fn plain_mean_dots(mine: PlainMine, page: vec4<u32>) -> Real {
    var sum = Real(0.0);
    for (var piece = mine.sub; piece < HEAD_DIM / 8u; piece += params.packed.subs) {
        let mean = plain_key_means(page, piece);
        sum = heads_dot(sum, plain_mean_query(8u * piece), mean.low);
        sum = heads_dot(sum, plain_mean_query(8u * piece + 4u), mean.high);
    }
    return sum;
}

// Where the mean of a page's values has its grid.
fn plain_mean_grid(page: vec4<u32>) -> vec2<f32> {
    let at = select(0u, params.packed.value_grid + 2u, packed_has(packed_value_form(), PACKED_FOUR));
    return grid_parts(packed_value(page, at));
}

// Adds up what the lanes of a page left in softmax_scratch; lane `number` does for page `number`.
fn plain_sum(number: u32, filled: u32) -> Real {
    var sum = Real(0.0);
    for (var i = 0u; i < filled; i++) {
        sum += softmax_scratch[number * plain_subs() + i];
    }
    return sum;
}

// As softmax_max, by way of plain_page, whose numbers must be done with; a barrier must follow before it is
// written to again.
fn plain_max(lane: u32, value: Real) -> Real {
    softmax_scratch[lane] = value;
    workgroupBarrier();
    if lane < PLAIN_TOPS {
        var best = value;
        for (var k = 1u; k < SOFTMAX_LANES / PLAIN_TOPS; k++) {
            best = max(best, softmax_scratch[lane + k * PLAIN_TOPS]);
        }
        plain_page[lane] = best;
    }
    workgroupBarrier();
    var best = plain_page[0];
    for (var k = 1u; k < PLAIN_TOPS; k++) {
        best = max(best, plain_page[k]);
    }
    return best;
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

// Adds up what lanes have of every part, PLAIN_TOGETHER channels at a time: one loop, since code that runs
// once costs what it takes to fetch it.
fn plain_store(own: AttendLane, place: Whole, at: u32, run: PlainRun) {
    var low = run.low;
    var high = run.high;
    let parts = params.attend.pieces_v;
    // A parameter bounds the loop, so that it stays one.
    let steps = divide_magic(params.attend.head_dim_v, params.attend.pieces_multiplier,
        params.attend.pieces_shift1, params.attend.pieces_shift2);
    for (var base = 0u; base < steps; base += PLAIN_TOGETHER) {
        plain_leave(own.lane, low.a);
        plain_leave(own.lane + SOFTMAX_LANES, low.b);
        if PLAIN_TOGETHER == 4u {
            plain_leave(own.lane + 2u * SOFTMAX_LANES, low.c);
            plain_leave(own.lane + 3u * SOFTMAX_LANES, low.d);
        }
        workgroupBarrier();
        for (var i = own.lane; i < PLAIN_TOGETHER * parts; i += SOFTMAX_LANES) {
            let channel = i & (PLAIN_TOGETHER - 1u);
            let part = i >> (PLAIN_TOGETHER / 2u);
            let first = channel * SOFTMAX_LANES + part;
            var sum = plain_left(first);
            for (var group = 1u; group < PLAIN_GROUPS; group++) {
                sum += plain_left(first + group * PLAIN_PARTS);
            }
            heads_store(place, at + PLAIN_PART * part + base + channel, sum);
        }
        workgroupBarrier();
        if PLAIN_TOGETHER == 4u {
            low = AttendSums(low.e, low.f, low.g, low.h, high.a, high.b, high.c, high.d);
            high = AttendSums(high.e, high.f, high.g, high.h, high.a, high.b, high.c, high.d);
        } else {
            low = AttendSums(low.c, low.d, low.e, low.f, low.g, low.h, low.a, low.b);
        }
    }
}

fn plain_mean_store(place: Whole, channel: u32, mean: Real) {
    if channel < params.attend.head_dim_v {
        plain_leave(channel, mean);
        if !packed_has(packed_value_form(), PACKED_TURNED) {
            heads_store(place, channel, mean);
        }
    }
}

fn plain_left_eight(c: u32) -> AttendSums {
    return AttendSums(plain_left(c), plain_left(c + 1u), plain_left(c + 2u), plain_left(c + 3u),
        plain_left(c + 4u), plain_left(c + 5u), plain_left(c + 6u), plain_left(c + 7u));
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
        let c = PLAIN_PART * own.piece;
        low = attend_join(low, plain_left_eight(c));
        if PLAIN_PART == 16u {
            high = attend_join(high, plain_left_eight(c + 8u));
        }
    }
    workgroupBarrier();
    var sums = run;
    sums.low = low;
    sums.high = high;
    plain_store(own, place, params.attend.head_dim_v + 2u, sums);
    if lane == 0u {
        heads_store(place, params.attend.head_dim_v, run.top);
        heads_store(place, params.attend.head_dim_v + 1u, total);
    }
}
