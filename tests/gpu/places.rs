//! Where things lie: one stage has one stem everywhere, imports run one way, and only the GPU
//! plumbing touches pipelines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` with an extension, as paths relative to the crate's root.
fn files(folder: &str, extension: &str) -> BTreeSet<String> {
    fn walk(path: &Path, extension: &str, found: &mut BTreeSet<String>) {
        let Ok(entries) = std::fs::read_dir(path) else { return };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|e| e == extension) {
                let relative = path.strip_prefix(root()).unwrap();
                found.insert(relative.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&root().join(folder), extension, &mut found);
    found
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The lines of a source that are no comments, up to its unit tests.
fn code(path: &str) -> String {
    let text = read(path);
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or("");
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Method and stage of a path like `wgsl/METHOD/STAGE.wgsl`.
fn stages() -> Vec<(String, String)> {
    files("wgsl", "wgsl")
        .iter()
        .filter_map(|path| {
            let mut parts = path.strip_prefix("wgsl/")?.strip_suffix(".wgsl")?.split('/');
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        })
        .filter(|(method, _)| method != "common")
        .collect()
}

#[test]
fn every_stage_has_its_four_files() {
    let mut missing = Vec::new();
    let stages = stages();
    for (method, stage) in &stages {
        // A stage in several steps has a shader for each, STAGE_STEP.wgsl beside STAGE.wgsl.
        let whole = stage.rsplit_once('_').map(|(whole, _)| (method.clone(), whole.to_owned()));
        let own = root().join(format!("src/{method}/gpu/{stage}.rs")).exists();
        if !own && whole.is_some_and(|whole| stages.contains(&whole)) {
            continue;
        }
        for path in [
            format!("src/{method}/gpu/{stage}.rs"),
            format!("src/{method}/cpu/{stage}.rs"),
            format!("tests/{method}/{stage}.rs"),
        ] {
            if !root().join(&path).exists() {
                missing.push(path);
            }
        }
    }
    for path in files("src", "rs") {
        let parts: Vec<_> = path.trim_end_matches(".rs").split('/').collect();
        if let ["src", method, "gpu", stage] = parts[..]
            && stage != "mod"
            && code(&path).contains("Kernel {")
            && !stages.iter().any(|(m, s)| m == method && s == stage)
        {
            missing.push(format!("wgsl/{method}/{stage}.wgsl"));
        }
    }
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}

#[test]
fn every_shader_is_in_the_list_of_kernels() {
    let listed: BTreeSet<_> = wgkv::kernels::kernels()
        .iter()
        // A stage built around another fragment has that after a plus.
        .map(|(kernel, _)| kernel.name.split('+').next().unwrap_or("").to_owned())
        .filter(|name| !name.starts_with("common/"))
        .collect();
    let there: BTreeSet<_> =
        stages().into_iter().map(|(method, stage)| format!("{method}/{stage}")).collect();
    assert_eq!(listed, there);
}

#[test]
fn only_the_plumbing_makes_pipelines() {
    const MAKERS: [&str; 6] = [
        "create_shader_module",
        "create_compute_pipeline",
        "create_pipeline_layout",
        "create_bind_group",
        "begin_compute_pass",
        ".submit(",
    ];
    // The suite is a caller like any other.
    let library = |path: &&String| *path != "src/conformance/run.rs";
    let sources = files("src", "rs");
    let outside = sources.iter().filter(library).filter(|path| !path.starts_with("src/gpu/"));
    for path in outside {
        for maker in MAKERS {
            assert!(!code(path).contains(maker), "{path} calls {maker}");
        }
    }
    // The library never submits, polls or blocks; its caller does.
    for path in sources.iter().filter(library) {
        for call in [".submit(", ".poll(wgpu", "block_on"] {
            assert!(!code(path).contains(call), "{path} calls {call}");
        }
    }
}

/// The order of imports; what stands on one line knows nothing of its neighbours, but for the
/// errors and the shapes that they speak of.
const ORDER: [&[&str]; 10] = [
    &["error", "shape"],
    &["layout"],
    &["gpu"],
    &["primitives"],
    &["nestedkv", "nsnquant"],
    &["attention"],
    &["cache"],
    &["files"],
    &["kernels"],
    &["conformance"],
];

#[test]
fn imports_run_one_way() {
    let level = |module: &str| ORDER.iter().position(|line| line.contains(&module));
    let mut wrong = Vec::new();
    for path in files("src", "rs") {
        let module = path.trim_start_matches("src/").trim_end_matches(".rs").split('/').next();
        let module = module.unwrap_or("");
        if module == "lib" {
            continue;
        }
        let own = level(module);
        for (at, _) in code(&path).match_indices("crate::") {
            let text = code(&path);
            let rest = &text[at + "crate::".len()..];
            let names: Vec<&str> = match rest.strip_prefix('{') {
                Some(list) => {
                    let list = list.split('}').next().unwrap_or("");
                    list.split(',')
                        .map(|part| part.trim().split("::").next().unwrap_or(""))
                        .collect()
                }
                None => {
                    vec![rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()]
                }
            };
            for name in names {
                if name == module {
                    continue;
                }
                let allowed = match (module, own, level(name)) {
                    // The f64 judge shares no code with what it judges: it knows how data is handed
                    // over, and decodes it by itself.
                    ("judge", ..) => name == "shape" && !code(&path).contains(".read("),
                    ("conformance", _, None) if name == "judge" => true,
                    (_, Some(own), Some(other)) => other < own || own == 0 && other == 0,
                    (_, Some(_), None) => name == "Error" || name == "Result",
                    (_, None, _) => false,
                };
                if !allowed {
                    wrong.push(format!("{path} imports {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_are_short_and_finished() {
    let sources = ["src", "tests", "tools", "benches", "wgsl"]
        .iter()
        .flat_map(|folder| ["rs", "wgsl", "py"].map(|extension| files(folder, extension)))
        .flatten();
    // Split, so that this file does not find itself.
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("#[ig", "nore]")];
    for path in sources {
        let text = read(&path);
        assert!(text.lines().count() <= 700, "{path} has {} lines", text.lines().count());
        for mark in marks {
            assert!(!text.contains(mark), "{path} holds {mark}");
        }
    }
}

/// The list of faults in `tests/README.md` names tests that are there.
#[test]
fn listed_faults_have_their_tests() {
    let text = read("tests/README.md");
    let named = text.split('`').skip(1).step_by(2).filter_map(|name| name.split_once(".rs "));
    let mut count = 0;
    for (file, test) in named {
        let path = format!("tests/{file}.rs");
        let mark = format!("fn {test}(");
        assert!(read(&path).contains(&mark), "{path} has no test {test}");
        count += 1;
    }
    assert!(count >= 40, "{count}");
}

#[test]
fn shaders_avoid_what_browsers_refuse() {
    for path in files("wgsl", "wgsl") {
        let text = read(&path);
        assert!(text.starts_with("//"), "{path} does not say what it is");
        for word in ["enable ", "diagnostic(", "subgroup", "f16>"] {
            let used = text.lines().any(|l| !l.trim_start().starts_with("//") && l.contains(word));
            assert!(!used, "{path} uses {word}");
        }
    }
}
