//! How tokens are shared out over heads.

use proptest::prelude::*;
use wgkv::gpu::Slice;
use wgkv::nestedkv::{Budget, EvictConfig, cpu, gpu};

use super::cases::{few, gpu_keep, uniform, upload};
use crate::support;

/// The rule by sorting, on the scores as they are.
fn sorted(heads: &[Vec<f32>], total: u64, safeguard: f64) -> Vec<u32> {
    let all: usize = heads.iter().map(Vec::len).sum();
    let total = total.min(all as u64);
    if all == 0 {
        return vec![0; heads.len()];
    }
    let r = (1.0 - total as f64 / all as f64).clamp(0.0, 1.0);
    let mut floors: Vec<f64> = heads
        .iter()
        .map(|h| (safeguard * (1.0 - r) * h.len() as f64).trunc().min(h.len() as f64))
        .collect();
    let sum: f64 = floors.iter().sum();
    if sum > total as f64 {
        floors.iter_mut().for_each(|f| *f = (*f * (total as f64 / sum)).trunc());
    }
    let rank = |x: f32| if x.is_nan() { f32::NEG_INFINITY } else { x };
    let mut budgets: Vec<u32> = floors.iter().map(|f| *f as u32).collect();
    let mut pool = Vec::new();
    for (head, scores) in heads.iter().enumerate() {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| {
            (scores[a].is_nan().cmp(&scores[b].is_nan()))
                .then(rank(scores[b]).partial_cmp(&rank(scores[a])).expect("no NaN"))
                .then(a.cmp(&b))
        });
        pool.extend(order[budgets[head] as usize..].iter().map(|&p| (head, p, scores[p])));
    }
    pool.sort_by(|a, b| {
        (a.2.is_nan().cmp(&b.2.is_nan()))
            .then(rank(b.2).partial_cmp(&rank(a.2)).expect("no NaN"))
            .then((a.0, a.1).cmp(&(b.0, b.1)))
    });
    let rest = total as usize - budgets.iter().sum::<u32>() as usize;
    for (head, ..) in &pool[..rest] {
        budgets[*head] += 1;
    }
    budgets
}

fn scores() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => 0.0f32..1.0,
        4 => (0u32..5).prop_map(|x| x as f32 / 4.0),
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, -f32::NAN, -1.0, f32::INFINITY, f32::NEG_INFINITY]),
    ];
    prop::collection::vec(value, 0..200)
}

proptest! {
    #![proptest_config(few(48))]

    #[test]
    fn both_paths_equal_the_rule_and_add_up(
        heads in prop::collection::vec(scores(), 1..9),
        share in 0.0f64..1.2,
        safeguard in prop_oneof![Just(0.2), Just(0.0), Just(1.0), 0.0f64..=1.0],
    ) {
        let all: usize = heads.iter().map(Vec::len).sum();
        let total = (share * all as f64) as u64;
        let views: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
        let got = cpu::allocate_head_budgets(&views, total, safeguard).expect("budgets");
        prop_assert_eq!(got.iter().map(|&b| u64::from(b)).sum::<u64>(), total.min(all as u64));
        prop_assert_eq!(&got, &sorted(&heads, total, safeguard));
        let lengths: Vec<usize> = heads.iter().map(Vec::len).collect();
        let buffer = upload(&heads.concat());
        let budgets = support::run(|rec| {
            gpu::allocate_head_budgets(rec, Slice::all(&buffer), &lengths, total, safeguard)
        });
        let on_gpu: Vec<u32> = support::download_as(&budgets.expect("budgets"));
        prop_assert_eq!(on_gpu, got);
    }
}

#[test]
fn heads_with_higher_scores_get_more_and_none_gets_nothing() {
    let low: Vec<f32> = uniform(1, 500).iter().map(|x| x * 0.1).collect();
    let high: Vec<f32> = uniform(2, 500).iter().map(|x| x * 0.1 + 0.8).collect();
    let budgets = cpu::allocate_head_budgets(&[&low, &high], 250, 0.2).expect("budgets");
    // r = 0.75, so each is sure of trunc(0.2 * 0.25 * 500).
    assert_eq!(budgets, [25, 225]);
}

#[test]
fn no_heads_and_empty_heads() {
    assert!(cpu::allocate_head_budgets(&[], 5, 0.2).expect("budgets").is_empty());
    assert_eq!(cpu::allocate_head_budgets(&[&[], &[]], 5, 0.2).expect("budgets"), [0, 0]);
    assert!(cpu::allocate_head_budgets(&[&[1.0]], 1, f64::NAN).is_err());
    assert!(cpu::allocate_head_budgets(&[&[1.0]], 1, 1.5).is_err());
}

/// Bins are held for 4,096 sequences at a time, so that more compete in rounds.
#[test]
fn more_sequences_than_a_round_takes() {
    let (sequences, heads, tokens) = (16_384 + 3, 2, 3);
    let rows = sequences * heads;
    // Few values, so that equals compete within a head and over heads; other ones in each sequence.
    let scores: Vec<f32> = uniform(7, rows * tokens).iter().map(|x| (4.0 * x).floor()).collect();
    let budget = Budget::Adaptive { per_head: 2, heads };
    let config = EvictConfig { sinks: 1, safeguard: 0.6, ..EvictConfig::new(budget) };
    let want = cpu::keep(&scores, rows, tokens, &config).expect("a selection");
    assert!(want.offsets.windows(2).any(|pair| pair[1] - pair[0] != 2));
    assert!(gpu_keep(&scores, rows, tokens, &config) == want);
}
