//! Reference files: safetensors with an index of cases in JSON.

use safetensors::{Dtype, SafeTensors};

/// A reference file in memory.
pub struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    /// Reads a reference file by its name, such as `nsn_cases.safetensors`.
    pub fn open(name: &str) -> Self {
        Self { bytes: super::golden(name) }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("a safetensors file")
    }

    /// Whether the file holds a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file().tensor(name).is_ok()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.file().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec()
    }

    /// Type and bytes of a tensor.
    pub fn raw(&self, name: &str) -> (Dtype, Vec<u8>) {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        (tensor.dtype(), tensor.data().to_vec())
    }

    /// A tensor of any type of number as f64.
    pub fn numbers(&self, name: &str) -> Vec<f64> {
        let (dtype, bytes) = self.raw(name);
        match dtype {
            Dtype::F64 => bytemuck::pod_collect_to_vec(&bytes),
            Dtype::F32 => collect(&bytes, f64::from as fn(f32) -> f64),
            Dtype::F16 => collect(&bytes, |bits: u16| half::f16::from_bits(bits).to_f64()),
            Dtype::I32 => collect(&bytes, f64::from as fn(i32) -> f64),
            Dtype::U8 => bytes.iter().map(|b| f64::from(*b)).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// A tensor of bytes.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let (dtype, bytes) = self.raw(name);
        assert_eq!(dtype, Dtype::U8, "{name}");
        bytes
    }
}

fn collect<T: bytemuck::Pod>(bytes: &[u8], widen: impl Fn(T) -> f64) -> Vec<f64> {
    bytemuck::pod_collect_to_vec::<u8, T>(bytes).into_iter().map(widen).collect()
}

/// The index of the reference files.
pub fn index() -> serde_json::Value {
    serde_json::from_slice(&super::golden("index.json")).expect("an index in JSON")
}
