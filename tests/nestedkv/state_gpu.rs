//! The cache of a sequence on the device, held to the one on the host.

use half::f16;
use wgkv::Error;
use wgkv::gpu::{DeviceTensor, Slice};
use wgkv::nestedkv::gpu::NestedKvState as Device;
use wgkv::nestedkv::{Budget, EvictConfig, cpu::NestedKvState as Host};
use wgkv::shape::{Dtype, Elements};
use wgkv::wgpu::Buffer;

use super::cases::{Data, uniform, upload};
use super::support::{context, download_as, run};

const ROWS: usize = 4;
const KEY_DIM: usize = 32;
const VALUE_DIM: usize = 16;

/// Tokens `from..to` of every row of values that f16 holds exactly.
fn part(seed: u32, dim: usize, from: usize, to: usize, dtype: Dtype) -> Data {
    let all: Vec<f32> =
        uniform(seed, ROWS * 300 * dim).iter().map(|v| (v * 128.0).round() / 64.0).collect();
    let rows =
        (0..ROWS).flat_map(|row| all[(row * 300 + from) * dim..(row * 300 + to) * dim].to_vec());
    Data::new(&rows.collect::<Vec<f32>>(), dtype)
}

struct Pair {
    host: Host,
    device: Device,
    next: usize,
    dtype: Dtype,
}

impl Pair {
    fn new(config: EvictConfig, dtype: Dtype) -> Self {
        let host = Host::new(ROWS, KEY_DIM, VALUE_DIM, config).unwrap();
        let device = Device::new(context(), ROWS, KEY_DIM, VALUE_DIM, config).unwrap();
        Self { host, device, next: 0, dtype }
    }

    fn feed(&mut self, count: usize, decode: bool) {
        let (from, to) = (self.next, self.next + count);
        self.next = to;
        let keys = part(5, KEY_DIM, from, to, self.dtype);
        let values = part(6, VALUE_DIM, from, to, self.dtype);
        let upload = |data: &Data| context().upload("part", data.view().bytes()).unwrap();
        let (key_buffer, value_buffer) = (upload(&keys), upload(&values));
        let on_device = |buffer, dim| {
            DeviceTensor::new("part", Slice::all(buffer), self.dtype, ROWS, count, dim).unwrap()
        };
        let (device_keys, device_values) =
            (on_device(&key_buffer, KEY_DIM), on_device(&value_buffer, VALUE_DIM));
        let keys = keys.tensor(ROWS, count, KEY_DIM);
        let values = values.tensor(ROWS, count, VALUE_DIM);
        if decode {
            self.host.append_decode(&keys, &values).unwrap();
            run(|rec| self.device.append_decode(rec, &device_keys, &device_values)).unwrap();
        } else {
            self.host.append_prefill(&keys, &values).unwrap();
            run(|rec| self.device.append_prefill(rec, &device_keys, &device_values)).unwrap();
        }
    }

    fn finish(&mut self) {
        self.host.finish_prefill().unwrap();
        run(|rec| self.device.finish_prefill(rec)).unwrap();
    }

    /// Everything that the two hold, compared bit for bit.
    fn check(&self) {
        let kv = self.device.get_kv();
        let offsets: Vec<u32> = download_as(&kv.offsets);
        let positions: Vec<u32> = download_as(&kv.positions);
        assert_eq!(u64::from(offsets[ROWS]), kv.held);
        for row in 0..ROWS {
            let (begin, end) = (offsets[row] as usize, offsets[row + 1] as usize);
            let host = self.host.get_kv(row).unwrap();
            assert_eq!(&positions[begin..end], host.positions, "row {row}");
            let same = |buffer: &Buffer, dtype: Dtype, dim: usize, elements: Elements<'_>| {
                let bytes: Vec<u8> = download_as(buffer);
                let token = dim * dtype.bytes();
                assert_eq!(elements.dtype(), dtype);
                assert_eq!(&bytes[begin * token..end * token], elements.bytes(), "row {row}");
            };
            same(&kv.keys, kv.key_dtype, KEY_DIM, host.keys);
            same(&kv.values, kv.value_dtype, VALUE_DIM, host.values);
        }
        assert_eq!(self.device.tokens_seen(), self.host.tokens_seen());
        assert_eq!(self.device.next_position(), self.host.next_position());
        assert_eq!(self.device.compressed(), self.host.compressed());
        assert_eq!(self.device.fp16_bytes(), self.host.fp16_bytes());
        assert_eq!(self.device.full_fp16_bytes(), self.host.full_fp16_bytes());
    }
}

#[test]
fn prompt_eviction_and_decoding_equal_those_of_the_host() {
    let budgets = [Budget::Uniform(40), Budget::Adaptive { per_head: 40, heads: 2 }];
    for budget in budgets {
        for dtype in [Dtype::F16, Dtype::F32, Dtype::Bf16] {
            let mut pair = Pair::new(EvictConfig::new(budget), dtype);
            for count in [1, 100, 37, 62] {
                pair.feed(count, false);
                pair.check();
            }
            pair.finish();
            pair.check();
            for count in [1, 1, 5] {
                pair.feed(count, true);
                pair.check();
            }
        }
    }
}

#[test]
fn the_cut_of_a_prompt_does_not_show() {
    let held = |cuts: &[usize]| {
        let mut pair = Pair::new(EvictConfig::new(Budget::Uniform(30)), Dtype::F16);
        for count in cuts {
            pair.feed(*count, false);
        }
        pair.feed(2, true);
        let kv = pair.device.get_kv();
        [&kv.keys, &kv.values, &kv.positions, &kv.offsets].map(download_as::<u32>)
    };
    let whole = held(&[150]);
    assert_eq!(held(&[1, 149]), whole);
    assert_eq!(held(&[64, 64, 22]), whole);
}

#[test]
fn decoding_without_a_prompt_and_refusals() {
    let mut pair = Pair::new(EvictConfig::new(Budget::Uniform(8)), Dtype::F16);
    pair.finish();
    assert!(!pair.device.compressed(), "a prompt of no tokens is not finished");
    pair.feed(3, true);
    pair.check();

    let words = upload(&[0u32; ROWS * KEY_DIM]);
    let tensor =
        |rows, dim, dtype| DeviceTensor::new("t", Slice::all(&words), dtype, rows, 1, dim).unwrap();
    let (keys, values) = (tensor(ROWS, KEY_DIM, Dtype::F16), tensor(ROWS, VALUE_DIM, Dtype::F16));
    let refusal = |state: &mut Device, k: &DeviceTensor<'_>, v: &DeviceTensor<'_>| {
        run(|rec| state.append_prefill(rec, k, v)).unwrap_err()
    };
    let state = &mut pair.device;
    assert!(matches!(refusal(state, &keys, &values), Error::Finished { .. }));
    let config = || EvictConfig::new(Budget::Uniform(8));
    let mut fresh = Device::new(context(), ROWS, KEY_DIM, VALUE_DIM, config()).unwrap();
    let narrow = tensor(ROWS, 24, Dtype::F16);
    assert!(matches!(refusal(&mut fresh, &narrow, &values), Error::Mismatch { .. }));
    assert!(matches!(
        refusal(&mut fresh, &keys, &tensor(2, VALUE_DIM, Dtype::F16)),
        Error::Mismatch { .. }
    ));
    run(|rec| fresh.append_prefill(rec, &keys, &values)).unwrap();
    let wide = tensor(ROWS, KEY_DIM, Dtype::F32);
    assert!(matches!(refusal(&mut fresh, &wide, &values), Error::Dtype { .. }));
    assert_eq!(fresh.tokens_seen(), 1);
    assert!(matches!(Device::new(context(), 0, 32, 32, config()), Err(Error::Empty { .. })));
    assert!(matches!(Device::new(context(), 1, 60, 32, config()), Err(Error::HeadDim { .. })));
}

/// A value that f16 cannot hold is found in the word that comes back.
#[test]
fn appended_values_beyond_f16_are_reported() {
    let config = EvictConfig::new(Budget::Uniform(8));
    let mut state = Device::new(context(), 1, 8, 8, config).unwrap();
    let mut values = [1.0f32; 16];
    values[9] = 1e6;
    let (keys, values) = (upload(&[1.0f32; 16]), upload(&values));
    let tensor = |buffer| DeviceTensor::new("t", Slice::all(buffer), Dtype::F32, 1, 2, 8).unwrap();
    let appended = run(|rec| state.append_decode(rec, &tensor(&keys), &tensor(&values))).unwrap();
    let word =
        |buffer: &Buffer| wgkv::nestedkv::gpu::first_beyond(&download_as::<u8>(buffer)).unwrap();
    assert_eq!(word(&appended.keys.beyond), None);
    assert_eq!(word(&appended.values.beyond), Some(1));
    assert_eq!(download_as::<f16>(&state.get_kv().keys).len(), 16);
}
