//! The cache that the repository ships.

use half::f16;
use safetensors::SafeTensors;
use wgkv::shape::{Elements, Tensor};

pub const LAYERS: [usize; 2] = [7, 22];
pub const KV_HEADS: usize = 2;
pub const HEADS: usize = 6;
pub const TOKENS: usize = 2048;
pub const DIM: usize = 64;
/// The newest queries of each head; their positions end where the cache does.
pub const QUERIES: usize = 8;

/// Keys and values `[KV_HEADS, TOKENS, DIM]` and queries `[HEADS, QUERIES, DIM]` of a layer.
pub struct Layer {
    pub keys: Vec<f16>,
    pub values: Vec<f16>,
    pub queries: Vec<f16>,
}

impl Layer {
    pub fn open(number: usize) -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/sample/smollm2_sample.safetensors");
        let bytes = std::fs::read(path).expect("the sample");
        let file = SafeTensors::deserialize(&bytes).expect("a whole file");
        let read = |part: &str, shape: [usize; 4]| -> Vec<f16> {
            let view = file.tensor(&format!("layers.{number}.{part}")).expect("a tensor");
            assert_eq!(view.shape(), shape);
            bytemuck::pod_collect_to_vec(view.data())
        };
        let queries = read("q", [1, HEADS, 64, DIM]);
        let newest = queries.chunks(64 * DIM).flat_map(|head| &head[(64 - QUERIES) * DIM..]);
        Self {
            keys: read("k", [1, KV_HEADS, TOKENS, DIM]),
            values: read("v", [1, KV_HEADS, TOKENS, DIM]),
            queries: newest.copied().collect(),
        }
    }

    pub fn tensors(&self) -> [Tensor<'_>; 2] {
        [("keys", &self.keys), ("values", &self.values)].map(|(name, data)| {
            Tensor::new(name, Elements::F16(data), KV_HEADS, TOKENS, DIM).expect("a tensor")
        })
    }
}
