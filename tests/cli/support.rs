//! Runs the program and makes its input files, byte by byte, without the program's own writer.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use half::{bf16, f16};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// What a run of the program left.
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program.
pub fn wgkv<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
    let out = Command::new(env!("CARGO_BIN_EXE_wgkv"))
        .args(args)
        .output()
        .expect("the program was built and starts");
    Run {
        code: out.status.code().unwrap_or(-1),
        stdout: String::from_utf8(out.stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(out.stderr).expect("messages are UTF-8"),
    }
}

/// A folder of files for one test.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("the folder can be written to");
        path
    }

    /// Names of the files in the folder, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .expect("the folder can be read")
            .map(|entry| {
                entry.expect("an entry can be read").file_name().to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// Runs `verb` with an output file and `args`; it must end well. Returns the output file.
    pub fn run(&self, verb: &str, input: &Path, output: &str, args: &[&str]) -> PathBuf {
        let out = self.path(output);
        let mut line =
            vec![verb.into(), input.as_os_str().to_owned(), "-o".into(), out.clone().into()];
        line.extend(args.iter().map(Into::into));
        let run = wgkv(&line);
        assert_eq!(run.code, 0, "{line:?}: {}", run.stderr);
        out
    }

    /// Runs `verb`, which must refuse in one line that holds every one of `words` and leave nothing
    /// behind.
    pub fn refuses(&self, verb: &str, input: &Path, args: &[&str], words: &[&str]) {
        let before = self.names();
        let mut line = vec![verb.into(), input.as_os_str().to_owned()];
        if !matches!(verb, "inspect" | "budgets" | "doctor") {
            line.extend(["-o".into(), self.path("refused.st").into()]);
        }
        line.extend(args.iter().map(Into::into));
        let run = wgkv(&line);
        check_refusal(&run, 2, words, &format!("{line:?}"));
        assert_eq!(self.names(), before, "{line:?} left files behind");
    }
}

/// One line of refusal with `code`, holding `words`.
pub fn check_refusal(run: &Run, code: i32, words: &[&str], line: &str) {
    assert_eq!(run.code, code, "{line}: {}{}", run.stdout, run.stderr);
    assert_eq!(run.stdout, "", "{line}");
    let errors: Vec<&str> = run
        .stderr
        .lines()
        .filter(|l| !l.starts_with("running on") && !l.contains("count as 0"))
        // Mesa's own words where there is no desktop.
        .filter(|l| !l.contains("XDG_RUNTIME_DIR"))
        .collect();
    assert_eq!(errors.len(), 1, "{line}: {}", run.stderr);
    assert!(errors[0].starts_with("error: "), "{line}: {}", run.stderr);
    assert!(errors[0].len() < 500, "{line}: {}", run.stderr);
    for word in words {
        assert!(errors[0].contains(word), "{line}: no {word:?} in {}", run.stderr);
    }
}

/// A safetensors file in the making, for good ones and bad ones.
#[derive(Clone, Default)]
pub struct File {
    pub header: Map<String, Value>,
    pub data: Vec<u8>,
}

impl File {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor behind the others.
    pub fn tensor(mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Self {
        let begin = self.data.len();
        self.data.extend_from_slice(bytes);
        let entry =
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()]});
        self.header.insert(name.into(), entry);
        self
    }

    /// Adds f16 values.
    pub fn f16(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        self.tensor(name, "F16", shape, &bytes)
    }

    /// Adds bf16 values.
    pub fn bf16(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        self.tensor(name, "BF16", shape, &bytes)
    }

    /// Adds f32 values.
    pub fn f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, "F32", shape, &bytes)
    }

    /// Adds u32 values.
    pub fn u32(self, name: &str, values: &[u32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, "U32", &[values.len()], &bytes)
    }

    /// Sets the metadata.
    pub fn meta(mut self, meta: Value) -> Self {
        self.header.insert("__metadata__".into(), meta);
        self
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        raw_file(Value::Object(self.header.clone()).to_string().as_bytes(), &self.data)
    }
}

/// A file with this header text.
pub fn raw_file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// Reproducible values in [-1, 1): a counter through a 32-bit mixer.
pub fn noise(seed: u32, count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let mut h = i.wrapping_add(seed.wrapping_mul(0x9e37_79b9));
            h = (h ^ h >> 16).wrapping_mul(0x85eb_ca6b);
            h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
            h ^= h >> 16;
            (f64::from(h) / 2f64.powi(31) - 1.0) as f32
        })
        .collect()
}

/// Keys and values of layer 0 in f16.
pub fn pair(shape: [usize; 4]) -> File {
    let count = shape.iter().product();
    File::new().f16("layers.0.k", &shape, &noise(1, count)).f16(
        "layers.0.v",
        &shape,
        &noise(2, count),
    )
}

/// A tensor of a file that the program wrote, read by another reader: type, shape and bytes.
pub fn tensor(path: &Path, name: &str) -> (String, Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(path).expect("the file is there");
    let file = SafeTensors::deserialize(&bytes).expect("the file is whole");
    let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec())
}

/// Names of the tensors of a file.
pub fn tensors(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).expect("the file is there");
    let file = SafeTensors::deserialize(&bytes).expect("the file is whole");
    let mut names: Vec<String> = file.names().iter().map(ToString::to_string).collect();
    names.sort();
    names
}

/// An f32 tensor.
pub fn f32s(path: &Path, name: &str) -> Vec<f32> {
    let (dtype, _, bytes) = tensor(path, name);
    let values = |size: usize| bytes.chunks_exact(size);
    match dtype.as_str() {
        "F32" => values(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        "F16" => values(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        other => panic!("{name} is {other}"),
    }
}

/// A u32 tensor.
pub fn u32s(path: &Path, name: &str) -> Vec<u32> {
    let (dtype, _, bytes) = tensor(path, name);
    assert_eq!(dtype, "U32", "{name}");
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// A file of one saved sequence of 9 tokens.
pub fn saved_sequences() -> Vec<u8> {
    use wgkv::cache::pool::{Operation, Part, Pool, PoolConfig};
    use wgkv::layout::pool::PageClass;
    let config = PoolConfig {
        key_scale: false,
        profile: wgkv::layout::Profile::Compat,
        rope: None,
        signs: None,
        layers: 1,
        heads: 1,
        head_dim_k: 8,
        head_dim_v: 8,
        bits: None,
        chunk: 16,
        sinks: 0,
        recent: 0,
        raw: wgkv::shape::Dtype::F16,
        byte_budget: 1 << 20,
        slab_bytes: 1 << 16,
    };
    let mut pool = Pool::new(config.clone()).expect("a pool");
    let sequence = pool.begin();
    let parts = [Part { sequence, tokens: 9 }];
    let step = pool.plan(&Operation::Append { parts: &parts, flush: false }).expect("a plan");
    pool.commit(step).expect("it is new");
    let (snapshot, _) = pool.snapshot(&[sequence]).expect("it is there");
    let layout = pool.layout();
    let mut page = vec![0u32; layout.words(PageClass::Raw)];
    let positions = layout.positions_offset(PageClass::Raw);
    (0..9).for_each(|row| page[positions + row] = row as u32);
    let page = bytemuck::cast_slice(&page).to_vec();
    let pages = vec![[Vec::new().into(), Vec::new().into(), page.into()]];
    let codebook = wgkv::nsnquant::Codebook::builtin();
    let saved = wgkv::files::Saved::new(&config, &codebook, snapshot, pages);
    saved.expect("it holds together").to_bytes()
}
