//! `budgets`: how a total is shared out over heads.

use crate::args::{BudgetsArgs, Common};
use crate::file::{Fail, FileDtype, Source};
use crate::layers::{Kind, numbered, want};

/// Reads the scores of each head, head 0 first.
pub fn heads(args: &BudgetsArgs) -> Result<Vec<Vec<f32>>, Fail> {
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Heads], "head.<j> for j from 0")?;
    let count = source.header().tensors.keys().filter_map(|name| numbered(name, "head.")).count();
    (0..count)
        .map(|j| Ok(source.exactly::<f32>(&format!("head.{j}"), FileDtype::F32, 1)?.1))
        .collect()
}

/// Prints the budgets.
pub fn run(args: &BudgetsArgs, _common: &Common) -> Result<(), Fail> {
    heads(args)?;
    Err(Fail::input("budgets are not there yet"))
}
