// The search for the nearest centroids, two pieces of 8 channels at a time. Twin: Book::nearest of
// src/nsnquant/codebook.rs, with the same order of sums.
// Needs the binding `book` (groups of four numbers) and the codec's constants
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

struct Best8 {
    scores: vec2<f32>,
    index: vec2<u32>,
}

fn better8(best: Best8, row: u32, a: Piece, b: Piece) -> Best8 {
    let c = Piece(book[2u * row], book[2u * row + 1u]);
    let half = half_square(c);
    let scores = vec2<f32>(dot8(a, c, half), dot8(b, c, half));
    let better = scores > best.scores;
    let rows = vec2<u32>(row);
    return Best8(select(best.scores, scores, better), select(best.index, rows, better));
}

// Indices of the centroids of 8 channels nearest to two pieces, the first of equals. Eight rows at a
// time, and other long loops go in steps too: llvmpipe lets an invocation go round its loops 65,535
// times in all and leaves them without a word after that; the largest chunks took twice as many.
fn nearest8(a: Piece, b: Piece) -> vec2<u32> {
    var best = Best8(vec2<f32>(-3e38), vec2<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better8(best, row, a, b);
        best = better8(best, row + 1u, a, b);
        best = better8(best, row + 2u, a, b);
        best = better8(best, row + 3u, a, b);
        best = better8(best, row + 4u, a, b);
        best = better8(best, row + 5u, a, b);
        best = better8(best, row + 6u, a, b);
        best = better8(best, row + 7u, a, b);
    }
    return best.index;
}

struct Best4 {
    scores: vec4<f32>,
    index: vec4<u32>,
}

fn better4(best: Best4, row: u32, x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32>) -> Best4 {
    let c = book[row];
    let s = c * c;
    let half = 0.5 * ((s.x + s.y) + (s.z + s.w));
    let scores = (((x * c.x - half) + y * c.y) + z * c.z) + w * c.w;
    let better = scores > best.scores;
    let rows = vec4<u32>(row);
    return Best4(select(best.scores, scores, better), select(best.index, rows, better));
}

// The same of 4 channels: two indices a piece.
fn nearest4(a: Piece, b: Piece) -> vec2<u32> {
    let x = vec4<f32>(a.low.x, a.high.x, b.low.x, b.high.x);
    let y = vec4<f32>(a.low.y, a.high.y, b.low.y, b.high.y);
    let z = vec4<f32>(a.low.z, a.high.z, b.low.z, b.high.z);
    let w = vec4<f32>(a.low.w, a.high.w, b.low.w, b.high.w);
    var best = Best4(vec4<f32>(-3e38), vec4<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better4(best, row, x, y, z, w);
        best = better4(best, row + 1u, x, y, z, w);
        best = better4(best, row + 2u, x, y, z, w);
        best = better4(best, row + 3u, x, y, z, w);
        best = better4(best, row + 4u, x, y, z, w);
        best = better4(best, row + 5u, x, y, z, w);
        best = better4(best, row + 6u, x, y, z, w);
        best = better4(best, row + 7u, x, y, z, w);
    }
    let index = best.index;
    return vec2<u32>(index.x | (index.y << 8u), index.z | (index.w << 8u));
}

struct Best2 {
    a: vec4<f32>,
    b: vec4<f32>,
    index_a: vec4<u32>,
    index_b: vec4<u32>,
}

// The channels of two pieces, by their place in a centroid.
struct Pairs {
    ax: vec4<f32>,
    ay: vec4<f32>,
    bx: vec4<f32>,
    by: vec4<f32>,
}

fn better2(best: Best2, row: u32, p: Pairs, c: vec2<f32>) -> Best2 {
    let s = c * c;
    let half = 0.5 * (s.x + s.y);
    let a = (p.ax * c.x - half) + p.ay * c.y;
    let b = (p.bx * c.x - half) + p.by * c.y;
    let better_a = a > best.a;
    let better_b = b > best.b;
    let rows = vec4<u32>(row);
    return Best2(
        select(best.a, a, better_a),
        select(best.b, b, better_b),
        select(best.index_a, rows, better_a),
        select(best.index_b, rows, better_b),
    );
}

// Two rows lie in four numbers of the book.
fn better2_both(best: Best2, row: u32, p: Pairs) -> Best2 {
    let both = book[row >> 1u];
    return better2(better2(best, row, p, both.xy), row + 1u, p, both.zw);
}

fn join(index: vec4<u32>) -> u32 {
    return index.x | (index.y << INDEX_BITS) | (index.z << (2u * INDEX_BITS))
        | (index.w << (3u * INDEX_BITS));
}

// The same of 2 channels: four indices a piece.
fn nearest2(a: Piece, b: Piece) -> vec2<u32> {
    let p = Pairs(
        vec4<f32>(a.low.x, a.low.z, a.high.x, a.high.z),
        vec4<f32>(a.low.y, a.low.w, a.high.y, a.high.w),
        vec4<f32>(b.low.x, b.low.z, b.high.x, b.high.z),
        vec4<f32>(b.low.y, b.low.w, b.high.y, b.high.w),
    );
    let least = vec4<f32>(-3e38);
    var best = Best2(least, least, vec4<u32>(0u), vec4<u32>(0u));
    for (var row = 0u; row < ROWS; row += 8u) {
        best = better2_both(best, row, p);
        best = better2_both(best, row + 2u, p);
        best = better2_both(best, row + 4u, p);
        best = better2_both(best, row + 6u, p);
    }
    return vec2<u32>(join(best.index_a), join(best.index_b));
}

// The indices of two pieces of 8 channels, lowest bits first.
fn nearest(a: Piece, b: Piece) -> vec2<u32> {
    if WIDTH == 8u {
        return nearest8(a, b);
    }
    if WIDTH == 4u {
        return nearest4(a, b);
    }
    return nearest2(a, b);
}

fn row2(index: u32) -> vec2<f32> {
    let pair = book[index >> 1u];
    return select(pair.xy, pair.zw, (index & 1u) == 1u);
}

// The centroids that a piece's indices stand for.
fn centroids_of(code: u32) -> Piece {
    if WIDTH == 8u {
        return Piece(book[2u * code], book[2u * code + 1u]);
    }
    if WIDTH == 4u {
        return Piece(book[code & 0xffu], book[code >> 8u]);
    }
    let mask = ROWS - 1u;
    return Piece(
        vec4<f32>(row2(code & mask), row2((code >> INDEX_BITS) & mask)),
        vec4<f32>(row2((code >> (2u * INDEX_BITS)) & mask), row2((code >> (3u * INDEX_BITS)) & mask)),
    );
}
