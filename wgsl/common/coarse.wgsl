// The nearest rows of a unit book of 8 channels, with a first look at all rows in 8 bits a channel: whole
// numbers, four products an instruction where a device has one for that. How far such a score may be off
// is known, so rows further below the best than that are out; the rest are compared as nearest.wgsl
// compares them. The same rows come out as there.
// Needs nearest.wgsl, load_target (encode.wgsl) and the codec's constants (src/nsnquant/gpu/device.rs).
// Behind the book's rows, `book` and `centroids` hold them in 8 bits, two words a row, and then what
// Book::coarse (src/nsnquant/codebook.rs) says of them.

// First group of four words of the rows in 8 bits, and that of their bounds.
const COARSE_ROWS: u32 = COARSE * 2u * ROWS;
const COARSE_BOUNDS: u32 = COARSE_ROWS + COARSE * (ROWS / 2u);
// Channels of a target go up to this. Rows and targets are never negative where signs are stored apart.
const COARSE_TOP: f32 = select(127.0, 254.0, SIGNS == 1u);
// 1.5 * 2^23: the nearest whole number comes out in the last bits of a sum.
const COARSE_ROUND: f32 = 12582912.0;
// Targets whose channels are all below this count as zeros.
const COARSE_NONE: f32 = 1e-35;
// Rows of a group, of which the highest score is kept.
const COARSE_GROUP: u32 = 8u;
// Groups whose highest scores are compared together. More take more registers than they are worth.
const COARSE_BLOCK: u32 = 2u;
// Whether the rows are in workgroup memory too, where lanes read different ones at once; the scales of the
// longest chunks leave no room for them.
const COARSE_HELD: u32 = select(0u, COARSE, SCALES <= 512u);

var<workgroup> wg_coarse: array<vec4<u32>, select(1u, ROWS / 2u, COARSE_HELD == 1u)>;

// Four targets.
struct Coarse {
    low: vec4<u32>,
    high: vec4<u32>,
    // By how much the score of the nearest row may lie below the highest.
    slack: vec4<i32>,
}

struct CoarseOne {
    low: u32,
    high: u32,
    slack: i32,
}

fn coarse_sum(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

fn coarse_pack(v: vec4<u32>) -> u32 {
    return (v.x & 255u) | ((v.y & 255u) << 8u) | ((v.z & 255u) << 16u) | (v.w << 24u);
}

// The whole numbers that stand in the last bits, of 9 bits at most.
fn coarse_whole(bits: vec4<u32>) -> vec4<f32> {
    return vec4<f32>(bitcast<vec4<i32>>(bits << vec4<u32>(20u)) >> vec4<u32>(20u));
}

fn coarse_one(p: Piece) -> CoarseOne {
    let most = max(abs(p.low), abs(p.high));
    let top = max(max(most.x, most.y), max(most.z, most.w));
    let none = top < COARSE_NONE;
    let factor = select(COARSE_TOP / top, 0.0, none);
    let low = p.low * factor;
    let high = p.high * factor;
    let low_bits = bitcast<vec4<u32>>(low + COARSE_ROUND);
    let high_bits = bitcast<vec4<u32>>(high + COARSE_ROUND);
    let low_rest = low - coarse_whole(low_bits);
    let high_rest = high - coarse_whole(high_bits);
    let rest = sqrt(coarse_sum(low_rest * low_rest + high_rest * high_rest));
    let sum = coarse_sum(low + high);
    let square = coarse_sum(low * low + high * high);
    let spread = sqrt(max(square - 0.125 * sum * sum, 0.0)) + 1.0;
    let bounds = book[COARSE_BOUNDS];
    let slack = rest * bounds.x + abs(sum) * bounds.y + spread * bounds.z + bounds.w;
    return CoarseOne(coarse_pack(low_bits), coarse_pack(high_bits), select(i32(slack), -64, none));
}

fn coarse_four(a: CoarseOne, b: CoarseOne, c: CoarseOne, d: CoarseOne) -> Coarse {
    return Coarse(
        vec4<u32>(a.low, b.low, c.low, d.low),
        vec4<u32>(a.high, b.high, c.high, d.high),
        vec4<i32>(a.slack, b.slack, c.slack, d.slack),
    );
}

fn coarse_dot(low: u32, high: u32, row_low: u32, row_high: u32) -> i32 {
    if SIGNS == 1u {
        return i32(dot4U8Packed(low, row_low) + dot4U8Packed(high, row_high));
    }
    return dot4I8Packed(low, row_low) + dot4I8Packed(high, row_high);
}

fn coarse_dots(c: Coarse, row_low: u32, row_high: u32) -> vec4<i32> {
    return vec4<i32>(
        coarse_dot(c.low.x, c.high.x, row_low, row_high),
        coarse_dot(c.low.y, c.high.y, row_low, row_high),
        coarse_dot(c.low.z, c.high.z, row_low, row_high),
        coarse_dot(c.low.w, c.high.w, row_low, row_high),
    );
}

// The higher of the scores so far and those of two rows, one after the other: there are devices that add and
// compare in one instruction.
fn coarse_two(c: Coarse, at: u32, highest: vec4<i32>) -> vec4<i32> {
    let rows = bitcast<vec4<u32>>(book[COARSE_ROWS + at]);
    let first = max(coarse_dots(c, rows.x, rows.y), highest);
    return max(coarse_dots(c, rows.z, rows.w), first);
}

// The highest scores of a group.
fn coarse_eight(c: Coarse, group: u32) -> vec4<i32> {
    let at = group * (COARSE_GROUP / 2u);
    let rows = bitcast<vec4<u32>>(book[COARSE_ROWS + at]);
    var highest = coarse_dots(c, rows.x, rows.y);
    highest = max(coarse_dots(c, rows.z, rows.w), highest);
    highest = coarse_two(c, at + 1u, highest);
    highest = coarse_two(c, at + 2u, highest);
    return coarse_two(c, at + 3u, highest);
}

// Brings the rows to workgroup memory, the four pairs of a group exchanged so that lanes which read the same
// pair of different groups meet in fewer banks. A barrier must stand before they are read.
fn coarse_hold(lane: u32) {
    if COARSE_HELD == 1u {
        for (var pair = lane; pair < ROWS / 2u; pair += HADAMARD_LANES) {
            wg_coarse[pair ^ ((pair >> 3u) & 3u)] = bitcast<vec4<u32>>(centroids[COARSE_ROWS + pair]);
        }
    }
}

// Pair `two` of the rows of a group.
fn coarse_pair(group: u32, two: u32) -> vec4<u32> {
    let pair = group * (COARSE_GROUP / 2u) + two;
    if COARSE_HELD == 1u {
        return wg_coarse[pair ^ ((group >> 1u) & 3u)];
    }
    return bitcast<vec4<u32>>(centroids[COARSE_ROWS + pair]);
}

fn coarse_pick(v: vec4<u32>, number: u32) -> u32 {
    let low = select(v.x, v.y, number == 1u);
    let high = select(v.z, v.w, number == 3u);
    return select(low, high, number > 1u);
}

// Number of the first of four that is not 0, or 3.
fn coarse_first(v: vec4<u32>) -> u32 {
    return select(select(3u, 2u, v.z != 0u), select(1u, 0u, v.x != 0u), (v.x | v.y) != 0u);
}

// Scores of the rows of a group of one target, as bits: which are no less than the limit.
fn coarse_near(low: u32, high: u32, group: u32, limit: i32) -> u32 {
    var near = 0u;
    for (var two = 0u; two < COARSE_GROUP / 2u; two++) {
        let rows = coarse_pair(group, two);
        let first = coarse_dot(low, high, rows.x, rows.y) >= limit;
        let second = coarse_dot(low, high, rows.z, rows.w) >= limit;
        near |= (select(0u, 1u, first) | select(0u, 2u, second)) << (2u * two);
    }
    return near;
}

// Puts before the marks of later groups whether a score is no less than the limit: the sign of what it is
// above, which no comparison takes so few instructions for.
fn coarse_mark(groups: vec4<u32>, score: vec4<i32>, limit: vec4<i32>) -> vec4<u32> {
    return (groups << vec4<u32>(1u)) | (bitcast<vec4<u32>>(limit - score - 1) >> vec4<u32>(31u));
}

// Indices of the rows nearest to the lane's four pieces, the first of equals.
fn coarse_nearest(lane: u32) -> vec4<u32> {
    let four = coarse_four(
        coarse_one(load_target(lane, 0u)),
        coarse_one(load_target(lane, 1u)),
        coarse_one(load_target(lane, 2u)),
        coarse_one(load_target(lane, 3u)),
    );
    // Groups that come near enough to the highest score so far, the last ones first; all before are out
    // where one is far above.
    var top = vec4<i32>(-0x7fffffff);
    var groups = vec4<u32>(0u);
    for (var done = COARSE_BLOCK; done <= ROWS / COARSE_GROUP; done += COARSE_BLOCK) {
        let group = ROWS / COARSE_GROUP - done;
        let even = coarse_eight(four, group);
        let odd = coarse_eight(four, group + 1u);
        let before = top;
        top = max(top, max(even, odd));
        let least = top - four.slack;
        groups = select(groups, vec4<u32>(0u), least > before);
        groups = coarse_mark(groups, odd, least);
        groups = coarse_mark(groups, even, least);
    }
    let limit = top - four.slack;
    return coarse_settle(lane, four, limit, groups);
}

// Rows that are to be compared, in entries of 16 bits (piece, group, 8 bits for its rows); the latest last.
struct CoarseQueue {
    words: vec4<u32>,
    count: u32,
}

const COARSE_QUEUE: u32 = 8u;

fn coarse_push(q: CoarseQueue, entry: u32) -> CoarseQueue {
    let before = vec4<u32>(entry << 16u, q.words.xyz);
    let words = (q.words << vec4<u32>(16u)) | (before >> vec4<u32>(16u));
    return CoarseQueue(words, q.count + 1u);
}

fn coarse_drop(q: CoarseQueue) -> CoarseQueue {
    let above = vec4<u32>(q.words.yzw, 0u);
    let words = (q.words >> vec4<u32>(16u)) | (above << vec4<u32>(16u));
    return CoarseQueue(words, q.count - 1u);
}

// Which of two rows is nearer to a target, the first of equals.
fn coarse_nearer(own: u32, other: u32, target_piece: Piece) -> u32 {
    let a = score8(own, target_piece);
    let b = score8(other, target_piece);
    return select(own, other, b > a || (b == a && other < own));
}

// The nearest rows among those of the groups whose bits are set that are within the limits.
fn coarse_settle(lane: u32, four: Coarse, limit: vec4<i32>, within: vec4<u32>) -> vec4<u32> {
    let numbers = vec4<u32>(0u, 1u, 2u, 3u);
    let limits = bitcast<vec4<u32>>(limit);
    // The first group of every piece, side by side; most have no other.
    let first = firstTrailingBit(max(within, vec4<u32>(1u)));
    var near_first = vec4<u32>(
        coarse_near(four.low.x, four.high.x, first.x, limit.x),
        coarse_near(four.low.y, four.high.y, first.y, limit.y),
        coarse_near(four.low.z, four.high.z, first.z, limit.z),
        coarse_near(four.low.w, four.high.w, first.w, limit.w),
    );
    // The first row needs no comparison as long as there is no other.
    let none = near_first == vec4<u32>(0u);
    let rows = COARSE_GROUP * first + firstTrailingBit(near_first);
    var found = select(rows, vec4<u32>(ROWS), none);
    near_first = select(near_first & (near_first - 1u), vec4<u32>(0u), none);
    var groups = select(within & (within - 1u), vec4<u32>(0u), within == vec4<u32>(0u));
    var queue = CoarseQueue(vec4<u32>(0u), 0u);
    let entries = (numbers << vec4<u32>(13u)) | (first << vec4<u32>(8u)) | near_first;
    if near_first.x != 0u {
        queue = coarse_push(queue, entries.x);
    }
    if near_first.y != 0u {
        queue = coarse_push(queue, entries.y);
    }
    if near_first.z != 0u {
        queue = coarse_push(queue, entries.z);
    }
    if near_first.w != 0u {
        queue = coarse_push(queue, entries.w);
    }
    // More than once only where the queue overflows.
    for (var round = 0u; round < 4u * ROWS / (COARSE_GROUP * COARSE_QUEUE); round++) {
        for (var i = 0u; i < 4u * ROWS / COARSE_GROUP; i++) {
            let number = coarse_first(groups);
            let left = coarse_pick(groups, number);
            if left == 0u || queue.count == COARSE_QUEUE {
                break;
            }
            let own = vec4<u32>(number) == numbers;
            let group = firstTrailingBit(left);
            groups = select(groups, vec4<u32>(left & (left - 1u)), own);
            var near = coarse_near(
                coarse_pick(four.low, number),
                coarse_pick(four.high, number),
                group,
                bitcast<i32>(coarse_pick(limits, number)),
            );
            if near != 0u && coarse_pick(found, number) == ROWS {
                let row = COARSE_GROUP * group + firstTrailingBit(near);
                found = select(found, vec4<u32>(row), own);
                near &= near - 1u;
            }
            if near != 0u {
                queue = coarse_push(queue, (number << 13u) | (group << 8u) | near);
            }
        }
        for (var i = 0u; i < COARSE_QUEUE * COARSE_GROUP; i++) {
            if queue.count == 0u {
                break;
            }
            let near = queue.words.x & 255u;
            let group = (queue.words.x >> 8u) & 31u;
            let number = (queue.words.x >> 13u) & 3u;
            let row = COARSE_GROUP * group + firstTrailingBit(near);
            let nearer = coarse_nearer(coarse_pick(found, number), row, load_target(lane, number));
            found = select(found, vec4<u32>(nearer), vec4<u32>(number) == numbers);
            if (near & (near - 1u)) == 0u {
                queue = coarse_drop(queue);
            } else {
                queue.words.x &= queue.words.x - 1u;
            }
        }
        if all(groups == vec4<u32>(0u)) {
            break;
        }
    }
    // Nothing is near a target of zeros.
    return select(found, vec4<u32>(0u), found == vec4<u32>(ROWS));
}
