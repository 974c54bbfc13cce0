// The rotary embedding of src/nsnquant/rope.rs: the same integers and polynomials as there.
// Needs divide.wgsl, HEAD_DIM, ROPE (whether there is one) and the binding
// rope: array<vec4<u32>, HEAD_DIM / 4 + 1> (uniform): first the number of pairs that lie in halves, then
// low and high words of each pair's turns in 2^-64.

// Radians of 2^-32 turns.
const ROPE_RADIANS: f32 = 1.4629181e-9;

struct RopePlace {
    pair: u32,
    // The channel that it turns with, and whether it is the first of the two.
    other: u32,
    first: bool,
}

// Where a channel stands.
fn rope_place(channel: u32) -> RopePlace {
    let halves = rope[0].x;
    if channel < 2u * halves {
        let first = channel < halves;
        let pair = select(channel - halves, channel, first);
        return RopePlace(pair, select(pair, channel + halves, first), first);
    }
    return RopePlace(channel >> 1u, channel ^ 1u, (channel & 1u) == 0u);
}

// Channels of a pair.
fn rope_channels(pair: u32) -> vec2<u32> {
    let halves = rope[0].x;
    return select(vec2<u32>(2u * pair, 2u * pair + 1u), vec2<u32>(pair, pair + halves), pair < halves);
}

// Cosine and sine of the angle of a pair at a position.
fn rope_turn(pair: u32, position: u32) -> vec2<f32> {
    let four = rope[1u + (pair >> 1u)];
    let turns = select(four.xy, four.zw, (pair & 1u) == 1u);
    let phase = turns.y * position + divide_high(turns.x, position);
    let quarter = (phase + 0x20000000u) >> 30u;
    let x = f32(bitcast<i32>(phase - (quarter << 30u))) * ROPE_RADIANS;
    let z = x * x;
    let sine = ((-1.9515296e-4 * z + 8.332161e-3) * z - 0.16666655) * z * x + x;
    let cosine = ((2.4433157e-5 * z - 1.3887316e-3) * z + 4.1666646e-2) * (z * z) - 0.5 * z + 1.0;
    let odd = (quarter & 1u) == 1u;
    let flips = vec2<bool>(quarter == 1u || quarter == 2u, quarter > 1u);
    let turn = select(vec2<f32>(cosine, sine), vec2<f32>(sine, cosine), odd);
    return select(turn, -turn, flips);
}

// A channel turned to a position, given it and the channel that it turns with.
fn rope_forward(place: RopePlace, turn: vec2<f32>, value: f32, other: f32) -> f32 {
    return value * turn.x + select(other, -other, place.first) * turn.y;
}

// The same back from a position.
fn rope_back(place: RopePlace, turn: vec2<f32>, value: f32, other: f32) -> f32 {
    return value * turn.x + select(-other, other, place.first) * turn.y;
}
