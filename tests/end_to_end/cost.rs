//! What the stages cost as far as it can be seen without a clock: dispatches, which take a device
//! about 2 us each however small, and bytes bound. A stage that grows here has grown everywhere.

use half::f16;
use wgkv::attention::gpu::{DeviceCacheView, DevicePackedView, DeviceQueries, attend};
use wgkv::gpu::{DeviceTensor, Recorder, Slice};
use wgkv::layout::{Bits, PageLayout};
use wgkv::nestedkv::{Budget, EvictConfig, gpu as nestedkv};
use wgkv::nsnquant::gpu::{DeviceCodec, decode, encode};
use wgkv::nsnquant::{Codebook, Codec};
use wgkv::shape::Dtype;

use crate::support;

const HEADS: usize = 2;
const DIM: usize = 64;
const CHUNK: usize = 64;

/// Dispatches of a recording and the bytes that it binds.
fn cost(record: impl FnOnce(&mut Recorder<'_>) -> wgkv::Result<()>) -> (u64, u64) {
    support::run(|rec| {
        record(rec)?;
        Ok((rec.dispatches(), rec.bound_bytes()))
    })
    .expect("a recording")
}

fn data(tokens: usize) -> wgkv::wgpu::Buffer {
    let data: Vec<f16> = (0..HEADS * tokens * DIM)
        .map(|i| f16::from_f32((i % 97) as f32 / 40.0 - 1.2 + (i % 13) as f32 / 9.0))
        .collect();
    support::context().upload("data", bytemuck::cast_slice(&data)).expect("a buffer")
}

#[test]
fn eviction_binds_keys_twice_and_grows_with_tokens_alone() {
    let costs = [8192, 16384].map(|tokens| {
        let (keys, values) = (data(tokens), data(tokens));
        let [keys, values] = [&keys, &values].map(|buffer| {
            DeviceTensor::new("data", Slice::all(buffer), Dtype::F16, HEADS, tokens, DIM)
                .expect("a tensor")
        });
        let config = EvictConfig::new(Budget::Uniform(tokens as u32 / 4));
        let budget = Budget::Adaptive { per_head: tokens as u32 / 4, heads: HEADS };
        let adaptive = EvictConfig::new(budget);
        let mut scores = None;
        let scored = cost(|rec| {
            scores = Some(nestedkv::score(rec, &keys, &config.score)?.score);
            Ok(())
        });
        let scores = scores.expect("scores");
        let kept = [&config, &adaptive].map(|config| {
            cost(|rec| nestedkv::keep(rec, Slice::all(&scores), HEADS, tokens, config).map(|_| ()))
        });
        let whole =
            cost(|rec| nestedkv::compress_prefill(rec, &keys, &values, &config).map(|_| ()));
        let count = (HEADS * tokens) as u64;
        // Keys twice; a token's sums of runs three times; 23 words of scores and their parts; and seven
        // times 2,048 bins of each scale of a head.
        let bytes = 2 * count * DIM as u64 * 2 + count * (3 * DIM as u64 / 16 + 92);
        assert!(
            scored.1 <= bytes + (HEADS * 7 * 3 * 8192 + 8192) as u64,
            "{scored:?} against {bytes}"
        );
        (scored, kept, whole)
    });
    let dispatches = costs
        .map(|(scored, [uniform, adaptive], whole)| [scored.0, uniform.0, adaptive.0, whole.0]);
    assert_eq!(dispatches[0], dispatches[1]);
    assert_eq!(dispatches[0], [8, 6, 12, 16]);
    for (few, many) in [
        (costs[0].0, costs[1].0),
        (costs[0].1[0], costs[1].1[0]),
        (costs[0].1[1], costs[1].1[1]),
        (costs[0].2, costs[1].2),
    ] {
        assert!(many.1 <= 2 * few.1, "{few:?}, {many:?}");
    }
}

/// Short rows take no bins, and no more dispatches however many there are.
#[test]
fn short_rows_cost_what_their_tokens_do() {
    let costs = [64, 4160].map(|rows| {
        let (tokens, dim) = (5, 16);
        let zeros = vec![f16::ZERO; rows * tokens * dim];
        let keys = support::context().upload("keys", bytemuck::cast_slice(&zeros));
        let keys = keys.expect("a buffer");
        let keys = DeviceTensor::new("keys", Slice::all(&keys), Dtype::F16, rows, tokens, dim)
            .expect("a tensor");
        let config = EvictConfig::new(Budget::Uniform(2));
        let mut scores = None;
        let scored = cost(|rec| {
            scores = Some(nestedkv::score(rec, &keys, &config.score)?.score);
            Ok(())
        });
        let scores = scores.expect("scores");
        let kept =
            cost(|rec| nestedkv::keep(rec, Slice::all(&scores), rows, tokens, &config).map(|_| ()));
        assert!(scored.1 + kept.1 < (rows * 4096 + 4096) as u64, "{scored:?} {kept:?}");
        [scored.0, kept.0]
    });
    assert_eq!(costs, [[6, 3]; 2]);
}

#[test]
fn packing_and_attention_bind_what_they_read_once() {
    let (context, tokens, group) = (support::context(), 512, 4);
    let pages = HEADS * tokens / CHUNK;
    let raw = (HEADS * tokens * DIM * 2) as u64;
    let (keys, values, queries) = (data(tokens), data(tokens), data(group));
    let layout = PageLayout::new("data", DIM, Bits::Two, CHUNK).expect("a layout");
    let codec = Codec::new(layout, Codebook::builtin()).expect("a codec");
    let codec = DeviceCodec::new(context, codec).expect("a codec");
    let words =
        |words: &[u32]| context.upload("words", bytemuck::cast_slice(words)).expect("a buffer");
    let starts: Vec<u32> = (0..(HEADS * tokens) as u32).step_by(CHUNK).collect();
    let starts = words(&starts);
    let packed_bytes = (pages * layout.words() * 4) as u64;
    let packed = [(); 2].map(|()| context.create("pages", packed_bytes).expect("a buffer"));
    for (data, out) in [(&keys, &packed[0]), (&values, &packed[1])] {
        let (count, bytes) = cost(|rec| {
            let (data, starts, out) = (Slice::all(data), Slice::all(&starts), Slice::all(out));
            encode(rec, &codec, data, Dtype::F16, HEADS * tokens, starts, pages, out)
        });
        assert_eq!(count, 1);
        assert!(bytes <= raw + packed_bytes + 32_768, "{bytes}");
    }
    let restored = context.create("restored", raw).expect("a buffer");
    let (count, bytes) = cost(|rec| {
        let (pages_of, out) = (Slice::all(&packed[0]), Slice::all(&restored));
        decode(rec, &codec, pages_of, pages, Slice::all(&starts), out, Dtype::F16, HEADS * tokens)
    });
    assert_eq!(count, 1);
    assert!(bytes <= raw + packed_bytes + 32_768, "{bytes}");

    let offsets = words(&[0, tokens as u32, (HEADS * tokens) as u32]);
    let page_offsets = words(&[0, (tokens / CHUNK) as u32, pages as u32]);
    let queries = DeviceQueries {
        data: Slice::all(&queries),
        dtype: Dtype::F16,
        batch: 1,
        heads: HEADS * group,
        tokens: 1,
        head_dim: DIM,
    };
    for is_packed in [false, true] {
        let view = DeviceCacheView {
            kv_rows: HEADS,
            head_dim_k: DIM,
            head_dim_v: DIM,
            raw_tokens: if is_packed { 0 } else { HEADS * tokens },
            key_dtype: Dtype::F16,
            value_dtype: Dtype::F16,
            raw_offsets: Slice::all(&offsets),
            raw_keys: Slice::all(&keys),
            raw_values: Slice::all(&values),
            raw_positions: None,
            packed: is_packed.then_some(DevicePackedView {
                keys: &codec,
                values: &codec,
                pages,
                page_offsets: Slice::all(&page_offsets),
                key_pages: Slice::all(&packed[0]),
                value_pages: Slice::all(&packed[1]),
                page_positions: None,
                key_scales: None,
            }),
        };
        let (count, bytes) =
            cost(|rec| attend(rec, &view, &queries, &Default::default()).map(|_| ()));
        // Queries prepared, the rows, and the merge of their parts.
        assert!(count <= 3, "{count} dispatches");
        let rows = if is_packed { 2 * packed_bytes } else { 2 * raw };
        assert!(bytes <= rows + 131_072, "{bytes} against {rows}");
    }
}
