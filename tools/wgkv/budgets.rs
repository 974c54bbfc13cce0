//! `budgets`: how a total is shared out over heads.

use serde_json::json;
use wgkv::nestedkv::cpu::allocate_head_budgets;

use crate::args::{BudgetsArgs, Common};
use crate::file::{Fail, FileDtype, Source};
use crate::layers::{Kind, numbered, want};
use crate::report::finish;

/// Reads the scores of each head, shares out, prints.
pub fn run(args: &BudgetsArgs, common: &Common) -> Result<(), Fail> {
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Heads], "head.<j> for j from 0")?;
    let count = source.header().tensors.keys().filter_map(|name| numbered(name, "head.")).count();
    let heads = (0..count)
        .map(|j| Ok(source.exactly::<f32>(&format!("head.{j}"), FileDtype::F32, 1)?.1))
        .collect::<Result<Vec<Vec<f32>>, Fail>>()?;
    let scores: Vec<&[f32]> = heads.iter().map(Vec::as_slice).collect();
    let budgets = allocate_head_budgets(&scores, args.total, args.safeguard)?;
    let mut rows = vec![["head", "scores", "budget"].map(String::from).to_vec()];
    for (head, (scores, budget)) in heads.iter().zip(&budgets).enumerate() {
        rows.push(vec![head.to_string(), scores.len().to_string(), budget.to_string()]);
    }
    finish(common, json!({"budgets": budgets}), &rows)
}
