//! The verbs of the program, on a small random model in a folder of files.

mod small;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value as Json;
use tempfile::TempDir;

use small::{HEADS, LAYERS, VOCABULARY, config, published, write_folder, write_words};

/// A model and a text in a folder.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_folder(folder.path(), &config("llama"), &published(false, false));
        write_words(folder.path());
        let words: Vec<String> = (0..300usize)
            .map(|at| format!("w{}", 1 + (at * at + 5 * at) % (VOCABULARY - 1)))
            .collect();
        std::fs::write(folder.path().join("text.txt"), words.join(" ")).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a verb with the model.
    fn run(&self, verb: &str, args: &[&str]) -> Output {
        let mut line = Command::new(env!("CARGO_BIN_EXE_wgkv-eval"));
        line.arg(verb).arg("--model").arg(self.0.path()).args(["--chunk", "16"]);
        line.args(args).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs a verb that must end well, on 120 tokens of the text from the 60th on.
    fn scored(&self, verb: &str, args: &[&str]) -> String {
        let texts = ["--texts", "text.txt", "--tokens", "120", "--from", "60"];
        good(&self.run(verb, &[&texts[..], args].concat()))
    }
}

#[track_caller]
fn good(run: &Output) -> String {
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    String::from_utf8(run.stdout.clone()).unwrap()
}

/// The refusal of a run.
#[track_caller]
fn refused(run: &Output) -> String {
    assert!(!run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    String::from_utf8(run.stderr.clone()).unwrap()
}

fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Errors by layer and query head: none of raw rows, fewer with more bits, and the mean of the table.
#[test]
fn attention_error() {
    let files = Files::new();
    let errors = |codec: &str| -> Vec<f64> {
        let found = json(&files.scored("attention-error", &["--codec", codec, "--json"]));
        assert_eq!(found["texts"][0][0], "text.txt");
        let layers = found["texts"][0][1].as_array().unwrap();
        assert_eq!(layers.len(), LAYERS);
        let heads = layers.iter().map(|heads| heads.as_array().unwrap());
        heads
            .flat_map(|heads| {
                assert_eq!(heads.len(), HEADS);
                heads.iter().map(|error| error.as_f64().unwrap()).collect::<Vec<_>>()
            })
            .collect()
    };
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
    let (raw, two, four) = (errors("f16"), errors("tuned-k2v2"), errors("tuned-k4v4"));
    assert!(raw.iter().all(|error| *error < 1e-3), "{raw:?}");
    assert!(mean(&four) > 1e-3 && mean(&four) < mean(&two) && mean(&two) < 1.0, "{four:?} {two:?}");
    let table = files.scored("attention-error", &["--codec", "tuned-k2v2"]);
    assert!(table.starts_with("tuned-k2v2 S4 W16 r16 on text.txt"), "{table}");
    assert!(table.ends_with(&format!("mean {:.4}\n", mean(&two))), "{table}");
    assert_eq!(table.lines().count(), LAYERS + 2);
}

/// Two answers to one prompt, the second beside the first.
#[test]
fn generate() {
    let files = Files::new();
    let question = ["w3 w5 "; 30].concat();
    let run = |args: &[&str]| {
        let all = [&["--plain", "--most", "7"][..], args, &[&question]].concat();
        good(&files.run("generate", &all))
    };
    let found = json(&run(&["--codec", "tuned-k4v4", "--json"]));
    assert_eq!(found["prompt"], 61);
    let answers = found["answers"].as_array().unwrap();
    let codecs: Vec<_> = answers.iter().map(|answer| answer["codec"].as_str().unwrap()).collect();
    assert_eq!(codecs, ["f16", "tuned-k4v4 S4 W16 r16"]);
    let tokens = |at: usize| answers[at]["tokens"].as_array().unwrap().clone();
    let same = tokens(0).iter().zip(&tokens(1)).take_while(|(a, b)| a == b).count();
    assert_eq!(answers[1]["same"], same);
    assert!(!tokens(0).is_empty() && tokens(0).len() <= 7);
    // Raw rows once more answer the same.
    let again = json(&run(&["--codec", "f16", "--json"]));
    assert_eq!(again["answers"][1]["tokens"], again["answers"][0]["tokens"]);
    assert_eq!(again["answers"][0]["tokens"], answers[0]["tokens"]);
    let shown = run(&["--codec", "tuned-k4v4"]);
    assert!(
        shown.starts_with("== f16: ") && shown.contains("== tuned-k4v4 S4 W16 r16: "),
        "{shown}"
    );
}

/// The picture holds a point for each codec, and what measure writes makes the same table.
#[test]
fn compare_draws_what_it_measured() {
    let files = Files::new();
    let picture = files.path("loss.svg");
    let codecs = ["tuned-k2v2", "int4-g32@r32", "q8_0"];
    let plot = ["--plot", "loss.svg"];
    let table = files.scored("compare", &[&plot[..], &codecs].concat());
    assert_eq!(table.lines().count(), 2 + 1 + codecs.len());
    let svg = std::fs::read_to_string(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for text in [
        "tuned-k2v2 S4 W16 r16",
        "int4-g32 S4 W16 r32",
        "q8_0 S4 W16 r16",
        "bits an element",
        "above f16, %",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    assert_eq!(svg.matches("<circle").count(), codecs.len());
    let lines = files.scored("measure", &codecs);
    assert_eq!(lines.lines().count(), 1 + codecs.len());
    std::fs::write(files.path("lines.jsonl"), lines).unwrap();
    let mut line = Command::new(env!("CARGO_BIN_EXE_wgkv-eval"));
    let line = line.arg("table").arg(files.path("lines.jsonl"));
    assert_eq!(good(&line.output().unwrap()), table);
}

/// What cannot be done is refused by name before a model is read or anything fetched.
#[test]
fn what_cannot_be_asked_for_is_named() {
    let files = Files::new();
    let fetch = |args: &[&str]| {
        let mut line = Command::new(env!("CARGO_BIN_EXE_wgkv-eval"));
        refused(&line.arg("fetch").args(args).output().unwrap())
    };
    let unknown = fetch(&["smollm2", "gpt9", "--python", "no-such-python"]);
    assert!(unknown.contains("no model gpt9: smollm2 or gemma3"), "{unknown}");
    assert!(fetch(&["--python"]).contains("--python"));
    let bad = refused(&files.run("compare", &["--texts", "text.txt", "tuned-k9v2"]));
    assert!(bad.contains("k9"), "{bad}");
    let short =
        files.run("compare", &["--texts", "text.txt", "--tokens", "400", "--from", "90", "q8_0"]);
    assert!(refused(&short).contains("text.txt has 301 tokens, not 400"));
    let missing = refused(&files.run("compare", &["--texts", "none.txt", "q8_0"]));
    assert!(missing.contains("none.txt"), "{missing}");
    let order = ["--texts", "text.txt", "--tokens", "50", "--from", "50", "q8_0"];
    assert!(refused(&files.run("compare", &order)).contains("scored tokens"));
}
