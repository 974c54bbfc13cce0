// The search for the nearest centroids, four pieces of 8 channels at a time. Twin: Book::nearest of
// src/nsnquant/codebook.rs, with the same order of sums.
// Needs the bindings `book` (uniform, groups of four numbers) and `centroids` (the same in storage, where
// lanes may read different ones without taking turns) and the codec's constants
// (src/nsnquant/gpu/device.rs).

struct Piece {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn square_sum(piece: Piece) -> f32 {
    let a = piece.low * piece.low;
    let b = piece.high * piece.high;
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// The pieces that a lane searches for at once, so that one fetch of a centroid serves them all.
struct Four {
    a: Piece,
    b: Piece,
    c: Piece,
    d: Piece,
}

// Half the squared norm of a centroid, taken off its dot products; nothing in unit books.
fn half_square(piece: Piece) -> f32 {
    return select(0.0, 0.5 * square_sum(piece), PLAIN == 1u);
}

fn dot8(a: Piece, c: Piece, half: f32) -> f32 {
    var sum = a.low.x * c.low.x - half;
    sum += a.low.y * c.low.y;
    sum += a.low.z * c.low.z;
    sum += a.low.w * c.low.w;
    sum += a.high.x * c.high.x;
    sum += a.high.y * c.high.y;
    sum += a.high.z * c.high.z;
    return sum + a.high.w * c.high.w;
}

// Best scores so far, and the first rows of the groups that have them: of two rows of 8 channels, or four
// of fewer. Which row of a group it is comes out at the end, which takes fewer comparisons; groups of four
// rows of 8 channels want too many registers.
struct Best {
    scores: vec4<f32>,
    group: vec4<u32>,
}

fn best_none() -> Best {
    return Best(vec4<f32>(-3e38), vec4<u32>(0u));
}

fn best_of(best: Best, row: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> Best {
    let top = max(max(a, b), max(c, d));
    let group = select(best.group, vec4<u32>(row), top > best.scores);
    return Best(max(best.scores, top), group);
}

// Place of the largest of four scores, the first of equals.
fn first_of(scores: vec4<f32>) -> u32 {
    let low = select(0u, 1u, scores.y > scores.x);
    let high = select(2u, 3u, scores.w > scores.z);
    return select(low, high, max(scores.z, scores.w) > max(scores.x, scores.y));
}

fn scores8(row: u32, p: Four) -> vec4<f32> {
    let c = Piece(book[2u * row], book[2u * row + 1u]);
    let half = half_square(c);
    return vec4<f32>(dot8(p.a, c, half), dot8(p.b, c, half), dot8(p.c, c, half), dot8(p.d, c, half));
}

fn better8(best: Best, row: u32, p: Four) -> Best {
    let top = max(scores8(row, p), scores8(row + 1u, p));
    let group = select(best.group, vec4<u32>(row), top > best.scores);
    return Best(max(best.scores, top), group);
}

fn score8(row: u32, target_piece: Piece) -> f32 {
    let c = Piece(centroids[2u * row], centroids[2u * row + 1u]);
    return dot8(target_piece, c, half_square(c));
}

fn row8(group: u32, target_piece: Piece) -> u32 {
    return group + select(0u, 1u, score8(group + 1u, target_piece) > score8(group, target_piece));
}

// Indices of the centroids of 8 channels nearest to four pieces, the first of equals. Eight rows at a
// time, and other long loops go in steps too: llvmpipe lets an invocation go round its loops 65,535
// times in all and leaves them without a word after that; the largest chunks took twice as many.
fn nearest8(p: Four) -> vec4<u32> {
    var best = best_none();
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better8(best, row, p);
        best = better8(best, row + 2u, p);
        best = better8(best, row + 4u, p);
        best = better8(best, row + 6u, p);
    }
    let group = best.group;
    return vec4<u32>(row8(group.x, p.a), row8(group.y, p.b), row8(group.z, p.c), row8(group.w, p.d));
}

// Four targets, channel by channel.
struct Turned {
    x: vec4<f32>,
    y: vec4<f32>,
    z: vec4<f32>,
    w: vec4<f32>,
}

fn halves_of(a: Piece, b: Piece) -> Turned {
    return Turned(
        vec4<f32>(a.low.x, a.high.x, b.low.x, b.high.x),
        vec4<f32>(a.low.y, a.high.y, b.low.y, b.high.y),
        vec4<f32>(a.low.z, a.high.z, b.low.z, b.high.z),
        vec4<f32>(a.low.w, a.high.w, b.low.w, b.high.w),
    );
}

fn half4(c: vec4<f32>) -> f32 {
    let s = c * c;
    return 0.5 * ((s.x + s.y) + (s.z + s.w));
}

fn scores4(t: Turned, c: vec4<f32>, half: f32) -> vec4<f32> {
    return (((t.x * c.x - half) + t.y * c.y) + t.z * c.z) + t.w * c.w;
}

struct Both {
    low: Best,
    high: Best,
}

fn both4(best: Both, row: u32, low: Turned, high: Turned) -> Both {
    let a = book[row];
    let b = book[row + 1u];
    let c = book[row + 2u];
    let d = book[row + 3u];
    let half = vec4<f32>(half4(a), half4(b), half4(c), half4(d));
    return Both(
        best_of(best.low, row, scores4(low, a, half.x), scores4(low, b, half.y),
            scores4(low, c, half.z), scores4(low, d, half.w)),
        best_of(best.high, row, scores4(high, a, half.x), scores4(high, b, half.y),
            scores4(high, c, half.z), scores4(high, d, half.w)),
    );
}

fn score4(row: u32, t: vec4<f32>) -> f32 {
    let c = centroids[row];
    return (((t.x * c.x - half4(c)) + t.y * c.y) + t.z * c.z) + t.w * c.w;
}

fn row4(group: u32, t: vec4<f32>) -> u32 {
    return group + first_of(vec4<f32>(
        score4(group, t),
        score4(group + 1u, t),
        score4(group + 2u, t),
        score4(group + 3u, t),
    ));
}

// The same of 4 channels: two indices a piece.
fn nearest4(p: Four) -> vec4<u32> {
    let low = halves_of(p.a, p.b);
    let high = halves_of(p.c, p.d);
    var best = Both(best_none(), best_none());
    for (var row = 0u; row < ROWS; row += 8u) {
        best = both4(best, row, low, high);
        best = both4(best, row + 4u, low, high);
    }
    let a = best.low.group;
    let b = best.high.group;
    return vec4<u32>(
        row4(a.x, p.a.low) | (row4(a.y, p.a.high) << 8u),
        row4(a.z, p.b.low) | (row4(a.w, p.b.high) << 8u),
        row4(b.x, p.c.low) | (row4(b.y, p.c.high) << 8u),
        row4(b.z, p.d.low) | (row4(b.w, p.d.high) << 8u),
    );
}

// The pairs of channels of a piece.
struct Pairs {
    x: vec4<f32>,
    y: vec4<f32>,
}

fn pairs_of(p: Piece) -> Pairs {
    return Pairs(
        vec4<f32>(p.low.x, p.low.z, p.high.x, p.high.z),
        vec4<f32>(p.low.y, p.low.w, p.high.y, p.high.w),
    );
}

struct All {
    a: Best,
    b: Best,
    c: Best,
    d: Best,
}

fn scores2(p: Pairs, c: vec2<f32>, half: f32) -> vec4<f32> {
    return (p.x * c.x - half) + p.y * c.y;
}

// Four rows lie in eight numbers of the book.
fn better2(best: Best, row: u32, p: Pairs, ab: vec4<f32>, cd: vec4<f32>, half: vec4<f32>) -> Best {
    return best_of(
        best,
        row,
        scores2(p, ab.xy, half.x),
        scores2(p, ab.zw, half.y),
        scores2(p, cd.xy, half.z),
        scores2(p, cd.zw, half.w),
    );
}

fn halves2(ab: vec4<f32>, cd: vec4<f32>) -> vec4<f32> {
    let s = ab * ab;
    let t = cd * cd;
    return 0.5 * vec4<f32>(s.x + s.y, s.z + s.w, t.x + t.y, t.z + t.w);
}

fn all2(best: All, row: u32, a: Pairs, b: Pairs, c: Pairs, d: Pairs) -> All {
    let ab = book[row >> 1u];
    let cd = book[(row >> 1u) + 1u];
    let half = halves2(ab, cd);
    return All(
        better2(best.a, row, a, ab, cd, half),
        better2(best.b, row, b, ab, cd, half),
        better2(best.c, row, c, ab, cd, half),
        better2(best.d, row, d, ab, cd, half),
    );
}

fn row2(group: u32, x: f32, y: f32) -> u32 {
    let ab = centroids[group >> 1u];
    let cd = centroids[(group >> 1u) + 1u];
    let first = vec4<f32>(ab.x, ab.z, cd.x, cd.z);
    let second = vec4<f32>(ab.y, ab.w, cd.y, cd.w);
    return group + first_of((x * first - halves2(ab, cd)) + y * second);
}

fn rows2(group: vec4<u32>, p: Pairs) -> u32 {
    return row2(group.x, p.x.x, p.y.x)
        | (row2(group.y, p.x.y, p.y.y) << INDEX_BITS)
        | (row2(group.z, p.x.z, p.y.z) << (2u * INDEX_BITS))
        | (row2(group.w, p.x.w, p.y.w) << (3u * INDEX_BITS));
}

// The same of 2 channels: four indices a piece.
fn nearest2(p: Four) -> vec4<u32> {
    let a = pairs_of(p.a);
    let b = pairs_of(p.b);
    let c = pairs_of(p.c);
    let d = pairs_of(p.d);
    var best = All(best_none(), best_none(), best_none(), best_none());
    for (var row = 0u; row < ROWS; row += 8u) {
        best = all2(best, row, a, b, c, d);
        best = all2(best, row + 4u, a, b, c, d);
    }
    return vec4<u32>(
        rows2(best.a.group, a),
        rows2(best.b.group, b),
        rows2(best.c.group, c),
        rows2(best.d.group, d),
    );
}

// The indices of four pieces of 8 channels, lowest bits first.
fn nearest(p: Four) -> vec4<u32> {
    if WIDTH == 8u {
        return nearest8(p);
    }
    if WIDTH == 4u {
        return nearest4(p);
    }
    return nearest2(p);
}

fn centroid2(index: u32) -> vec2<f32> {
    let pair = centroids[index >> 1u];
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

// The centroids that a piece's indices stand for.
fn centroids_of(code: u32) -> Piece {
    if WIDTH == 8u {
        return Piece(centroids[2u * code], centroids[2u * code + 1u]);
    }
    if WIDTH == 4u {
        return Piece(centroids[code & 0xffu], centroids[code >> 8u]);
    }
    let mask = ROWS - 1u;
    return Piece(
        vec4<f32>(centroid2(code & mask), centroid2((code >> INDEX_BITS) & mask)),
        vec4<f32>(
            centroid2((code >> (2u * INDEX_BITS)) & mask),
            centroid2((code >> (3u * INDEX_BITS)) & mask),
        ),
    );
}
