//! `score` and `evict`.

use half::f16;
use wgkv::Error;
use wgkv::nestedkv::{Budget, EvictConfig, ScoreConfig};

use crate::args::{Common, EvictArgs, Heads, Keeping, ScoreArgs, Scoring};
use crate::engine::Engine;
use crate::file::{Data, Fail, Output, Payload, Source, shown};
use crate::jobs::Kept;
use crate::layers::{Dense, Kind, Pair, layers, want};
use crate::ragged::Ragged;
use crate::report::{finish, progress, say, spread};

/// The constants of the score, checked.
pub fn score_config(scoring: &Scoring) -> Result<ScoreConfig, Fail> {
    let config = ScoreConfig {
        window: scoring.window,
        beta: scoring.beta,
        tau: scoring.tau,
        kappa: scoring.kappa,
        prior: scoring.prior.0,
        rectify: scoring.rectify,
    };
    config.validate()?;
    Ok(config)
}

/// Checks what does not depend on a layer.
pub fn check_keeping(keeping: &Keeping) -> Result<(), Fail> {
    if let Some(keep) = keeping.keep
        && !(keep > 0.0 && keep <= 1.0)
    {
        return Err(Fail::input(format!(
            "--keep is {keep}, expected a fraction above 0 and at most 1"
        )));
    }
    if !(0.0..=1.0).contains(&keeping.safeguard) {
        return Err(Fail::from(Error::Parameter {
            argument: "--safeguard",
            got: keeping.safeguard,
            expected: "a number from 0 to 1",
        }));
    }
    Ok(())
}

/// What stays of a layer of `tokens` tokens.
pub fn evict_config(
    score: ScoreConfig,
    keeping: &Keeping,
    sinks: u32,
    tokens: usize,
    heads: usize,
) -> EvictConfig {
    let per_head = match (keeping.budget, keeping.keep) {
        (Some(budget), _) => budget,
        // A fraction above 0 keeps at least one token.
        (None, keep) => (keep.unwrap_or(0.5) * tokens as f64).round_ties_even().max(1.0) as u32,
    };
    let budget = match keeping.heads {
        Heads::Uniform => Budget::Uniform(per_head),
        Heads::Adaptive => Budget::Adaptive { per_head, heads },
    };
    EvictConfig { score, budget, sinks, safeguard: keeping.safeguard }
}

/// Scores a layer, selects, and says what the user should know. Also gives the scores.
pub fn select(
    engine: &Engine,
    keys: &Dense,
    config: &EvictConfig,
    layer: u32,
) -> Result<(Kept, Vec<f32>), Fail> {
    let tensor = keys.tensor()?;
    let scored = engine.score(&tensor, &config.score)?;
    let kept = engine.keep(&scored.score, keys.rows(), keys.tokens, config)?;
    if kept.sinks_only {
        say(&format!(
            "layers.{layer}: the budget is below the {} sinks, which stay all the same",
            config.sinks.min(u32::try_from(keys.tokens).unwrap_or(u32::MAX))
        ));
    }
    Ok((kept, scored.score))
}

/// `score`.
pub fn score(args: &ScoreArgs, common: &Common) -> Result<(), Fail> {
    let config = score_config(&args.scoring)?;
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Dense], "keys [B, H, N, D]")?;
    let list = layers(&source, common.layers.as_deref())?;
    for (layer, names) in &list {
        Dense::check(&source, *layer, names, "k")?;
    }
    let mut output = Output::create(&args.out.output, &[&args.input])?;
    let engine = Engine::open(common)?;
    let bar = progress(list.len(), "scoring");
    let mut rows = vec![["layer", "sequences", "heads", "tokens"].map(String::from).to_vec()];
    let mut report = Vec::new();
    for (layer, names) in list {
        let keys = Dense::read(&mut source, layer, &names, "k")?;
        let place = |e: Fail| e.at(shown(&keys.name)).at(source.name());
        let scored =
            keys.tensor().and_then(|tensor| engine.score(&tensor, &config)).map_err(place)?;
        let shape = [keys.batch, keys.heads, keys.tokens];
        output.put(format!("layers.{layer}.score"), &shape, Payload::F32(scored.score));
        if args.parts {
            for (name, part) in ["scale_s", "scale_e", "scale_c", "blend"].iter().zip(scored.parts)
            {
                output.put(format!("layers.{layer}.{name}"), &shape, Payload::F32(part));
            }
        }
        report.push(serde_json::json!({
            "layer": layer, "batch": keys.batch, "heads": keys.heads, "tokens": keys.tokens,
        }));
        rows.push(
            [layer as usize, keys.batch, keys.heads, keys.tokens].map(|n| n.to_string()).to_vec(),
        );
        bar.inc(1);
    }
    bar.finish_and_clear();
    let bytes = output.finish()?;
    finish(common, serde_json::json!({"layers": report, "output_bytes": bytes}), &rows)
}

/// `evict`.
pub fn evict(args: &EvictArgs, common: &Common) -> Result<(), Fail> {
    let config = score_config(&args.scoring)?;
    check_keeping(&args.keeping)?;
    let mut source = Source::open(&args.input)?;
    want(&source, &[Kind::Dense], "keys and values")?;
    let list = layers(&source, common.layers.as_deref())?;
    for (layer, names) in &list {
        Pair::check(&source, *layer, names)?;
    }
    let mut output = Output::create(&args.out.output, &[&args.input])?;
    let engine = Engine::open(common)?;
    let bar = progress(list.len(), "evicting");
    let mut rows = vec![["layer", "tokens", "kept a head"].map(String::from).to_vec()];
    let mut report = Vec::new();
    for (layer, names) in list {
        let pair = Pair::read(&mut source, layer, &names)?;
        let config =
            evict_config(config, &args.keeping, args.sinks.sinks, pair.k.tokens, pair.k.heads);
        let (kept, _) = select(&engine, &pair.k, &config, layer)
            .map_err(|e| e.at(shown(&pair.k.name)).at(source.name()))?;
        let gather = |dense: &Dense| -> Result<Vec<f16>, Fail> {
            dense
                .tensor()
                .and_then(|tensor| engine.gather(&tensor, &kept))
                .map_err(|e| e.at(shown(&dense.name)).at(source.name()))
        };
        let (k, v) = (gather(&pair.k)?, gather(&pair.v)?);
        let budgets: Vec<u32> = kept.offsets.windows(2).map(|row| row[1] - row[0]).collect();
        report.push(serde_json::json!({
            "layer": layer, "tokens": pair.k.tokens, "kept": budgets,
            "sinks_only": kept.sinks_only,
        }));
        rows.push(vec![layer.to_string(), pair.k.tokens.to_string(), spread(&budgets)]);
        Ragged {
            batch: pair.k.batch,
            heads: pair.k.heads,
            tokens: pair.k.tokens,
            offsets: kept.offsets,
            positions: Some(kept.positions),
            k: Data::F16(k),
            v: Data::F16(v),
            k_dim: pair.k.head_dim,
            v_dim: pair.v.head_dim,
            names: [pair.k.name, pair.v.name],
        }
        .write(layer, &mut output)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let bytes = output.finish()?;
    finish(common, serde_json::json!({"layers": report, "output_bytes": bytes}), &rows)
}
