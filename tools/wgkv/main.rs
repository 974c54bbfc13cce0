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

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Verb};
use file::Fail;
use report::say;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_arguments(&error),
    };
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fail) => {
            say(&format!("error: {}", fail.message));
            ExitCode::from(fail.code)
        }
    }
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

/// Help and version go to standard output as they are; a refusal becomes one line.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
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
            let first: Vec<&str> =
                text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
            say(&first.join(" "));
            ExitCode::from(2)
        }
    }
}
