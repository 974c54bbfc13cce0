//! Losses of texts with codecs and rules.

use anyhow::{Result, ensure};
use wgkv_eval::cache::Prompt;
use wgkv_eval::choice::Choice;
use wgkv_eval::loss::{losses, perplexity};
use wgkv_eval::rule::Rule;

use crate::report::Measured;
use crate::{Setting, Texts, bar};

/// What one row of a table is measured with.
struct Case {
    choice: Choice,
    rule: Option<Rule>,
}

/// Measures f16, which keeps all, and then each codec with each rule, text by text. `each` gets what was
/// found as soon as it is.
pub fn measure(
    setting: &Setting,
    texts: &Texts,
    codecs: &[String],
    mut each: impl FnMut(Measured) -> Result<()>,
) -> Result<()> {
    let mut rules = vec![None];
    if let Some(share) = texts.keep {
        ensure!(texts.prompt > 0, "rows are kept of a prompt: --prompt says how long");
        let rule = |name: &String| Rule::parse(name, share, setting.window.sinks);
        rules = texts.rule.iter().map(|name| rule(name).map(Some)).collect::<Result<_>>()?;
    }
    let mut cases = Vec::new();
    if !texts.alone {
        cases.push(Case { choice: setting.choice("f16")?, rule: None });
    }
    for codec in codecs {
        let choice = setting.choice(codec)?;
        for rule in &rules {
            if texts.alone || choice.name != "f16" || rule.is_some() {
                cases.push(Case { choice: choice.clone(), rule: rule.clone() });
            }
        }
    }
    let (length, scored, model) = (texts.prompt, texts.from..texts.tokens, &setting.model);
    for text in &setting.read(texts)? {
        let fresh = bar(length.max(1), &format!("{}: prompt", text.name));
        let prompt = match length {
            0 => None,
            tokens => {
                let (tokens, done) = (&text.tokens[..tokens], |tokens| fresh.inc(tokens));
                Some(Prompt::read(model, tokens, &setting.place, &done)?)
            }
        };
        fresh.finish_and_clear();
        for Case { choice, rule } in &cases {
            let bits = choice.bits(model.shape())?;
            let mut found = Measured::new(choice, bits, length, rule.as_ref(), &text.name);
            let bar = bar(scored.end - 1, &format!("{}: {}", text.name, found.title));
            let done = |tokens| bar.inc(tokens);
            let (place, tokens, prompt) = (&setting.place, &text.tokens, prompt.as_ref());
            let rule = rule.as_ref();
            found.losses = losses(model, choice, place, tokens, prompt, rule, &scored, &done)?;
            bar.finish_and_clear();
            eprintln!("{}: {}: {:.3}", text.name, found.title, perplexity(&found.losses));
            each(found)?;
        }
    }
    Ok(())
}
