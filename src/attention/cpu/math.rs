//! Dense arithmetic of a tile of tokens, in an order that is the same on every host.

use super::{BLOCK, TILE};

/// `2^x` for x of at most 0, within 2 units in the last place; 0 below -126.
///
/// The Taylor polynomial of degree 7 on ±ln 2 / 2, whose remainder there is below 6e-9.
pub(super) fn exp2(x: f32) -> f32 {
    let held = x.max(-126.0);
    // Truncation after taking off a half rounds to nearest, x being no more than 0.
    let exponent = (held - 0.5) as i32;
    let r = (held - exponent as f32) * core::f32::consts::LN_2;
    let mut poly = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + coefficient;
    }
    let power = poly * f32::from_bits(((exponent + 127) as u32) << 23);
    if x < -126.0 { 0.0 } else { power }
}

/// `cap * tanh(x / cap)`, given the inverse of the cap: by its series below 0.8, where the quotient of
/// powers would lose digits.
pub(super) fn soft_cap(x: f32, cap: f32, inverse: f32) -> f32 {
    const SERIES: [f32; 4] = [0.021_292_654, -0.053_848_89, 0.133_321_7, -0.333_332_95];
    let x = x.clamp(-16.0 * cap, 16.0 * cap) * inverse;
    let size = x.abs();
    let bent = if size < 0.8 {
        let square = size * size;
        let mut series = 0.001_577_391_2 * square - 0.007_395_306_7;
        for coefficient in SERIES {
            series = series * square + coefficient;
        }
        size + size * (square * series)
    } else {
        let power = exp2(size * (-2.0 * core::f32::consts::LOG2_E));
        (1.0 - power) / (1.0 + power)
    };
    cap * bent.copysign(x)
}

/// Natural log of a positive normal number, to about 1e-15.
pub(super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in (1..=23).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    2.0 * s * sum + exponent as f64 * core::f64::consts::LN_2
}

/// A number times 2 to a power of -252 to 254, in two steps that stay within f32's exponents.
pub(super) fn times_power(x: f32, exponent: i32) -> f32 {
    let half = exponent >> 1;
    x * power(half) * power(exponent - half)
}

/// 2 to a power of -126 to 127.
pub(super) fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

const LANES: usize = 8;

fn add_lanes(l: [f32; LANES]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// Dot products of Q queries with one row, in 8 lanes (channel c in lane c % 8) that are added
/// pairwise at the end.
fn dots<const Q: usize>(queries: [&[f32]; Q], row: &[f32]) -> [f32; Q] {
    let mut lanes = [[0.0f32; LANES]; Q];
    for (at, row) in row.chunks_exact(LANES).enumerate() {
        for (lanes, query) in lanes.iter_mut().zip(&queries) {
            let query = &query[at * LANES..(at + 1) * LANES];
            for lane in 0..LANES {
                lanes[lane] += query[lane] * row[lane];
            }
        }
    }
    lanes.map(add_lanes)
}

/// One dot product, as those of a tile.
pub(super) fn dot(query: &[f32], row: &[f32]) -> f32 {
    dots([query], row)[0]
}

/// Dot products of `count` queries with the rows of a tile: `out[query][token]`.
pub(super) fn dot_tile(
    queries: &[f32],
    count: usize,
    rows: &[f32],
    dim: usize,
    out: &mut [[f32; TILE]; BLOCK],
) {
    let query = |index: usize| &queries[index * dim..(index + 1) * dim];
    let mut first = 0;
    while first + 4 <= count {
        let four = [query(first), query(first + 1), query(first + 2), query(first + 3)];
        for (token, row) in rows.chunks_exact(dim).enumerate() {
            for (i, dot) in dots(four, row).into_iter().enumerate() {
                out[first + i][token] = dot;
            }
        }
        first += 4;
    }
    for index in first..count {
        for (token, row) in rows.chunks_exact(dim).enumerate() {
            out[index][token] = dot(query(index), row);
        }
    }
}

fn add_rows<const Q: usize>(
    sums: &mut [f32],
    weights: &[[f32; TILE]],
    rows: &[f32],
    dim: usize,
    channel: usize,
) {
    let mut lanes = [[0.0f32; LANES]; Q];
    for (token, row) in rows.chunks_exact(dim).enumerate() {
        let row = &row[channel..channel + LANES];
        for (lanes, weights) in lanes.iter_mut().zip(weights) {
            let weight = weights[token];
            for lane in 0..LANES {
                lanes[lane] += weight * row[lane];
            }
        }
    }
    for (query, lanes) in lanes.iter().enumerate() {
        for lane in 0..LANES {
            sums[query * dim + channel + lane] += lanes[lane];
        }
    }
}

/// Adds the rows of a tile times their weights to the sums of `count` queries: tokens in order
/// within the tile, then the tile to the sum.
pub(super) fn weigh_tile(
    sums: &mut [f32],
    weights: &[[f32; TILE]; BLOCK],
    count: usize,
    rows: &[f32],
    dim: usize,
) {
    let mut first = 0;
    while first + 4 <= count {
        for channel in (0..dim).step_by(LANES) {
            add_rows::<4>(&mut sums[first * dim..], &weights[first..first + 4], rows, dim, channel);
        }
        first += 4;
    }
    for index in first..count {
        for channel in (0..dim).step_by(LANES) {
            add_rows::<1>(&mut sums[index * dim..], &weights[index..=index], rows, dim, channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{exp2, ln, power, soft_cap, times_power};

    #[test]
    fn soft_caps_are_close() {
        for step in -60_000..60_000 {
            let x = step as f32 / 1000.0;
            for cap in [0.5f32, 30.0, 50.0] {
                let truth = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                let got = f64::from(soft_cap(x, cap, 1.0 / cap));
                assert!((got - truth).abs() <= 6e-7 * truth.abs(), "{x} {cap}: {got} {truth}");
            }
        }
        assert_eq!(soft_cap(3e38, 2.0, 0.5), 2.0);
        assert_eq!(soft_cap(-3e38, 9.5e-7, 1_048_576.0), -9.5e-7);
    }

    #[test]
    fn powers_of_two_are_close() {
        for step in 0..126_000 {
            let x = -(step as f32) / 1000.0;
            let truth = f64::from(x).exp2();
            assert!((f64::from(exp2(x)) - truth).abs() <= 2.5e-7 * truth, "{x}");
        }
        assert_eq!(exp2(-126.5), 0.0);
        assert_eq!(exp2(-1e30), 0.0);
        assert_eq!(exp2(0.0), 1.0);
    }

    #[test]
    fn logs_are_close() {
        for x in [1e-300, 2.3e-10, 0.5, 0.999, 1.0, 1.4143, 2.0, 3.0, 1e5, 7e200] {
            assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn powers_take_two_steps_where_one_would_overflow() {
        assert_eq!(times_power(f32::MAX, -139), f32::MAX * power(-70) * power(-69));
        assert_eq!(times_power(1e-38, 200), 1e-38 * power(100) * power(100));
    }
}
