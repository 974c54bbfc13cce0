//! Faults that were once there, a test by name for each. One that takes pages made by hand is beside its kind:
//! `codes_of_values_that_are_not_seen_change_nothing` in `tests/attention/integers.rs` (what rounding leaves of weights went
//! to tokens that are not seen).

#[path = "support/mod.rs"]
mod support;

use support::run;
use wgkv::attention::gpu::DeviceQueries;
use wgkv::attention::{self, AttendConfig, CacheView, Queries};
use wgkv::cache::plan::{Frontier, Move};
use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig};
use wgkv::cache::{self, CacheConfig, Counters};
use wgkv::gpu::{Context, ContextDescriptor, DeviceTensor, Recorder, Slice};
use wgkv::half::f16;
use wgkv::layout::{Bits, PageLayout, Preset};
use wgkv::nestedkv::plan::{KeepPlan, head_floors};
use wgkv::nestedkv::{self, Budget, EvictConfig, ScoreConfig};
use wgkv::nsnquant::{self, Codebook, Codec};
use wgkv::shape::{Dtype, Elements, Tensor, check_offsets};
use wgkv::{Error, primitives, wgpu};

const MAX: usize = usize::MAX;

fn buffer(bytes: usize) -> wgpu::Buffer {
    support::context().upload("words", &vec![0; bytes]).unwrap()
}

fn adaptive(heads: usize) -> EvictConfig {
    EvictConfig::new(Budget::Adaptive { per_head: u32::MAX, heads })
}

#[test]
fn row_counts_at_the_end_of_usize_are_refused() {
    assert!(matches!(check_offsets("offsets", &[0], MAX, 0), Err(Error::Length { .. })));
    assert!(check_offsets("offsets", &[], MAX, 0).is_err());

    let keys = [f16::ZERO; 8];
    let view = CacheView {
        kv_rows: MAX,
        head_dim_k: 8,
        head_dim_v: 8,
        raw_offsets: &[0, 1],
        raw_keys: Elements::F16(&keys),
        raw_values: Elements::F16(&keys),
        raw_positions: &[0],
        packed: None,
    };
    let data = Elements::F16(&keys);
    let queries = Queries { data, batch: 1, heads: 1, tokens: 1, head_dim: 8 };
    assert!(attention::cpu::attend(&view, &queries, &AttendConfig::default()).is_err());

    assert!(adaptive(2).validate(MAX).is_err());
    assert!(nestedkv::cpu::keep(&[], MAX, 1, &adaptive(2)).is_err());
    assert!(nestedkv::cpu::keep(&[], MAX, MAX, &adaptive(MAX)).is_err());
}

#[test]
fn budgets_beyond_64_bits_saturate() {
    assert!(KeepPlan::new(&adaptive(MAX), MAX).total(MAX).is_err());
    let _ = KeepPlan::new(&adaptive(0), 5).total(1);
    assert_eq!(head_floors(&[MAX, MAX], MAX, u64::MAX, 0.0), [0, 0]);
}

#[test]
fn a_state_of_more_rows_than_memory_is_refused() {
    for rows in [MAX, 1 << 40] {
        let cfg = EvictConfig::new(Budget::Uniform(8));
        let state = nestedkv::cpu::NestedKvState::new(rows, 8, 8, cfg);
        assert!(matches!(state, Err(Error::OutOfRange { argument: "rows", .. })), "{rows}");
    }
}

#[test]
fn byte_counts_beyond_64_bits_saturate() {
    assert_eq!(nestedkv::cpu::full_fp16_bytes(u64::MAX, MAX), u64::MAX);
    let layout = PageLayout::new("layout", 512, Bits::Two, 2).unwrap();
    let mut frontier = Frontier::new(2, 0, 0).unwrap();
    frontier.append(u32::MAX as usize).unwrap();
    let counters = Counters::new(&frontier, MAX, &layout, &layout, MAX, 0);
    assert_eq!(counters.fp16_key_bytes, u64::MAX);
}

#[test]
fn a_page_count_at_the_end_of_usize_is_refused() {
    let layout = PageLayout::new("layout", 8, Bits::Two, 2).unwrap();
    let codec = Codec::new(layout, Codebook::builtin()).unwrap();
    assert!(!MAX.is_multiple_of(layout.words()));
    assert!(codec.page_count("pages", MAX).is_err());
}

#[test]
fn a_copy_of_odd_or_endless_rows_is_refused() {
    let plan = Move {
        rows: 1,
        head_dim: 1,
        tokens: 1,
        from_tokens: 1,
        from_first: 0,
        from_dtype: Dtype::F16,
        to_tokens: 1,
        to_first: 0,
        to_dtype: Dtype::F16,
    };
    let copy = |plan: &Move, source: &[f16]| {
        wgkv::cache::cpu::rows::copy(plan, Elements::F16(source), &mut [])
    };
    assert!(copy(&plan, &[f16::ZERO]).is_err());
    let none = Move { tokens: 0, from_tokens: 0, to_tokens: 0, ..plan };
    assert!(copy(&Move { rows: MAX, head_dim: 8, ..none }, &[]).is_err());
    assert!(copy(&Move { head_dim: MAX - 1, ..none }, &[]).is_err());
    assert!(copy(&Move { head_dim: 8, ..none }, &[]).is_ok());
}

#[test]
fn infinite_channels_of_normalised_keys_read_as_zero() {
    let mut keys = [0.25f32; 16];
    keys[3] = 0.0;
    let want = nestedkv::cpu::per_scale_anomaly_scores(&keys, 8, 2, 2).unwrap();
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        keys[3] = value;
        assert_eq!(nestedkv::cpu::per_scale_anomaly_scores(&keys, 8, 2, 2).unwrap(), want);
    }
}

#[test]
fn read_backs_clears_and_copies_outside_their_buffers_are_refused() {
    let (words, other) = (buffer(64), buffer(64));
    let lies = [(0, 68), (64, 4), (0, u64::MAX), (u64::MAX - 3, 8), (2, 4), (0, 3), (1, 0)];
    for (offset, size) in lies {
        let slice = Slice { buffer: &words, offset, size };
        let refused = |got: wgkv::Result<()>| {
            assert!(matches!(got, Err(Error::Offsets { .. })), "{offset} {size}: {got:?}");
        };
        refused(run(|rec| rec.read_back(slice).map(|_| ())));
        refused(run(|rec| rec.clear(slice)));
        refused(run(|rec| rec.copy(&words, offset, &other, 0, size)));
        refused(run(|rec| rec.copy(&other, 0, &words, offset, size)));
    }
    // Each alone would be too large; their sum would not fit 64 bits either.
    let sum = run(|rec| {
        let slice = Slice { buffer: &words, offset: 0, size: u64::MAX - 7 };
        let _ = (rec.read_back(slice)?, rec.read_back(slice)?);
        Ok(())
    });
    assert!(sum.is_err());
    assert!(run(|rec| rec.copy(&words, 0, &words, 32, 4)).is_err());
    let read_only = support::context().device().create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 64,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    });
    assert!(run(|rec| rec.clear(Slice::all(&read_only))).is_err());
    assert!(run(|rec| rec.copy(&words, 0, &read_only, 0, 4)).is_err());
    assert!(run(|rec| rec.copy(&read_only, 0, &words, 0, 4)).is_err());
    assert!(support::context().create("huge", u64::MAX).is_err());
}

#[test]
fn stages_of_sizes_beyond_32_bits_are_refused() {
    use nestedkv::gpu::{blend, budgets, gate, mean, spread};
    use primitives::gpu::{compact, select};
    let words = buffer(64);
    let s = Slice::all(&words);
    let cfg = ScoreConfig::default();
    assert!(run(|rec| select::record(rec, s, s, MAX, 1, 0, s)).is_err());
    assert!(run(|rec| compact::record(rec, s, MAX, 0, 0, s, s, 1)).is_err());
    let floors = &[];
    let competition = budgets::Competition {
        scores: s,
        starts: s,
        longest: MAX,
        floors,
        heads: 3,
        per_sequence: 1,
        sinks: 0,
    };
    assert!(run(|rec| budgets::record(rec, &competition)).is_err());
    for rows in [1 << 32, MAX] {
        assert!(run(|rec| mean::record(rec, s, rows, 1, 8, 1)).is_err());
        assert!(run(|rec| spread::record(rec, s, s, rows, 1)).is_err());
        assert!(run(|rec| blend::record(rec, s, s, rows, MAX, &cfg)).is_err());
        let parts = gate::Parts { factors: s, scales: s, blends: s, deviations: s, surprises: s };
        assert!(run(|rec| gate::record(rec, &parts, rows, MAX, &cfg)).is_err());
    }
}

#[test]
fn a_block_of_no_tokens_is_refused() {
    let words = buffer(64);
    let s = Slice::all(&words);
    let keys = DeviceTensor::new("keys", s, Dtype::F16, 1, 1, 8).unwrap();
    let anchored = nestedkv::gpu::anchor::Anchored { factors: buffer(64), sums: buffer(64) };
    let anchors =
        nestedkv::gpu::anomaly::Anchors { anchored: &anchored, means: s, block: 0, window: 1 };
    assert!(run(|rec| nestedkv::gpu::anomaly::record(rec, &keys, &anchors)).is_err());
}

#[test]
fn non_finite_numbers_in_a_page_decode_as_zero() {
    use wgkv::nsnquant::{cpu, gpu};
    for (bits, chunk, dim) in [(Bits::Two, 5, 16), (Bits::One, 2, 24)] {
        let layout = PageLayout::new("layout", dim, bits, chunk).unwrap();
        let codec = Codec::new(layout, Codebook::builtin()).unwrap();
        let device = gpu::DeviceCodec::new(support::context(), codec.clone()).unwrap();
        for number in [0x7c00u16, 0xfc00, 0x7e01, 0xffff, 0x7f80, 0xff80] {
            let mut page = vec![0x3c00_3c00u32; layout.words()];
            for vector in [layout.s1_offset(), layout.s2_offset(), layout.o_offset()] {
                PageLayout::set_half(&mut page, vector, 1, number);
            }
            let want = cpu::decode(&codec, &page).unwrap();
            assert!(want.iter().all(|x| x.is_finite()), "{number:x}");
            let pages = support::context().upload("pages", bytes(&page)).unwrap();
            let (starts, out) = (buffer(4), buffer(4 * chunk * dim));
            run(|rec| {
                let (pages, out) = (Slice::all(&pages), Slice::all(&out));
                gpu::decode(rec, &device, pages, 1, Slice::all(&starts), out, Dtype::F32, chunk)
            })
            .unwrap();
            let got: Vec<f32> = support::download_as(&out);
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() <= 1e-5 * (1.0 + want.abs()),
                    "{number:x}: {got} {want}"
                );
            }
        }
    }
}

#[test]
fn rows_that_claim_billions_of_scores_end_at_the_longest() {
    let words = |list: &[u32]| support::context().upload("words", bytes(list)).unwrap();
    let (scores, starts, counts) = (words(&[7; 100]), words(&[0, u32::MAX, 5]), words(&[3, 3]));
    // With the fault back, this does not end.
    let budgets = run(|rec| {
        let (scores, starts) = (Slice::all(&scores), Slice::all(&starts));
        primitives::gpu::select::record(rec, scores, starts, 2, 100, 0, Slice::all(&counts))?;
        let competition = nestedkv::gpu::budgets::Competition {
            scores,
            starts,
            longest: 100,
            floors: &[1, 1],
            heads: 2,
            per_sequence: 9,
            sinks: 0,
        };
        nestedkv::gpu::budgets::record(rec, &competition)
    })
    .unwrap();
    assert_eq!(support::download_as::<u32>(&budgets.budgets).len(), 2);
}

/// Where a GPU's division is off although the quotient is exact, the means of equal keys differed
/// with the number of keys behind them, and rounding chose among equals.
#[test]
fn equal_keys_score_alike_however_many_are_behind_them() {
    let (tokens, dim) = (257, 64);
    let mut keys = vec![f16::ZERO; tokens * dim];
    for token in 0..tokens {
        keys[token * dim] = if token + 1 < tokens { f16::ONE } else { f16::NEG_ONE };
    }
    let config = EvictConfig { sinks: 0, ..EvictConfig::new(Budget::Uniform(8)) };
    let expected = [0, 1, 2, 3, 4, 5, 6, 256];
    let tensor = Tensor::new("keys", Elements::F16(&keys), 1, tokens, dim).unwrap();
    let host = nestedkv::cpu::compress_prefill(&tensor, &tensor, &config).unwrap();
    assert_eq!(host.kept.positions, expected);

    let buffer = support::context().upload("keys", bytemuck::cast_slice(&keys)).unwrap();
    let tensor =
        DeviceTensor::new("keys", Slice::all(&buffer), Dtype::F16, 1, tokens, dim).unwrap();
    let device =
        run(|rec| nestedkv::gpu::compress_prefill(rec, &tensor, &tensor, &config)).unwrap();
    assert_eq!(support::download_as::<u32>(&device.kept.positions), expected);
}

/// A limit that was a quotient by the scale vanished on a GPU that flushes the reciprocal of a scale
/// above 2^126, and the row came back as zeros.
#[test]
fn rows_near_the_end_of_f32_come_back() {
    let (dim, chunk) = (64, 8);
    let layout = PageLayout::new("head_dim", dim, Bits::Two, chunk).unwrap();
    let codec = Codec::new(layout, Codebook::builtin()).unwrap();
    let rows: Vec<f32> =
        (0..chunk * dim).map(|i| if i * 7 % 5 < 2 { -3e38 } else { 3e38 }).collect();
    let pages = nsnquant::cpu::encode(&codec, Elements::F32(&rows), &[0]).unwrap();
    let host = nsnquant::cpu::decode(&codec, &pages).unwrap();
    assert!(host.iter().any(|value| value.abs() > 1e38));
    let device = nsnquant::gpu::DeviceCodec::new(support::context(), codec).unwrap();
    let words = |list: &[u32]| support::context().upload("words", bytes(list)).unwrap();
    let (pages, starts, out) = (words(&pages), words(&[0]), words(&vec![0; chunk * dim]));
    run(|rec| {
        let (pages, starts, out) = (Slice::all(&pages), Slice::all(&starts), Slice::all(&out));
        nsnquant::gpu::decode(rec, &device, pages, 1, starts, out, Dtype::F32, chunk)
    })
    .unwrap();
    for (got, want) in support::download_as::<f32>(&out).iter().zip(&host) {
        assert!((got - want).abs() <= 3e33, "{got} for {want}");
    }
}

#[test]
fn the_largest_chunks_of_wide_heads_are_packed_to_their_end() {
    // Software devices end loops after 65,535 rounds, which such a chunk once took.
    let (chunk, dim) = (1024, 512);
    let layout = PageLayout::new("head_dim", dim, Bits::Two, chunk).unwrap();
    let codec = Codec::new(layout, Codebook::builtin()).unwrap();
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let rows: Vec<f32> = (0..chunk * dim).map(|_| next()).collect();
    let host = nsnquant::cpu::encode(&codec, Elements::F32(&rows), &[0]).unwrap();
    let device = nsnquant::gpu::DeviceCodec::new(support::context(), codec).unwrap();
    let rows = support::context().upload("rows", bytemuck::cast_slice(&rows)).unwrap();
    let (starts, out) = (buffer(4), buffer(4 * layout.words()));
    run(|rec| {
        let (rows, starts, out) = (Slice::all(&rows), Slice::all(&starts), Slice::all(&out));
        nsnquant::gpu::encode(rec, &device, rows, Dtype::F32, chunk, starts, 1, out)
    })
    .unwrap();
    let differ =
        support::download_as::<u32>(&out).iter().zip(&host).filter(|(a, b)| a != b).count();
    assert!(differ <= host.len() / 1000, "{differ} of {} words", host.len());
}

#[test]
fn a_dispatch_that_reads_what_it_writes_is_refused() {
    let words = buffer(64);
    let s = Slice::all(&words);
    let codec =
        Codec::new(PageLayout::new("layout", 8, Bits::Two, 2).unwrap(), Codebook::builtin());
    let device = nsnquant::gpu::DeviceCodec::new(support::context(), codec.unwrap()).unwrap();
    let fault = run(|rec| nsnquant::gpu::decode(rec, &device, s, 1, s, s, Dtype::F16, 2));
    assert!(matches!(fault, Err(Error::Offsets { .. })), "{fault:?}");
}

fn bytes(words: &[u32]) -> &[u8] {
    bytemuck::cast_slice(words)
}

#[test]
fn a_device_lost_before_its_read_back_is_handed_out_is_no_panic() {
    let (device, queue) = support::device(&wgpu::Limits::default());
    let context = Context::new(&device, &queue, &ContextDescriptor::default()).unwrap();
    let words = context.upload("words", &[7; 64]).unwrap();
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut recorder = Recorder::new(&context, &mut encoder);
    let readback = recorder.read_back(Slice::all(&words)).unwrap();
    recorder.finish().unwrap();
    queue.submit([encoder.finish()]);
    device.destroy();
    let _ = device.poll(wgpu::PollType::wait_indefinitely());
    match pollster::block_on(readback) {
        Ok(bytes) => assert_eq!(bytes, [7; 64]),
        Err(error) => assert!(matches!(error, Error::DeviceLost { .. })),
    }
}

#[test]
fn rows_beyond_any_budget_are_refused_without_lists_of_them() {
    let config = PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: 80,
        heads: 1,
        head_dim_k: 8,
        head_dim_v: 8,
        bits: None,
        chunk: 2,
        sinks: 0,
        recent: 0,
        raw: Dtype::F16,
        byte_budget: 1 << 23,
        slab_bytes: 1 << 16,
    };
    let mut pool = Pool::new(config).unwrap();
    let parts = [Part { sequence: pool.begin(), tokens: u32::MAX - 1 }];
    let start = std::time::Instant::now();
    for operation in
        [Operation::Append { parts: &parts, flush: true }, Operation::Prefill { parts: &parts }]
    {
        let needs = pool.needs(&operation).unwrap();
        assert!(!needs.fits() && needs.slab_bytes > 1 << 36);
        assert!(matches!(
            pool.plan(&operation),
            Err(Error::OutOfBudget { needed, available: 0x80_0000 }) if needed == needs.slab_bytes
        ));
    }
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn key_scales_of_no_channels_are_refused() {
    let scales = nsnquant::KeyScales { values: &[], of_page: &[] };
    assert!(matches!(scales.check(0, 0), Err(Error::HeadDim { .. })));
}

/// Keys of 64 channels under the default preset take an odd number of words, which the copy of a
/// device's pages took for an odd head dimension.
#[test]
fn pages_of_an_odd_number_of_words_lie_side_by_side() {
    const TOKENS: usize = 150;
    let wave = |count: usize, step: f32| -> Vec<f32> {
        (0..count).map(|i| (i as f32 * step).sin() + (i as f32 * 0.7 * step).cos()).collect()
    };
    let (keys, values, queries) =
        (wave(TOKENS * 64, 0.37), wave(TOKENS * 64, 0.73), wave(64, 0.53));
    let mut config = CacheConfig::new(&Preset::default(), 1, [64; 2]);
    config.dtype = Dtype::F32;

    let mut host = cache::cpu::LayerCache::new(config.clone()).unwrap();
    let tensor = |rows| Tensor::new("rows", Elements::F32(rows), 1, TOKENS, 64).unwrap();
    host.append(&tensor(&keys), &tensor(&values)).unwrap();
    let data = Elements::F32(&queries);
    let asked = Queries { data, batch: 1, heads: 1, tokens: 1, head_dim: 64 };
    let settings = AttendConfig::default();
    let expected = attention::cpu::attend(&host.flat().view(), &asked, &settings).unwrap().out;

    let context = support::context();
    let mut device = cache::gpu::LayerCache::new(context, config).unwrap();
    let upload = |rows: &[f32]| context.upload("rows", bytemuck::cast_slice(rows)).unwrap();
    let [keys, values, queries] = [&keys, &values, &queries].map(|rows| upload(rows));
    let tensor =
        |rows| DeviceTensor::new("rows", Slice::all(rows), Dtype::F32, 1, TOKENS, 64).unwrap();
    let data = Slice::all(&queries);
    let asked =
        DeviceQueries { data, dtype: Dtype::F32, batch: 1, heads: 1, tokens: 1, head_dim: 64 };
    let attended = run(|rec| {
        device.append(rec, &tensor(&keys), &tensor(&values))?;
        let flat = device.flat(rec)?;
        attention::gpu::attend(rec, &flat.view(), &asked, &settings)
    })
    .unwrap();
    let ours: Vec<f32> = support::download_as(&attended.out);
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    let apart = norm(&mut ours.iter().zip(&expected).map(|(a, b)| a - b));
    // A code that falls on the other side of a near tie moves one of 150 rows.
    assert!(apart <= 1e-2 * norm(&mut expected.iter().copied()), "{apart}");
}

// A lane takes 32 factors, and each branch more doubled the time that SwiftShader's compiler took for them.
#[test]
fn key_scales_are_held_to_their_limits_without_a_branch() {
    use naga::Statement;
    let source = concat!(
        "@group(0) @binding(0) var<storage, read> key_scales: array<u32>;\n",
        include_str!("../wgsl/common/key_scale.wgsl"),
    );
    let module = naga::front::wgsl::parse_str(source).unwrap();
    assert!(module.functions.len() > 1);
    for (_, function) in module.functions.iter() {
        let plain = |s: &Statement| {
            matches!(s, Statement::Emit(_) | Statement::Call { .. } | Statement::Return { .. })
        };
        assert!(function.body.iter().all(plain), "{:?}", function.name);
    }
}
