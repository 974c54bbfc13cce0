//! The cache of a sequence.

use half::f16;
use proptest::prelude::*;
use wgkv::Error;
use wgkv::nestedkv::cpu::{self, Kept, NestedKvState, full_fp16_bytes};
use wgkv::nestedkv::{Budget, EvictConfig};
use wgkv::shape::{Dtype, Elements};

use super::cases::{Data, uniform};

fn config(budget: u32) -> EvictConfig {
    EvictConfig::new(Budget::Uniform(budget))
}

/// Rows `from..to` of every head of `[rows, tokens, dim]`.
fn cut(data: &[f32], rows: usize, dim: usize, from: usize, to: usize) -> Data {
    let tokens = data.len() / rows / dim;
    let part: Vec<f32> = (0..rows)
        .flat_map(|row| data[(row * tokens + from) * dim..(row * tokens + to) * dim].to_vec())
        .collect();
    Data::new(&part, Dtype::F16)
}

struct Stream {
    rows: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    next: usize,
}

impl Stream {
    const KEY_DIM: usize = 32;
    const VALUE_DIM: usize = 16;

    fn new(rows: usize, tokens: usize) -> Self {
        Self {
            rows,
            keys: uniform(21, rows * tokens * Self::KEY_DIM),
            values: uniform(22, rows * tokens * Self::VALUE_DIM),
            next: 0,
        }
    }

    fn feed(&mut self, state: &mut NestedKvState, count: usize, decode: bool) {
        let (from, to) = (self.next, self.next + count);
        self.next = to;
        let keys = cut(&self.keys, self.rows, Self::KEY_DIM, from, to);
        let values = cut(&self.values, self.rows, Self::VALUE_DIM, from, to);
        let keys = keys.tensor(self.rows, count, Self::KEY_DIM);
        let values = values.tensor(self.rows, count, Self::VALUE_DIM);
        if decode {
            state.append_decode(&keys, &values).expect("appended");
        } else {
            state.append_prefill(&keys, &values).expect("appended");
        }
    }

    fn state(&self, config: EvictConfig) -> NestedKvState {
        NestedKvState::new(self.rows, Self::KEY_DIM, Self::VALUE_DIM, config).expect("a cache")
    }
}

fn halves(elements: Elements<'_>) -> Vec<f16> {
    let Elements::F16(x) = elements else { panic!("not f16") };
    x.to_vec()
}

proptest! {
    #[test]
    fn the_cut_of_the_prompt_does_not_matter(cuts in prop::collection::vec(1usize..90, 1..6)) {
        let total: usize = cuts.iter().sum();
        let mut once = Stream::new(2, total);
        let mut state = once.state(config(20));
        once.feed(&mut state, total, false);
        state.finish_prefill().expect("finished");
        let mut chunked = Stream::new(2, total);
        let mut other = chunked.state(config(20));
        for count in cuts {
            chunked.feed(&mut other, count, false);
        }
        other.finish_prefill().expect("finished");
        prop_assert_eq!(state, other);
    }
}

#[test]
fn a_prompt_of_one_token_followed_by_more_is_compressed() {
    let mut stream = Stream::new(3, 300);
    let mut state = stream.state(config(40));
    stream.feed(&mut state, 1, false);
    stream.feed(&mut state, 299, false);
    assert!(!state.compressed());
    state.finish_prefill().expect("finished");
    assert!(state.compressed());
    let keys = Data::new(&stream.keys, Dtype::F16);
    let values = Data::new(&stream.values, Dtype::F16);
    let once = cpu::compress_prefill(
        &keys.tensor(3, 300, Stream::KEY_DIM),
        &values.tensor(3, 300, Stream::VALUE_DIM),
        &config(40),
    )
    .expect("evicted");
    for row in 0..3 {
        let held = state.get_kv(row).expect("a row");
        assert_eq!(held.positions, once.kept.row(row));
        assert_eq!(halves(held.keys), once.keys[row * 40 * 32..(row + 1) * 40 * 32]);
        assert_eq!(halves(held.values), once.values[row * 40 * 16..(row + 1) * 40 * 16]);
    }
}

#[test]
fn before_the_end_of_the_prompt_every_token_is_there() {
    let mut stream = Stream::new(2, 100);
    let mut state = stream.state(config(10));
    assert_eq!(state.get_kv(0).expect("a row").positions.len(), 0);
    stream.feed(&mut state, 60, false);
    let held = state.get_kv(1).expect("a row");
    assert_eq!(held.positions, (0..60).collect::<Vec<u32>>());
    assert_eq!(held.keys.len(), 60 * 32);
    assert_eq!(state.fp16_bytes(), state.full_fp16_bytes());
    assert!(state.get_kv(2).is_err());
}

#[test]
fn positions_after_eviction_decode_trim_save_and_load() {
    let adaptive = EvictConfig::new(Budget::Adaptive { per_head: 128, heads: 2 });
    let mut stream = Stream::new(2, 310);
    // The second head is quiet, so that budgets are uneven.
    for x in &mut stream.keys[310 * 32..] {
        *x = *x * 0.05 + 1.0;
    }
    let mut state = stream.state(adaptive);
    stream.feed(&mut state, 300, false);
    state.finish_prefill().expect("finished");
    let before = state.next_position();
    assert_eq!(before, 300);
    let evicted: Vec<Vec<u32>> =
        (0..2).map(|row| state.get_kv(row).expect("a row").positions.to_vec()).collect();
    assert_eq!(evicted[0].len() + evicted[1].len(), 256);
    assert_ne!(evicted[0].len(), evicted[1].len());
    stream.feed(&mut state, 5, true);
    assert_eq!(before, 300);
    assert_eq!(state.next_position(), 305);
    state.trim(2).expect("trimmed");
    assert_eq!(state.next_position(), 303);

    // Saved and loaded.
    let rows: Vec<_> = (0..2).map(|row| state.get_kv(row).expect("a row")).collect();
    let kept = Kept {
        offsets: vec![
            0,
            rows[0].positions.len() as u32,
            (rows[0].positions.len() + rows[1].positions.len()) as u32,
        ],
        positions: rows.iter().flat_map(|r| r.positions.to_vec()).collect(),
        sinks_only: false,
    };
    let keys: Vec<f16> = rows.iter().flat_map(|r| halves(r.keys)).collect();
    let values: Vec<f16> = rows.iter().flat_map(|r| halves(r.values)).collect();
    let mut loaded =
        NestedKvState::from_parts(adaptive, 32, 16, state.tokens_seen(), &kept, &keys, &values)
            .expect("loaded");
    assert_eq!(loaded, state);
    assert_eq!(loaded.next_position(), 303);
    stream.feed(&mut loaded, 1, true);
    assert_eq!(loaded.next_position(), 304);
    for (row, evicted) in evicted.iter().enumerate() {
        let want: Vec<u32> = evicted.iter().copied().chain([300, 301, 302, 303]).collect();
        assert_eq!(loaded.get_kv(row).expect("a row").positions, want);
    }
}

#[test]
fn trim_counts_positions_not_rows() {
    let mut stream = Stream::new(2, 30);
    let mut state = stream.state(EvictConfig { sinks: 0, ..config(4) });
    stream.feed(&mut state, 20, false);
    state.finish_prefill().expect("finished");
    for (cut, left) in [(3, 17), (12, 5), (5, 0)] {
        let before: Vec<Vec<u32>> =
            (0..2).map(|row| state.get_kv(row).expect("a row").positions.to_vec()).collect();
        state.trim(cut).expect("trimmed");
        assert_eq!(state.tokens_seen(), left);
        for (row, before) in before.iter().enumerate() {
            let held = state.get_kv(row).expect("a row");
            let want: Vec<u32> = before.iter().copied().filter(|&p| p < left).collect();
            assert_eq!(held.positions, want);
            assert_eq!(held.keys.len(), want.len() * 32);
            assert_eq!(held.values.len(), want.len() * 16);
        }
    }
    let whole = state.clone();
    assert!(matches!(state.trim(1), Err(Error::TrimTooLong { got: 1, held: 0 })));
    assert_eq!(state, whole);
    state.trim(0).expect("nothing to do");
    // A cache trimmed to nothing takes a new prompt.
    stream.feed(&mut state, 2, false);
    assert_eq!(state.tokens_seen(), 2);
}

#[test]
fn decode_before_any_prompt_starts_the_cache() {
    let mut stream = Stream::new(2, 40);
    let mut state = stream.state(config(8));
    stream.feed(&mut state, 10, true);
    stream.feed(&mut state, 30, true);
    // Decoded tokens are never evicted.
    assert_eq!(state.get_kv(1).expect("a row").positions.len(), 40);
    assert!(state.compressed());
}

#[test]
fn bytes_are_those_of_the_rows_held() {
    let mut stream = Stream::new(2, 200);
    let mut state = stream.state(config(50));
    stream.feed(&mut state, 190, false);
    state.finish_prefill().expect("finished");
    assert_eq!(state.fp16_bytes(), 2 * 50 * (32 + 16) * 2);
    stream.feed(&mut state, 10, true);
    assert_eq!(state.fp16_bytes(), 2 * 60 * (32 + 16) * 2);
    assert_eq!(state.full_fp16_bytes(), 2 * 200 * (32 + 16) * 2);
    assert_eq!(full_fp16_bytes(200, 128), 200 * 128 * 4);
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    for budget in [0, 4] {
        assert!(matches!(
            NestedKvState::new(1, 32, 16, config(budget)),
            Err(Error::OutOfRange { argument: "budget", min: 5, .. })
        ));
    }
    assert!(matches!(NestedKvState::new(0, 32, 16, config(9)), Err(Error::Empty { .. })));
    assert!(matches!(
        NestedKvState::new(1, 60, 16, config(9)),
        Err(Error::HeadDim { got: 60, .. })
    ));
    let mut stream = Stream::new(2, 40);
    let mut state = stream.state(config(9));
    stream.feed(&mut state, 20, false);
    let before = state.clone();
    let other = Data::new(&uniform(1, 2 * 5 * 32), Dtype::F32);
    let values = Data::new(&uniform(1, 2 * 5 * 16), Dtype::F16);
    let five = values.tensor(2, 5, 16);
    assert!(state.append_prefill(&other.tensor(2, 5, 32), &five).is_err(), "another type");
    assert!(state.append_prefill(&other.tensor(5, 2, 32), &five).is_err(), "other rows");
    assert!(state.append_prefill(&values.tensor(2, 5, 16), &five).is_err(), "another width");
    let mut huge = uniform(2, 2 * 5 * 32);
    huge[40] = 1e9;
    let huge = Data::F32(huge);
    assert!(matches!(
        state.append_decode(&huge.tensor(2, 5, 32), &five),
        Err(Error::BeyondF16 { .. })
    ));
    assert_eq!(state, before);
    state.finish_prefill().expect("finished");
    let keys = Data::new(&uniform(1, 2 * 5 * 32), Dtype::F16);
    assert!(matches!(
        state.append_prefill(&keys.tensor(2, 5, 32), &five),
        Err(Error::Finished { .. })
    ));
}
