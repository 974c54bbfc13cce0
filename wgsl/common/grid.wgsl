// Grids of 16 values, for scales and means of 4 bits: src/layout/grid.rs. A grid's word is an f16 low
// end below an f16 step. Needs element.wgsl.

const GRID_TOP: f32 = 15.0;
const GRID_RANGE: f32 = 10.0;
const GRID_NOTHING: f32 = -128.0;
const GRID_MIN_LOG: f32 = -126.0;
const GRID_MAX_LOG: f32 = 127.0;
const GRID_HALF_LIMIT: f32 = 65504.0;
const GRID_LINEAR_RANGE: f32 = 32.0;
const GRID_MAX_LINEAR: f32 = 1.5e38;
const GRID_LOW_LIMIT: f32 = 1.6e38;
const GRID_STEP_LIMIT: f32 = 1.1e37;

// Log to base 2 of a positive number, at least -126.
fn grid_log2(x: f32) -> f32 {
    let bits = max(bitcast<u32>(x), 0x00800000u);
    let mantissa = bitcast<f32>((bits & 0x7fffffu) | 0x3f800000u);
    let above = mantissa > 1.4142135;
    let m = select(mantissa, mantissa * 0.5, above);
    let exponent = i32(bits >> 23u) - select(127, 126, above);
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    var sum = 0.11111111;
    sum = sum * square + 0.14285715;
    sum = sum * square + 0.2;
    sum = sum * square + 0.33333334;
    sum = sum * square + 1.0;
    return f32(exponent) + 2.8853900 * (z * sum);
}

// 2 to a power of at most 127; 0 below -126.
fn grid_exp2(x: f32) -> f32 {
    let held = clamp(x, GRID_MIN_LOG, GRID_MAX_LOG);
    let exponent = i32(held + select(0.5, -0.5, held < 0.0));
    let r = (held - f32(exponent)) * 0.6931472;
    var poly = 1.984127e-4;
    poly = poly * r + 1.3888889e-3;
    poly = poly * r + 8.3333333e-3;
    poly = poly * r + 4.1666667e-2;
    poly = poly * r + 0.16666667;
    poly = poly * r + 0.5;
    poly = poly * r + 1.0;
    poly = poly * r + 1.0;
    return select(poly * bitcast<f32>(u32(exponent + 127) << 23u), 0.0, x < GRID_MIN_LOG);
}

fn grid_half(value: f32) -> u32 {
    return element_half(bitcast<u32>(value));
}

// Low end and step of a grid.
fn grid_parts(word: u32) -> vec2<f32> {
    return vec2<f32>(element_read(word, 0u, 1u), element_read(word, 1u, 1u));
}

// The word of the grid from `low` to `high`.
fn grid_spanning(low: f32, high: f32) -> u32 {
    let first = grid_half(clamp(low, -GRID_HALF_LIMIT, GRID_HALF_LIMIT));
    let step = (high - element_read(first, 0u, 1u)) / GRID_TOP;
    return first | (grid_half(clamp(step, 0.0, GRID_HALF_LIMIT)) << 16u);
}

// Log of a scale of at least 0.
fn grid_log(scale: f32) -> f32 {
    return select(GRID_NOTHING, grid_log2(scale), scale > 0.0);
}

// The word of the grid of scales between `low` and `high`, both at least 0, in logs.
fn grid_of_scales(low: f32, high: f32) -> u32 {
    let top = grid_log(high);
    return grid_spanning(select(top, max(grid_log(low), top - GRID_RANGE), high > 0.0), top);
}

// A number of a linear grid of scales; element_encode_scale's 16 bits. One that no encoder made may be
// non-finite and reads as 0.
fn grid_linear(stored: u32, limit: f32) -> f32 {
    let top = select(0x7c00u, 0x7f80u, (stored & 0x8000u) != 0u);
    return min(element_decode_scale(select(stored, 0u, (stored & top) == top)), limit);
}

// Low end and step of a linear grid of scales.
fn grid_linear_parts(word: u32) -> vec2<f32> {
    return vec2<f32>(
        grid_linear(word & 0xffffu, GRID_LOW_LIMIT), grid_linear(word >> 16u, GRID_STEP_LIMIT));
}

// The word of the linear grid of scales between `low` and `high`, both at least 0.
fn grid_of_linear_scales(low: f32, high: f32) -> u32 {
    let top = min(high, GRID_MAX_LINEAR);
    let first = element_encode_scale(clamp(low, top / GRID_LINEAR_RANGE, top));
    let step = max((top - grid_linear(first, GRID_LOW_LIMIT)) / GRID_TOP, 0.0);
    return first | (element_encode_scale(step) << 16u);
}

// Code of the value nearest to `value`.
fn grid_code(parts: vec2<f32>, value: f32) -> u32 {
    if parts.y > 0.0 {
        return u32(round(clamp((value - parts.x) / parts.y, 0.0, GRID_TOP)));
    }
    return 0u;
}

// Value of a code.
fn grid_value(parts: vec2<f32>, code: u32) -> f32 {
    return parts.x + parts.y * f32(code);
}

// Scale of a code on a grid of scales.
fn grid_scale(parts: vec2<f32>, code: u32) -> f32 {
    return grid_exp2(grid_value(parts, code));
}

// Code `index` of a plane, which lies in `word`, the plane's word `index >> 3`.
fn grid_nibble(word: u32, index: u32) -> u32 {
    return (word >> ((index & 7u) * 4u)) & 15u;
}

// Numbers that are ordered as f32 are, for values that are not NaN, and back.
fn grid_key(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return bits ^ select(0x80000000u, 0xffffffffu, (bits >> 31u) == 1u);
}

fn grid_unkey(key: u32) -> f32 {
    return bitcast<f32>(key ^ select(0xffffffffu, 0x80000000u, (key >> 31u) == 1u));
}
