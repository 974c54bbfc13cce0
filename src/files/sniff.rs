//! What a file that is no safetensors file looks like.

/// A guess from the first bytes of a file, as the end of "looks like ...".
pub fn looks_like(start: &[u8]) -> Option<&'static str> {
    const KNOWN: [(&[u8], &str); 17] = [
        (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
        (b"GGUF", "a GGUF file"),
        (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint or an npz file)"),
        (b"\x93NUMPY", "a NumPy npy file"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x1f\x8b", "a gzip file: unpack it first"),
        (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
        (b"\xfd7zXZ", "an xz file: unpack it first"),
        (b"BZh", "a bzip2 file: unpack it first"),
        (b"ustar", "a tar archive: unpack it first"),
        (b"\x7fELF", "a program"),
        (b"%PDF", "a PDF file"),
        (b"lmgg", "a GGML file"),
        (b"tjgg", "a GGML file"),
        (b"\x80\x02", "a Python pickle (a PyTorch checkpoint)"),
        (b"\x80\x03", "a Python pickle (a PyTorch checkpoint)"),
        (b"\x80\x04", "a Python pickle (a PyTorch checkpoint)"),
    ];
    if let Some((_, what)) = KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Some(what);
    }
    let text = start.trim_ascii_start();
    if text.len() >= 5 && text[..5].eq_ignore_ascii_case(b"<html")
        || text.len() >= 9 && text[..9].eq_ignore_ascii_case(b"<!doctype")
    {
        return Some("a web page (a failed download?)");
    }
    match text.first() {
        Some(b'{' | b'[') => Some("JSON without the length in front that safetensors has"),
        Some(_) if start.len() >= 8 && start.iter().all(|c| matches!(c, 9..=13 | 32..=126)) => {
            Some("a text file")
        }
        _ => None,
    }
}
