//! What the program prints. Results go to standard output, everything else to standard error.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::Common;
use crate::file::Fail;

/// Writes a line to standard error. A closed standard error is no reason to stop.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Writes a line to standard output. A reader that closed the pipe has seen what it wanted.
pub fn print(line: &str) -> Result<(), Fail> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Fail::input(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// A progress bar over `steps`, drawn only on a terminal.
pub fn progress(steps: usize, what: &'static str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() && steps > 1 {
        ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr())
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} {eta}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what);
    bar
}

/// Rows of text in columns; numbers to the right.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width: Vec<usize> = (0..columns)
        .map(|c| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0))
        .collect();
    let number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&width)
                .map(
                    |(text, &w)| {
                        if number(text) { format!("{text:>w$}") } else { format!("{text:<w$}") }
                    },
                )
                .collect();
            cells.join("  ").trim_end().to_string()
        })
        .collect()
}

/// Prints a report as the options ask for it.
pub fn finish(
    common: &Common,
    report: serde_json::Value,
    rows: &[Vec<String>],
) -> Result<(), Fail> {
    if common.json {
        return print(&report.to_string());
    }
    table(rows).iter().try_for_each(|line| print(line))
}

/// Counts in short: one number when they are equal, else smallest to largest.
pub fn spread(counts: &[u32]) -> String {
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if least == most => least.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "none".into(),
    }
}
