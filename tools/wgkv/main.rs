//! The command line program: safetensors files in, safetensors files and reports out.
#![deny(unsafe_code)]

mod args;
mod attend;
mod budgets;
mod compress;
mod conformance;
mod device;
mod doctor;
mod engine;
mod file;
mod inspect;
mod jobs;
mod layers;
mod nested;
mod packed;
mod packing;
mod picture;
mod quant;
mod ragged;
mod replay;
mod report;
mod rope;
mod sweep;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};

use args::{Cli, Verb};
use file::{Fail, Memory, readable};
use report::say;

#[global_allocator]
static MEMORY: Memory = Memory;

/// Threads for each core at most, whatever RAYON_NUM_THREADS says: more only take memory.
const THREADS: usize = 8;

fn main() -> ExitCode {
    start_threads();
    let words: Vec<_> = std::env::args_os().collect();
    let mut grammar = args::grammar(words.iter().any(|word| word == "--help-all"));
    let parsed = grammar.try_get_matches_from_mut(&words);
    let cli = match parsed.and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error, &grammar, &words),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            // One line whatever a driver says, and nothing in it that a terminal obeys.
            let lines: Vec<&str> = fail.message.lines().map(str::trim).collect();
            say(&format!("error: {}", readable(&lines.join(" "))));
            ExitCode::from(fail.code)
        }
    }
}

/// Starts the threads of the CPU path; without any where the system gives none.
fn start_threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.parse().ok());
    let threads = wanted.filter(|n| *n > 0).unwrap_or(cores).min(THREADS * cores);
    let pool = || rayon::ThreadPoolBuilder::new();
    // The global pool is tried once and never again, so a pool of its own tells whether there are as many.
    let enough = pool().num_threads(threads).build().is_ok();
    let started = match enough {
        true => pool().num_threads(threads),
        false => pool().num_threads(1).use_current_thread(),
    };
    // It fails when there is a pool already.
    let _ = started.build_global();
}

fn run(cli: &Cli) -> Result<(), Fail> {
    match &cli.verb {
        Verb::Doctor => doctor::run(&cli.common),
        Verb::Budgets(args) => budgets::run(args, &cli.common),
        Verb::Score(args) => nested::score(args, &cli.common),
        Verb::Evict(args) => nested::evict(args, &cli.common),
        Verb::Quantize(args) => quant::quantize(args, &cli.common),
        Verb::Dequantize(args) => quant::dequantize(args, &cli.common),
        Verb::Compress(args) => compress::run(args, &cli.common),
        Verb::Attend(args) => attend::run(args, &cli.common),
        Verb::Replay(args) => replay::run(args, &cli.common),
        Verb::Inspect(args) => inspect::run(args, &cli.common),
        Verb::Sweep(args) => sweep::run(args, &cli.common),
        Verb::Conformance(args) => conformance::run(args, &cli.common),
    }
}

/// Help and version go to standard output as they are; a refusal becomes one line that ends with where
/// to read on.
fn refuse_arguments(error: &clap::Error, grammar: &Command, words: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closed the pipe has seen what it wanted.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => {
            let text = error.render().to_string();
            let mut lines = text.lines().map(str::trim);
            let mut said: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
            said.extend(lines.filter(|line| line.starts_with("tip: ")));
            let verb = words
                .iter()
                .filter_map(|word| word.to_str())
                .find(|word| grammar.get_subcommands().any(|command| command.get_name() == *word));
            let help = verb.map_or(String::new(), |verb| format!("{verb} "));
            // The standard library's words for a number that is none.
            let said = said
                .join(" ")
                .replace("invalid digit found in string", "expected a whole number")
                .replace("cannot parse integer from empty string", "expected a whole number")
                .replace("invalid float literal", "expected a number");
            say(&format!("{said} (see wgkv {help}--help)"));
            ExitCode::from(2)
        }
    }
}
