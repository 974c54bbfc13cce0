//! How long shaders are, without a GPU: instructions of SPIR-V as naga writes it, by kernel, held to
//! `tests/data/shader_sizes.txt`. A kernel that swells in one of its variants shows here, and one that
//! shrinks is to be written down, or the next one to swell would hide behind it:
//! `WRITE_SIZES=1 cargo test --test gpu sizes` does that.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use crate::modules;

/// What a kernel may differ by, of what is written down: other versions of naga differ by less.
const ALLOWED: f64 = 0.05;

const FUNCTION: u32 = 54;
const FUNCTION_END: u32 = 56;
const HEADER: usize = 5;

/// Instructions of all functions of a module.
fn instructions(words: &[u32]) -> usize {
    let (mut at, mut inside, mut count) = (HEADER, false, 0);
    while let Some(word) = words.get(at) {
        let (length, code) = (word >> 16, word & 0xffff);
        inside |= code == FUNCTION;
        count += usize::from(inside);
        inside &= code != FUNCTION_END;
        at += length.max(1) as usize;
    }
    count
}

/// Variants of a kernel, instructions of the longest and of all.
type Sizes = BTreeMap<String, [usize; 3]>;

fn found() -> Sizes {
    let mut sizes = Sizes::new();
    for (kernel, shader) in modules::all() {
        let words = modules::to_spirv(&shader).unwrap_or_else(|e| panic!("{}: {e}", shader.name));
        let count = instructions(&words);
        let [variants, longest, all] = sizes.entry(kernel.name.into()).or_default();
        (*variants, *longest, *all) = (*variants + 1, count.max(*longest), *all + count);
    }
    sizes
}

fn written(text: &str) -> Sizes {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parts = lines.map(|line| {
        let mut parts = line.split_whitespace();
        let name = parts.next().expect("a name").to_owned();
        let numbers: Vec<usize> = parts.map(|part| part.parse().expect("a number")).collect();
        (name, numbers.try_into().expect("three numbers"))
    });
    parts.collect()
}

#[test]
fn no_kernel_has_swollen() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/shader_sizes.txt");
    let found = found();
    if std::env::var_os("WRITE_SIZES").is_some() {
        let mut text = "# kernel, variants, instructions of the longest, of all\n".to_owned();
        for (name, [variants, longest, all]) in &found {
            writeln!(text, "{name} {variants} {longest} {all}").expect("a line");
        }
        std::fs::write(&path, text).expect("the sizes are written");
        return;
    }
    let want = written(&std::fs::read_to_string(&path).expect("the sizes"));
    let mut faults = String::new();
    for name in found.keys().chain(want.keys()) {
        let [got, want] = [&found, &want].map(|sizes| sizes.get(name).copied().unwrap_or_default());
        let near = |at: usize| got[at].abs_diff(want[at]) as f64 <= ALLOWED * want[at] as f64;
        if got[0] != want[0] || !near(1) || !near(2) {
            writeln!(faults, "{name}: {got:?}, written down {want:?}").expect("a line");
        }
    }
    assert!(faults.is_empty(), "where that is meant, write it down (see the top)\n{faults}");
}
