//! Chunks of tokens that leave a step of the codec with nothing to divide by, or with too much.

/// Close to normal, the same on every host.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| unit()).sum::<f32>() - 6.0).collect()
}

/// Degenerate chunks `[chunk, dim]`, by what they are.
pub fn degenerate(chunk: usize, dim: usize) -> Vec<(&'static str, Vec<f32>)> {
    let of = |f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
        (0..chunk).flat_map(|t| (0..dim).map(move |c| (t, c))).map(|(t, c)| f(t, c)).collect()
    };
    let noise = noise(31, chunk * dim);
    let x = |t: usize, c: usize| noise[t * dim + c];
    let norm = |t: usize| noise[t * dim..(t + 1) * dim].iter().map(|v| v * v).sum::<f32>().sqrt();
    let flip = |odd: bool| if odd { -1.0 } else { 1.0 };
    let subnormal = |t, c| f32::from_bits((x(t, c).to_bits() & 0x807f_ffff) | 1);
    vec![
        ("zeros", of(&|_, _| 0.0)),
        ("negative zeros", of(&|_, _| -0.0)),
        ("one value everywhere", of(&|_, _| 0.75)),
        ("one value a token", of(&|t, _| x(t, 0))),
        ("one token repeated", of(&|_, c| x(0, c))),
        ("one direction at any length", of(&|t, c| x(0, c) * (1.0 + t as f32))),
        ("equal norms", of(&|t, c| x(t, c) / norm(t))),
        ("opposite tokens", of(&|t, c| x(0, c) * flip(t % 2 == 1))),
        ("alternating signs", of(&|t, c| flip((t + c) % 2 == 1))),
        ("signs that alternate along a token", of(&|_, c| 3.0 * flip(c % 2 == 1))),
        ("one huge channel", of(&|t, c| x(t, c) * if c == 5 { 3e4 } else { 1.0 })),
        ("one huge constant channel", of(&|t, c| if c == 2 { 6e4 } else { x(t, c) })),
        ("one channel alone", of(&|t, c| if c == 3 { x(t, 0) } else { 0.0 })),
        ("one huge token", of(&|t, c| x(t, c) * if t == chunk / 2 { 1e9 } else { 1.0 })),
        ("one token among zeros", of(&|t, c| if t == 1 { x(0, c) } else { 0.0 })),
        ("one zero token", of(&|t, c| if t == 1 { 0.0 } else { x(t, c) })),
        ("one element", of(&|t, c| if t == 1 && c == 6 { 1.0 } else { 0.0 })),
        ("beyond f16", of(&|t, c| x(t, c) * 1e30)),
        ("the largest numbers", of(&|t, c| f32::MAX * flip((t * 7 + c) % 3 == 0))),
        ("smaller than any scale", of(&|t, c| x(t, c) * 1e-20)),
        ("subnormal", of(&subnormal)),
        ("norms from 1e-6 to 1e6", of(&|t, c| x(t, c) * 10f32.powi(t as i32 % 13 - 6))),
        ("a token of NaN", of(&|t, c| if t == 1 { f32::NAN } else { x(t, c) })),
        ("a channel of infinities", of(&|t, c| if c == 7 { f32::INFINITY } else { x(t, c) })),
        ("nothing finite", of(&|t, c| if c == 0 { f32::NAN } else { flip(t % 2 == 0) / 0.0 })),
    ]
}
