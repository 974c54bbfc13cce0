//! Writing safetensors files whole or not at all.

use std::ffi::OsStr;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use tempfile::NamedTempFile;
use wgkv::files::{Entry, FileDtype, Header, shown};

use super::checksum::{CHECKSUM, Checksum};
use super::fail::Fail;
use super::source::said;

/// The elements of a tensor to be written.
#[derive(Clone, Debug)]
pub enum Payload {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    U32(Vec<u32>),
    U8(Vec<u8>),
}

impl Payload {
    fn dtype(&self) -> FileDtype {
        match self {
            Self::F32(_) => FileDtype::F32,
            Self::F16(_) => FileDtype::F16,
            Self::Bf16(_) => FileDtype::BF16,
            Self::U32(_) => FileDtype::U32,
            Self::U8(_) => FileDtype::U8,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(x) => bytemuck::cast_slice(x),
            Self::F16(x) => bytemuck::cast_slice(x),
            Self::Bf16(x) => bytemuck::cast_slice(x),
            Self::U32(x) => bytemuck::cast_slice(x),
            Self::U8(x) => x,
        }
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    data: Payload,
}

/// A file in the making. [`Output::finish`] writes it beside its place and then moves it there.
pub struct Output {
    path: PathBuf,
    tensors: Vec<Tensor>,
    header: Header,
    sealed: bool,
}

impl Output {
    /// Makes sure that the place can be written to and is none of `others`, before any work is done.
    pub fn create(path: &Path, others: &[&Path]) -> Result<Self, Fail> {
        let path = try_place(path, others)?;
        Ok(Self { path, tensors: Vec::new(), header: Header::default(), sealed: false })
    }

    /// Adds a tensor.
    pub fn put(&mut self, name: impl Into<String>, shape: &[usize], data: Payload) {
        debug_assert_eq!(
            shape.iter().product::<usize>() as u64 * data.dtype().bits() / 8,
            data.bytes().len() as u64
        );
        self.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), data });
    }

    /// Adds a line of metadata.
    pub fn note(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.header.metadata.insert(key.into(), value.into());
    }

    /// Lets the file carry a checksum.
    pub fn seal(&mut self) {
        self.sealed = true;
    }

    fn checksum(&self) -> String {
        let mut sum = Checksum::new(&self.header);
        let mut tensors: Vec<&Tensor> = self.tensors.iter().collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        for tensor in tensors {
            if let Some(entry) = self.header.tensors.get(&tensor.name) {
                sum.tensor(&tensor.name, entry);
            }
            sum.bytes(tensor.data.bytes());
        }
        sum.digits()
    }

    /// Writes the file and gives it its name. Returns its size in bytes.
    pub fn finish(mut self) -> Result<u64, Fail> {
        // Wide elements first, so that every tensor lies aligned for readers that map the file.
        self.tensors.sort_by(|a, b| {
            let bits = |t: &Tensor| core::cmp::Reverse(t.data.dtype().bits());
            bits(a).cmp(&bits(b)).then_with(|| a.name.cmp(&b.name))
        });
        let mut end = 0;
        for Tensor { name, shape, data } in &self.tensors {
            let begin = end;
            end += data.bytes().len() as u64;
            let entry = Entry { dtype: data.dtype(), shape: shape.clone(), begin, end };
            self.header.tensors.insert(name.clone(), entry);
        }
        if self.sealed {
            let digits = self.checksum();
            self.note(CHECKSUM, digits);
        }
        let header = self.header.to_bytes();
        write_parts(
            &self.path,
            [&header[..]].into_iter().chain(self.tensors.iter().map(|tensor| tensor.data.bytes())),
        )?;
        Ok(header.len() as u64 + end)
    }
}

/// Where a path leads, links followed, if it can be written to and is none of `others`.
pub fn try_place(path: &Path, others: &[&Path]) -> Result<PathBuf, Fail> {
    let fail = |message: String| Fail::input(message).at(shown(&path.display().to_string()));
    let broken = |e: std::io::Error| fail(format!("cannot be written: {}", said(&e)));
    if path.as_os_str() == "-" {
        return Err(fail("standard output is not written to, give a file".into()));
    }
    // Behind a link the file itself is replaced, as a plain write would do. Renaming onto a link that
    // leads nowhere would replace the link.
    if path.is_symlink() && !path.exists() {
        return Err(fail("is a link that leads to no file, expected a file to write".into()));
    }
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let kind = std::fs::metadata(&path);
    if let Ok(kind) = &kind {
        if kind.is_dir() {
            return Err(fail("is a directory, expected a file to write".into()));
        }
        // Renaming onto a device would replace it.
        if !kind.is_file() {
            return Err(fail("is a pipe or device, expected a file to write".into()));
        }
    }
    // Behind a separator there is none, though the part before it counts as the path's file name.
    let ends =
        |name: &OsStr| path.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes());
    if !path.file_name().is_some_and(ends) {
        return Err(fail("is no file name".into()));
    }
    let own = place(&path);
    if own.is_some() && others.iter().any(|other| place(other) == own) {
        return Err(fail("is also the input or another output, give each its own file".into()));
    }
    // Only a trial: long work that is interrupted must leave nothing behind.
    temporary(&path).map_err(broken)?;
    match kind {
        // The temporary file has a name of its own, this one may be longer than the system takes.
        Err(e) if e.kind() != ErrorKind::NotFound => Err(broken(e)),
        _ => Ok(path),
    }
}

/// Makes a folder for several files, if there is none.
pub fn make_folder(path: &Path) -> Result<(), Fail> {
    let fail = |message: String| Fail::input(message).at(shown(&path.display().to_string()));
    if path.as_os_str() == "-" {
        return Err(fail("standard output is not written to, give a folder".into()));
    }
    if path.exists() && !path.is_dir() {
        return Err(fail("is a file, expected a folder".into()));
    }
    std::fs::create_dir_all(path).map_err(|e| fail(format!("cannot be made: {}", said(&e))))
}

/// Where a path leads, whether there is a file yet or not.
fn place(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let own = folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?);
    Some(own.canonicalize().unwrap_or(own))
}

/// Writes a file whole or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Fail> {
    // Behind a link the file itself is replaced, as a plain write would do.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    write_parts(&path, [bytes].into_iter())
}

fn write_parts<'a>(path: &Path, parts: impl Iterator<Item = &'a [u8]>) -> Result<(), Fail> {
    let shown_path = shown(&path.display().to_string());
    let fail =
        |e: &std::io::Error| Fail::input(format!("cannot be written: {}", said(e))).at(&shown_path);
    let temporary = temporary(path).map_err(|e| fail(&e))?;
    let mut file = BufWriter::new(temporary.as_file());
    let written = (|| {
        for part in parts {
            file.write_all(part)?;
        }
        file.flush()
    })();
    drop(file);
    written.map_err(|e| fail(&e))?;
    temporary.persist(path).map_err(|e| fail(&e.error))?;
    Ok(())
}

/// A file beside `path` that goes away unless it is moved.
fn temporary(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".wgkv-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The user's umask applies on top, as for any file that a program makes.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}
