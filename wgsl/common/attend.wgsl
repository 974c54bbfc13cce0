// What the attention kernels have in common: a block of four queries of one row, one a lane of a
// vec4; which keys they see; their running softmax; the partial result that comes of it.
//
// Wants HEAD_DIM, SOFTMAX_LANES (64 or 128), softmax.wgsl, divide.wgsl, the bindings
// prepared: array<u32> and partials: array<f32>, and params.attend.

struct AttendParams {
    // Queries of a row; those that this dispatch answers, and how many.
    per_row: u32,
    queries_first: u32,
    queries_end: u32,
    span: u32,
    // Numbers of a partial result, and the first one's place among all.
    stride: u32,
    slot_base: u32,
    head_dim_v: u32,
    // Pieces of 8 channels of a value, and how many tokens the lanes take at once.
    pieces_v: u32,
    groups: u32,
    pieces_multiplier: u32,
    pieces_shift1: u32,
    pieces_shift2: u32,
    causal: u32,
    window: u32,
    cap: f32,
    cap_inverse: f32,
    blocks: u32,
    blocks_multiplier: u32,
    blocks_shift1: u32,
    blocks_shift2: u32,
}

// Of each query: q' [d], H q' [d], limit, factor, power, last position that it sees.
const ATTEND_STRIDE: u32 = 2u * HEAD_DIM + 4u;
const ATTEND_PIECES: u32 = HEAD_DIM / 8u;
const ATTEND_NOWHERE: u32 = 0xffffffffu;

struct AttendBlock {
    query: vec4<u32>,
    // Place of each query's partial result in slot 0 of the dispatch.
    place: vec4<u32>,
    limit: vec4<f32>,
    factor: vec4<f32>,
    boost: vec4<u32>,
    // Positions seen: from low to high, none where low is above high.
    low: vec4<u32>,
    high: vec4<u32>,
}

// Eight channels of a key or a value.
struct AttendPiece {
    low: vec4<f32>,
    high: vec4<f32>,
}

// Sums of weighted channels of one piece.
struct AttendSums {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    e: vec4<f32>,
    f: vec4<f32>,
    g: vec4<f32>,
    h: vec4<f32>,
}

struct AttendRun {
    // Largest logit, the same in every lane, and the sum of the weights of this lane's tokens.
    top: vec4<f32>,
    weights: vec4<f32>,
    sums: AttendSums,
}

// What a tile does to the run before its values are added.
struct AttendStep {
    weight: vec4<f32>,
    shrink: vec4<f32>,
}

// A lane's part of the values: tokens group, group + groups, ... of a tile, channels of one piece.
struct AttendLane {
    lane: u32,
    group: u32,
    piece: u32,
    owns: bool,
}

var<workgroup> attend_query: array<vec4<f32>, HEAD_DIM>;
var<workgroup> attend_weight: array<vec4<f32>, SOFTMAX_LANES>;

fn attend_word(query: vec4<u32>, part: u32) -> vec4<u32> {
    let at = query * ATTEND_STRIDE + vec4<u32>(part);
    return vec4<u32>(prepared[at.x], prepared[at.y], prepared[at.z], prepared[at.w]);
}

fn attend_real(query: vec4<u32>, part: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(attend_word(query, part));
}

// Block number `block` of the dispatch's queries of a row; none of them where it is not live.
fn attend_block(row: u32, block: u32, live: bool) -> AttendBlock {
    let number = vec4<u32>(params.attend.queries_first + 4u * block) + vec4<u32>(0u, 1u, 2u, 3u);
    let wanted = (number < vec4<u32>(params.attend.queries_end)) & vec4<bool>(live);
    let own = min(number, vec4<u32>(params.attend.per_row - 1u));
    let place = (number - params.attend.queries_first) * params.attend.stride;
    var block_of: AttendBlock;
    block_of.query = vec4<u32>(row * params.attend.per_row) + own;
    block_of.place = select(vec4<u32>(ATTEND_NOWHERE), place, wanted);
    block_of.limit = attend_real(block_of.query, 2u * HEAD_DIM);
    block_of.factor = attend_real(block_of.query, 2u * HEAD_DIM + 1u);
    block_of.boost = attend_word(block_of.query, 2u * HEAD_DIM + 2u);
    let high = attend_word(block_of.query, 2u * HEAD_DIM + 3u);
    let narrow = (high >= vec4<u32>(params.attend.window)) & vec4<bool>(params.attend.causal != 0u);
    let low = select(vec4<u32>(0u), high - params.attend.window + 1u, narrow);
    block_of.low = select(vec4<u32>(1u), low, wanted);
    block_of.high = select(vec4<u32>(0u), high, wanted);
    return block_of;
}

// Puts part `part` of the queries, 0 or HEAD_DIM, before the workgroup. A barrier must follow.
fn attend_show(lane: u32, query: vec4<u32>, part: u32) {
    for (var c = lane; c < HEAD_DIM; c += SOFTMAX_LANES) {
        attend_query[c] = attend_real(query, part + c);
    }
}

fn attend_lane(lane: u32) -> AttendLane {
    let group = divide_magic(lane, params.attend.pieces_multiplier,
        params.attend.pieces_shift1, params.attend.pieces_shift2);
    let piece = lane - group * params.attend.pieces_v;
    return AttendLane(lane, group, piece, group < params.attend.groups);
}

// Whether any query of the block may see positions from `first` to `last`.
fn attend_reaches(block: AttendBlock, first: u32, last: u32) -> bool {
    let apart = (vec4<u32>(last) < block.low) | (vec4<u32>(first) > block.high);
    let none = block.low > block.high;
    return !all(apart | none);
}

fn attend_seen(block: AttendBlock, position: u32) -> vec4<bool> {
    return (vec4<u32>(position) >= block.low) & (vec4<u32>(position) <= block.high);
}

// Dot products of the queries shown, from channel `c` on, with a piece.
fn attend_dot(c: u32, piece: AttendPiece) -> vec4<f32> {
    var sum = attend_query[c] * piece.low.x;
    sum += attend_query[c + 1u] * piece.low.y;
    sum += attend_query[c + 2u] * piece.low.z;
    sum += attend_query[c + 3u] * piece.low.w;
    sum += attend_query[c + 4u] * piece.high.x;
    sum += attend_query[c + 5u] * piece.high.y;
    sum += attend_query[c + 6u] * piece.high.z;
    sum += attend_query[c + 7u] * piece.high.w;
    return sum;
}

fn attend_logit(block: AttendBlock, dot: vec4<f32>) -> vec4<f32> {
    let logit = softmax_logit(dot, block.limit, block.factor, block.boost);
    if params.attend.cap > 0.0 {
        return softmax_cap(logit, params.attend.cap, params.attend.cap_inverse);
    }
    return logit;
}

fn attend_start() -> AttendRun {
    var run: AttendRun;
    run.top = vec4<f32>(SOFTMAX_UNSEEN);
    run.weights = vec4<f32>(0.0);
    run.sums = attend_zero();
    return run;
}

fn attend_zero() -> AttendSums {
    let zero = vec4<f32>(0.0);
    return AttendSums(zero, zero, zero, zero, zero, zero, zero, zero);
}

fn attend_shrink(sums: AttendSums, by: vec4<f32>) -> AttendSums {
    return AttendSums(sums.a * by, sums.b * by, sums.c * by, sums.d * by,
        sums.e * by, sums.f * by, sums.g * by, sums.h * by);
}

fn attend_add(sums: AttendSums, weight: vec4<f32>, piece: AttendPiece) -> AttendSums {
    return AttendSums(
        sums.a + weight * piece.low.x,
        sums.b + weight * piece.low.y,
        sums.c + weight * piece.low.z,
        sums.d + weight * piece.low.w,
        sums.e + weight * piece.high.x,
        sums.f + weight * piece.high.y,
        sums.g + weight * piece.high.z,
        sums.h + weight * piece.high.w,
    );
}

// Takes in a tile, one token a lane.
fn attend_weigh(
    lane: u32,
    logit: vec4<f32>,
    seen: vec4<bool>,
    run: ptr<function, AttendRun>,
) -> AttendStep {
    let top = max((*run).top, softmax_max(lane, logit));
    let shrink = softmax_power((*run).top - top);
    let power = softmax_power(logit - top);
    let weight = select(vec4<f32>(0.0), power * SOFTMAX_FACTOR, seen);
    (*run).top = top;
    (*run).weights = (*run).weights * shrink + weight;
    (*run).sums = attend_shrink((*run).sums, shrink);
    return AttendStep(weight, shrink);
}

fn attend_store(place: vec4<u32>, channel: u32, value: vec4<f32>) {
    if place.x != ATTEND_NOWHERE {
        partials[place.x + channel] = value.x;
    }
    if place.y != ATTEND_NOWHERE {
        partials[place.y + channel] = value.y;
    }
    if place.z != ATTEND_NOWHERE {
        partials[place.z + channel] = value.z;
    }
    if place.w != ATTEND_NOWHERE {
        partials[place.w + channel] = value.w;
    }
}

fn attend_store_sums(place: vec4<u32>, c: u32, sums: AttendSums) {
    attend_store(place, c, sums.a);
    attend_store(place, c + 1u, sums.b);
    attend_store(place, c + 2u, sums.c);
    attend_store(place, c + 3u, sums.d);
    attend_store(place, c + 4u, sums.e);
    attend_store(place, c + 5u, sums.f);
    attend_store(place, c + 6u, sums.g);
    attend_store(place, c + 7u, sums.h);
}

// Places of the queries' partial results in a slot.
fn attend_place(block: AttendBlock, slot: u32) -> vec4<u32> {
    let first = (slot - params.attend.slot_base) * params.attend.span * params.attend.stride;
    return select(
        vec4<u32>(first) + block.place, block.place, block.place == vec4<u32>(ATTEND_NOWHERE));
}

// Writes the run's sums, from number `at` of the partial result on, its largest logit and the sum
// of its weights.
fn attend_finish(own: AttendLane, place: vec4<u32>, at: u32, run: AttendRun) {
    let total = softmax_sum(own.lane, run.weights);
    let count = params.attend.pieces_v;
    let groups = params.attend.groups;
    let sums = AttendSums(
        softmax_groups(own.lane, run.sums.a, count, groups),
        softmax_groups(own.lane, run.sums.b, count, groups),
        softmax_groups(own.lane, run.sums.c, count, groups),
        softmax_groups(own.lane, run.sums.d, count, groups),
        softmax_groups(own.lane, run.sums.e, count, groups),
        softmax_groups(own.lane, run.sums.f, count, groups),
        softmax_groups(own.lane, run.sums.g, count, groups),
        softmax_groups(own.lane, run.sums.h, count, groups),
    );
    if own.group == 0u {
        attend_store_sums(place, at + 8u * own.piece, sums);
    }
    if own.lane == 0u {
        attend_store(place, params.attend.head_dim_v, run.top);
        attend_store(place, params.attend.head_dim_v + 1u, total);
    }
}
