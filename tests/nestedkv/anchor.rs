//! Sums over blocks and the trailing window.

use proptest::prelude::*;
use wgkv::nestedkv::cpu::anchor::{Sum, Window, to_grid};
use wgkv::nestedkv::cpu::norm::{LIFT, apply, factor};
use wgkv::nestedkv::gpu::anchor;
use wgkv::nestedkv::plan::{Cut, GRID, RUN_TOKENS, SHORT_SUM};

use super::cases::{few, problem};
use crate::support;

#[test]
fn the_grid_rounds_to_nearest_even() {
    for (x, want) in [
        (0.0, 0),
        (1.0, 4_194_304),
        (-1.0, -4_194_304),
        (0.5 / GRID, 0),
        (1.5 / GRID, 2),
        (-1.5 / GRID, -2),
        (2.5 / GRID, 2),
        (0.75, 3_145_728),
        (1e-20, 0),
    ] {
        assert_eq!(to_grid(x), want, "{x}");
    }
}

fn window_sums<S: Sum + PartialEq + core::fmt::Debug + Into<i64>>(window: usize, tokens: usize) {
    let dim = 8;
    let key = |token: usize, channel: usize| {
        (token.wrapping_mul(2_654_435_761) >> (channel + 3) & 1023) as f32 / 1024.0
    };
    let mut recent = Window::<S>::new(dim, window, 256);
    let mut exact = vec![0i64; dim];
    for block in (0..tokens).step_by(256) {
        let last = (block + 256).min(tokens);
        for token in block..last {
            let mut unit: Vec<f32> = (0..dim).map(|channel| key(token, channel)).collect();
            recent.push(token, &mut unit, LIFT, &mut vec![S::default(); dim]);
        }
        for token in block..last {
            recent.advance(token, &[0.0; 8], &[0.0; 8]);
            let sum = recent.sum();
            for channel in 0..dim {
                exact[channel] += i64::from(to_grid(key(token, channel)));
                if token >= window {
                    exact[channel] -= i64::from(to_grid(key(token - window, channel)));
                }
                assert_eq!(sum[channel].into(), exact[channel], "{window} {token}");
            }
        }
    }
}

#[test]
fn window_sums_are_exact_at_any_length() {
    for window in [1, 2, 63, 64, 65, 256] {
        window_sums::<i32>(window, 131_072);
    }
    for window in [257, 1000, 65_536, 131_072] {
        window_sums::<i64>(window, 131_072);
    }
    window_sums::<i64>(500, 100);
}

proptest! {
    #![proptest_config(few(16))]

    #[test]
    fn gpu_equals_cpu(problem in problem(), block in 1usize..=SHORT_SUM) {
        let (rows, tokens, dim) = (problem.rows, problem.tokens, problem.dim);
        let buffer = problem.upload();
        let tensor = problem.tensor(&buffer);
        let found = support::run(|rec| anchor::record(rec, &tensor, block)).expect("sums");
        let got: Vec<i32> = support::download_as(&found.sums);
        let keys = problem.keys();
        let cut = Cut { tokens, block: block.min(tokens) };
        let mut want = vec![0i32; rows * cut.runs() * dim];
        let mut key = vec![0.0; dim];
        for row in 0..rows {
            for token in 0..tokens {
                keys.view().read((row * tokens + token) * dim, &mut key);
                let f = factor(&key);
                apply(&mut key, f);
                let run = token / cut.block * cut.pieces() + token % cut.block / RUN_TOKENS;
                let at = (row * cut.runs() + run) * dim;
                for channel in 0..dim {
                    want[at + channel] += to_grid(key[channel]);
                }
            }
        }
        // The sums are exact; the keys differ in the last bits of their norms.
        let allowed = 4 * RUN_TOKENS.min(tokens) as i32;
        for (got, want) in got.iter().zip(&want) {
            prop_assert!((got - want).abs() <= allowed, "{} against {}", got, want);
        }
    }
}

#[test]
fn blocks_beyond_32_bits_are_refused() {
    let problem = super::cases::Problem {
        rows: 1,
        tokens: 300,
        dim: 16,
        dtype: wgkv::shape::Dtype::F16,
        seed: 1,
        kind: super::cases::Kind::Plain,
    };
    let buffer = problem.upload();
    for block in [0, SHORT_SUM + 1] {
        let tensor = problem.tensor(&buffer);
        let refused = support::run(|rec| anchor::record(rec, &tensor, block));
        assert!(matches!(refused, Err(wgkv::Error::OutOfRange { argument: "block", .. })));
    }
}
