//! A safetensors file opened for reading. The header is read and checked at once, tensors when they
//! are asked for; nothing is ever allocated that the file does not really hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use wgkv::files::{Data, Entry, FileDtype, Header, MlxLm, PromptCache, looks_like, shown};

use super::checksum::{CHECKSUM, Checksum};
use super::fail::Fail;
use super::memory::{blame, room};

/// An open file and its header.
#[derive(Debug)]
pub struct Source<R = File> {
    name: String,
    reader: R,
    header: Header,
    data_start: u64,
    bytes: u64,
    /// Tokens in the tensors of a layer, where a prompt cache of mlx-lm says it.
    told: BTreeMap<u32, usize>,
}

impl Source {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, Fail> {
        let name = path.display().to_string();
        let fail = |message: String| Fail::input(message).at(shown(&name));
        if path.as_os_str() == "-" {
            return Err(fail("standard input is not read, give a file".into()));
        }
        // A FIFO would block in open, a device never ends: look before opening.
        let kind = std::fs::metadata(path).map_err(|e| fail(said(&e)))?;
        if kind.is_dir() {
            return Err(fail("is a directory, expected a safetensors file".into()));
        }
        if !kind.is_file() {
            return Err(fail("is a pipe or device, expected a regular file".into()));
        }
        let reader = File::open(path).map_err(|e| fail(said(&e)))?;
        blame(shown(&name));
        Self::new(name, reader)
    }
}

impl<R: Read + Seek> Source<R> {
    /// Reads and checks the header.
    pub fn new(name: impl Into<String>, mut reader: R) -> Result<Self, Fail> {
        let name = name.into();
        let (header, data_start, bytes) =
            open(&mut reader).map_err(|why| Fail::input(why).at(shown(&name)))?;
        let mut source = Self { name, reader, header, data_start, bytes, told: BTreeMap::new() };
        source.told = source.read_told()?;
        Ok(source)
    }

    /// Since 0.32 the tensors of mlx-lm are as long as its memory was, and a scalar beside them says
    /// what is in it.
    fn read_told(&mut self) -> Result<BTreeMap<u32, usize>, Fail> {
        let Some((MlxLm::V0_32, classes)) = PromptCache::classes(&self.header) else {
            return Ok(BTreeMap::new());
        };
        let counted = (0..).zip(classes).filter(|(_, class)| *class == "KVCache");
        let layers: Vec<u32> = counted.map(|(layer, _)| layer).collect();
        let mut told = BTreeMap::new();
        for layer in layers {
            let name = format!("{layer}.2");
            let (_, count) = self.exactly::<i32>(&name, FileDtype::I32, 0)?;
            let count = usize::try_from(count[0]).map_err(|_| {
                self.fail(&name, format!("is {}, expected a number of tokens", count[0]))
            })?;
            told.insert(layer, count);
        }
        Ok(told)
    }

    /// Tokens in the tensors of a layer, where they may be longer.
    pub fn told(&self, layer: u32) -> Option<usize> {
        self.told.get(&layer).copied()
    }

    /// The name of the file in messages.
    pub fn name(&self) -> String {
        shown(&self.name)
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The checked header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A refusal that names this file and a tensor.
    pub fn fail(&self, tensor: &str, message: impl Into<String>) -> Fail {
        Fail::input(message).at(shown(tensor)).at(self.name())
    }

    /// What the header says of a tensor; an error when it is missing or of another rank.
    pub fn entry(&self, tensor: &str, rank: usize) -> Result<Entry, Fail> {
        let Some(entry) = self.header.tensors.get(tensor) else {
            return Err(self.fail(tensor, "is missing"));
        };
        if entry.shape.len() != rank {
            let message = format!("has shape {:?}, expected {rank} dimensions", entry.shape);
            return Err(self.fail(tensor, message));
        }
        Ok(entry.clone())
    }

    /// Reads floats of any of the three types that caches come in.
    pub fn floats(&mut self, tensor: &str, rank: usize) -> Result<(Vec<usize>, Data), Fail> {
        let entry = self.entry(tensor, rank)?;
        let data = match entry.dtype {
            FileDtype::F32 => Data::F32(self.load(tensor, &entry)?),
            FileDtype::F16 => Data::F16(self.load(tensor, &entry)?),
            FileDtype::BF16 => Data::Bf16(self.load(tensor, &entry)?),
            other => {
                let message = format!("has dtype {}, expected F32, F16 or BF16", other.name());
                return Err(self.fail(tensor, message));
            }
        };
        Ok((entry.shape, data))
    }

    /// Reads elements of one type.
    pub fn exactly<T: bytemuck::Pod>(
        &mut self,
        tensor: &str,
        dtype: FileDtype,
        rank: usize,
    ) -> Result<(Vec<usize>, Vec<T>), Fail> {
        let entry = self.entry(tensor, rank)?;
        if entry.dtype != dtype {
            let message = format!("has dtype {}, expected {}", entry.dtype.name(), dtype.name());
            return Err(self.fail(tensor, message));
        }
        let data = self.load(tensor, &entry)?;
        Ok((entry.shape, data))
    }

    /// Holds the whole file against its checksum. One without any is taken as it is, unless there must
    /// be one.
    pub fn check_sum(&mut self, must: bool) -> Result<(), Fail> {
        let Some(told) = self.header.metadata.get(CHECKSUM) else {
            let damaged = format!("is damaged or was changed: it has no {CHECKSUM}");
            return if must { Err(Fail::input(damaged).at(self.name())) } else { Ok(()) };
        };
        let mut sum = Checksum::new(&self.header);
        let mut part = vec![0; 1 << 16];
        for (name, entry) in &self.header.tensors {
            sum.tensor(name, entry);
            let mut read = || -> std::io::Result<()> {
                self.reader.seek(SeekFrom::Start(self.data_start + entry.begin))?;
                let mut left = entry.end - entry.begin;
                while left > 0 {
                    let now = left.min(part.len() as u64) as usize;
                    self.reader.read_exact(&mut part[..now])?;
                    sum.bytes(&part[..now]);
                    left -= now as u64;
                }
                Ok(())
            };
            read().map_err(|e| self.fail(name, format!("cannot be read: {}", said(&e))))?;
        }
        let got = sum.digits();
        if got == *told {
            return Ok(());
        }
        let message =
            format!("is damaged or was changed: its {CHECKSUM} is {got}, it says {}", shown(told));
        Err(Fail::input(message).at(self.name()))
    }

    fn load<T: bytemuck::Pod>(&mut self, tensor: &str, entry: &Entry) -> Result<Vec<T>, Fail> {
        let count = (entry.end - entry.begin) as usize / size_of::<T>();
        let mut data = room(count).map_err(|_| {
            let message = format!("{} bytes do not fit in memory", entry.end - entry.begin);
            self.fail(tensor, message)
        })?;
        data.resize(count, T::zeroed());
        self.reader
            .seek(SeekFrom::Start(self.data_start + entry.begin))
            .and_then(|_| self.reader.read_exact(bytemuck::cast_slice_mut(&mut data)))
            .map_err(|e| self.fail(tensor, format!("cannot be read: {}", said(&e))))?;
        Ok(data)
    }
}

fn open<R: Read + Seek>(reader: &mut R) -> Result<(Header, u64, u64), String> {
    let broken = |e: std::io::Error| format!("cannot be read: {}", said(&e));
    let bytes = reader.seek(SeekFrom::End(0)).map_err(broken)?;
    reader.seek(SeekFrom::Start(0)).map_err(broken)?;
    let mut start = Vec::with_capacity(64);
    reader.by_ref().take(64).read_to_end(&mut start).map_err(broken)?;
    let length = Header::length(&start, bytes).map_err(|e| e.to_string())?;
    let mut text = vec![0; length as usize];
    reader.seek(SeekFrom::Start(8)).map_err(broken)?;
    reader.read_exact(&mut text).map_err(broken)?;
    let header = Header::parse(&text, bytes - 8 - length);
    match (header, looks_like(&start)) {
        (Err(_), Some(what)) => Err(format!("is no safetensors file, it looks like {what}")),
        (header, _) => Ok((header.map_err(|e| e.to_string())?, 8 + length, bytes)),
    }
}

/// The operating system's words, without the number.
pub fn said(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_lowercase(),
        None => text,
    }
}
