//! Arithmetic that must give the same bits on every host, where the platform's library would not.

/// `e^x` to within 3 units in the last place for `|x| <= 87`; arguments beyond are taken as ±87.
///
/// Cody-Waite reduction to `|r| <= ln 2 / 2` and the Taylor polynomial of degree 7, whose remainder
/// there is below 6e-9.
pub fn exp(x: f32) -> f32 {
    // ln 2 in two parts; the first has few enough bits that its product with the exponent is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 87.0);
    let scaled = x * core::f32::consts::LOG2_E;
    // Truncation after adding ±0.5 rounds to nearest and vectorises.
    let exponent = (scaled + if scaled < 0.0 { -0.5 } else { 0.5 }) as i32;
    let whole = exponent as f32;
    let r = x - whole * LN2_HIGH - whole * LN2_LOW;
    let mut poly = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + coefficient;
    }
    poly * f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Dot product in 8 lanes (channel `c` in lane `c % 8`), 64 channels at a time, the lanes added
/// pairwise at the end. Lengths must be equal and multiples of 8.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_by(a, b, |b| b)
}

/// As [`dot`], with the f32 that `real` makes of the elements of `b`.
pub(crate) fn dot_by<T: Copy>(a: &[f32], b: &[T], real: impl Fn(T) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (wholes, rest) = a.as_chunks::<64>();
    let (whole_others, other_rest) = b.as_chunks::<64>();
    for (a, b) in wholes.iter().zip(whole_others) {
        add_part(&mut lanes, a, b, &real);
    }
    if !rest.is_empty() {
        add_part(&mut lanes, rest, other_rest, &real);
    }
    add_lanes(lanes)
}

/// Adds the lanes of up to 64 channels, of which a fixed number is unrolled.
#[inline(always)]
fn add_part<T: Copy>(lanes: &mut [f32; 8], a: &[f32], b: &[T], real: impl Fn(T) -> f32) {
    let mut part = [0.0f32; 8];
    for (x, y) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for lane in 0..8 {
            part[lane] += x[lane] * real(y[lane]);
        }
    }
    for lane in 0..8 {
        lanes[lane] += part[lane];
    }
}

/// Adds 8 lanes pairwise.
pub fn add_lanes(l: [f32; 8]) -> f32 {
    ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]))
}

/// Lanes in which long sums run: element `i` goes to lane `i % 256`, as to the threads of a
/// workgroup.
pub const SUM_LANES: usize = 256;

/// Adds `term(value)` over a slice in [`SUM_LANES`] lanes, then halves the lanes until one is left.
pub fn sum_by(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; SUM_LANES];
    for chunk in values.chunks(SUM_LANES) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += term(value);
        }
    }
    let mut half = SUM_LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Smallest and largest value of a slice without NaN; `(0, 0)` for an empty one.
pub fn min_max(values: &[f32]) -> (f32, f32) {
    let Some(&first) = values.first() else { return (0.0, 0.0) };
    let mut low = [first; 8];
    let mut high = [first; 8];
    for chunk in values.chunks(8) {
        for (lane, &value) in chunk.iter().enumerate() {
            low[lane] = if value < low[lane] { value } else { low[lane] };
            high[lane] = if value > high[lane] { value } else { high[lane] };
        }
    }
    let pick = |l: [f32; 8], better: fn(f32, f32) -> bool| {
        l.into_iter().fold(first, |best, x| if better(x, best) { x } else { best })
    };
    (pick(low, |x, best| x < best), pick(high, |x, best| x > best))
}
