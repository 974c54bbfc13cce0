//! Slabs of both paths that stages are compared on.

use wgkv::cache::gpu::{List, Slab};
use wgkv::gpu::{Recorder, Slice};
use wgkv::layout::Bits;
use wgkv::layout::pool::{PageClass, PageId, PoolLayout};
use wgkv::nsnquant::gpu::DeviceCodec;
use wgkv::nsnquant::{Codebook, Codec};
use wgkv::shape::Dtype;
use wgkv::wgpu;

use crate::support;

/// Numbers that look random.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32
    }

    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(end)) >> 32) as u32
    }

    /// A number whose mean is 0 and whose variance is 1.
    pub fn normal(&mut self) -> f32 {
        let sum: u32 = (0..12).map(|_| self.word() >> 16).sum();
        sum as f32 / 65536.0 - 6.0
    }

    /// Words of `count` normal elements of a type.
    pub fn elements(&mut self, count: usize, dtype: Dtype) -> Vec<u32> {
        let bits = |value: f32| match dtype {
            Dtype::F32 => value.to_bits(),
            Dtype::F16 => half::f16::from_f32(value).to_bits().into(),
            Dtype::Bf16 => half::bf16::from_f32(value).to_bits().into(),
        };
        let words: Vec<u32> = (0..count).map(|_| bits(self.normal())).collect();
        if dtype == Dtype::F32 {
            return words;
        }
        words.chunks(2).map(|pair| pair[0] | pair[1] << 16).collect()
    }
}

/// Slabs of one class, on the host and on the device. Number 1 is missing.
pub struct Both {
    pub class: PageClass,
    pub host: Vec<Option<Vec<u32>>>,
    pub device: Vec<Option<wgpu::Buffer>>,
}

impl Both {
    pub fn new(layout: &PoolLayout, class: PageClass, mut word: impl FnMut() -> u32) -> Self {
        let words = (layout.slab_bytes(class) / 4) as usize;
        let host: Vec<Option<Vec<u32>>> = (0..4)
            .map(|number| (number != 1).then(|| (0..words).map(|_| word()).collect()))
            .collect();
        Self { class, device: upload(&host), host }
    }

    /// Uploads what the host holds.
    pub fn refresh(&mut self) {
        self.device = upload(&self.host);
    }

    pub fn slabs(&self) -> Vec<Slab<'_>> {
        let held =
            (0..).zip(&self.device).filter_map(|(number, slab)| Some((number, slab.as_ref()?)));
        held.map(|(number, buffer)| Slab { class: self.class, number, words: Slice::all(buffer) })
            .collect()
    }

    /// What the device holds.
    pub fn download(&self) -> Vec<Option<Vec<u32>>> {
        self.device.iter().map(|slab| slab.as_ref().map(support::download_as::<u32>)).collect()
    }

    pub fn check(&self) {
        for (number, (host, device)) in self.host.iter().zip(self.download()).enumerate() {
            let (Some(host), Some(device)) = (host, &device) else { continue };
            let wrong = host.iter().zip(device).position(|(host, device)| host != device);
            assert_eq!(wrong, None, "slab {number}");
        }
    }

    /// All pages that there are.
    pub fn pages(&self, layout: &PoolLayout) -> Vec<PageId> {
        let count = layout.pages_per_slab(self.class);
        let of = |number| (0..count).map(move |index| (number, index));
        let pages = [0, 2, 3].into_iter().flat_map(of);
        pages.map(|(slab, index)| layout.page(self.class, slab, index)).collect()
    }

    /// Pages that there are not: beyond a slab, in a missing slab, beyond all slabs, none.
    pub fn missing(&self, layout: &PoolLayout) -> Vec<PageId> {
        let beyond = layout.pages_per_slab(self.class);
        assert!(!beyond.is_power_of_two(), "a slab must have room for an index beyond it");
        let page = |slab, index| layout.page(self.class, slab, index);
        vec![page(0, beyond), page(3, beyond), page(1, 0), page(9, 0), PageId::NONE]
    }
}

fn upload(host: &[Option<Vec<u32>>]) -> Vec<Option<wgpu::Buffer>> {
    let upload =
        |words: &Vec<u32>| support::context().upload("slab", bytemuck::cast_slice(words)).unwrap();
    host.iter().map(|slab| slab.as_ref().map(upload)).collect()
}

/// Slabs of three or five raw pages.
pub fn layout(dims: [usize; 2], bits: [u32; 2], chunk: usize, sinks: usize) -> PoolLayout {
    let [keys, values] = bits.map(|bits| Bits::new("bits", bits).unwrap());
    let new = |slab| PoolLayout::new(dims[0], dims[1], Some((keys, values)), chunk, sinks, slab);
    let raw = new(1 << 26).unwrap().bytes(PageClass::Raw);
    let layout = new(3 * raw).unwrap();
    let odd = |class| !layout.pages_per_slab(class).is_power_of_two();
    if odd(PageClass::Raw) && odd(PageClass::Packed) {
        return layout;
    }
    new(3 * raw + raw / 2).unwrap()
}

pub fn codecs(layout: &PoolLayout) -> [Codec; 2] {
    layout.packed().unwrap().map(|layout| Codec::new(layout, Codebook::builtin()).unwrap())
}

pub fn device_codecs(codecs: &[Codec; 2]) -> [DeviceCodec; 2] {
    codecs.clone().map(|codec| DeviceCodec::new(support::context(), codec).unwrap())
}

/// Records with a list of entries in device memory that starts behind other words.
pub fn with_list<T: bytemuck::Pod>(
    entries: &[T],
    record: impl FnOnce(&mut Recorder<'_>, &List<'_>) -> wgkv::Result<()>,
) {
    let mut words = vec![0xdead_beefu32; 3];
    words.extend_from_slice(bytemuck::cast_slice(entries));
    let buffer = support::context().upload("list", bytemuck::cast_slice(&words)).unwrap();
    let list = List { words: Slice::all(&buffer), first: 3, count: entries.len() as u32 };
    support::run(|rec| record(rec, &list)).unwrap();
}
