//! Attention from its definition.

use super::tame;

/// What the log of the sum of no weight is given as: the lowest f32.
pub const NO_KEY: f64 = -340282346638528859811704183484516925440.0;

/// A cache of rows of any length, decoded.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Keys of each row, `[rows][n, d_k]`.
    pub keys: Vec<Vec<f64>>,
    /// Values of each row, `[rows][n, d_v]`.
    pub values: Vec<Vec<f64>>,
    /// Position of each key, `[rows][n]`.
    pub positions: Vec<Vec<u32>>,
}

/// How one query weighs its keys.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Factor of the dot products.
    pub scale: f64,
    /// A logit x becomes `cap * tanh(x / cap)`.
    pub cap: Option<f64>,
    /// Position of the query, which sees keys at that and lower positions; none: all keys.
    pub position: Option<u64>,
    /// Of these it sees so many positions, its own counted.
    pub window: Option<u64>,
}

/// Attention of one query: the output `[d_v]` and the log of the sum of the weights.
///
/// Without a seen key the output is zero and the log [`NO_KEY`].
pub fn one(
    query: &[f64],
    keys: &[f64],
    values: &[f64],
    positions: &[u32],
    head_dim_v: usize,
    rule: &Rule,
) -> (Vec<f64>, f64) {
    let logits: Vec<Option<f64>> = keys
        .chunks(query.len())
        .enumerate()
        .map(|(t, key)| {
            let seen = rule.position.is_none_or(|position| {
                let key = u64::from(positions[t]);
                key <= position && rule.window.is_none_or(|window| position - key < window)
            });
            let dot: f64 = query.iter().zip(key).map(|(q, k)| tame(*q) * tame(*k)).sum();
            let logit = dot * rule.scale;
            seen.then_some(rule.cap.map_or(logit, |cap| cap * (logit / cap).tanh()))
        })
        .collect();
    let top = logits.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
    if logits.iter().flatten().next().is_none() {
        return (vec![0.0; head_dim_v], NO_KEY);
    }
    let mut out = vec![0.0; head_dim_v];
    let mut sum = 0.0;
    for (t, logit) in logits.iter().enumerate() {
        if let Some(logit) = logit {
            let weight = (logit - top).exp();
            sum += weight;
            for (c, value) in out.iter_mut().enumerate() {
                *value += weight * tame(values[t * head_dim_v + c]);
            }
        }
    }
    out.iter_mut().for_each(|v| *v /= sum);
    (out, top + sum.ln())
}

/// How the queries of a batch weigh their keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules<'a> {
    /// Factor of the dot products; `1 / sqrt d_k` where none is given.
    pub scale: Option<f64>,
    /// As [`Rule::cap`].
    pub cap: Option<f64>,
    /// Position of the first query token of each sequence where attention is causal.
    pub firsts: Option<&'a [u32]>,
    /// As [`Rule::window`].
    pub window: Option<u64>,
}

/// Attention of queries `[batch, heads, tokens, d_k]` over rows `[batch * kv_heads]`: outputs
/// `[batch, heads, tokens, d_v]` and logs `[batch, heads, tokens]`.
///
/// # Panics
/// For query heads that are no multiple of the KV heads, and queries of another length.
pub fn attend(
    queries: &[f64],
    batch: usize,
    heads: usize,
    tokens: usize,
    rows: &Rows,
    head_dim_k: usize,
    head_dim_v: usize,
    rules: &Rules<'_>,
) -> (Vec<f64>, Vec<f64>) {
    let kv_heads = rows.keys.len() / batch;
    assert!(heads.is_multiple_of(kv_heads) && queries.len() == batch * heads * tokens * head_dim_k);
    let (mut out, mut logs) = (Vec::new(), Vec::new());
    for (index, query) in queries.chunks(head_dim_k).enumerate() {
        let (sequence, rest) = (index / (heads * tokens), index % (heads * tokens));
        let (head, token) = (rest / tokens, rest % tokens);
        let row = sequence * kv_heads + head / (heads / kv_heads);
        let rule = Rule {
            scale: rules.scale.unwrap_or(1.0 / (head_dim_k as f64).sqrt()),
            cap: rules.cap,
            position: rules.firsts.map(|firsts| u64::from(firsts[sequence]) + token as u64),
            window: rules.window,
        };
        let (values, log) =
            one(query, &rows.keys[row], &rows.values[row], &rows.positions[row], head_dim_v, &rule);
        out.extend(values);
        logs.push(log);
    }
    (out, logs)
}
