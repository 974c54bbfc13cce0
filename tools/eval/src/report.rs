//! What the program prints.

use std::fmt::{self, Display};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use wgkv_eval::choice::Choice;
use wgkv_eval::loss::{average, increase, perplexity};
use wgkv_eval::plot::Point;
use wgkv_eval::rule::Rule;

/// The text that is no part of the mean over texts: there, a token is lost or not.
const COPY: &str = "copy";
/// The codec that others are compared with.
const REFERENCE: &str = "f16";

/// Prints an answer as a table or as JSON.
pub fn answer<T: Display + Serialize>(json: bool, found: &T) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(found)?);
    } else {
        print!("{found}");
    }
    Ok(())
}

/// Losses of one text with one codec.
#[derive(Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Codec, window, prompt and rule: what a row of a table is called.
    pub title: String,
    codec: String,
    sinks: usize,
    recent: usize,
    chunk: usize,
    /// Bits an element of packed keys and values.
    bits: [f64; 2],
    /// Tokens of the prompt.
    prompt: usize,
    /// What stays of it, where not all does.
    rule: Option<String>,
    text: String,
    /// Of the scored tokens.
    pub losses: Vec<f32>,
}

impl Measured {
    /// Without losses.
    pub fn new(
        choice: &Choice,
        bits: [f64; 2],
        prompt: usize,
        rule: Option<&Rule>,
        text: &str,
    ) -> Self {
        let mut title = choice.to_string();
        let rule = rule.map(|rule| rule.to_string());
        match &rule {
            Some(rule) => title += &format!(", {rule} of {prompt}"),
            None if prompt > 0 && choice.name != REFERENCE => {
                title += &format!(", prompt {prompt}")
            }
            None => {}
        }
        Self {
            title,
            codec: choice.name.clone(),
            sinks: choice.window.sinks,
            recent: choice.window.recent,
            chunk: choice.window.chunk,
            bits,
            prompt,
            rule,
            text: text.into(),
            losses: Vec::new(),
        }
    }

    /// Whether this is what others are compared with: all rows as they are.
    fn is_reference(&self) -> bool {
        self.codec == REFERENCE && self.rule.is_none()
    }
}

/// A row of a table: one codec.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    of: Head,
    texts: Vec<TextRow>,
    /// Increase over f16 in percent, geometric mean over the texts but the copy test.
    #[serde(skip_serializing_if = "Option::is_none")]
    increase: Option<Figure>,
    /// Points of log loss, times 100, that evicting and packing cost beyond the sum of what each costs
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<Figure>,
}

/// What a row is of.
#[derive(Serialize)]
struct Head {
    title: String,
    codec: String,
    sinks: usize,
    recent: usize,
    chunk: usize,
    bits: [f64; 2],
    prompt: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

#[derive(Serialize)]
struct TextRow {
    text: String,
    perplexity: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    increase: Option<Figure>,
    #[serde(skip)]
    losses: Vec<f32>,
}

#[derive(Clone, Copy, Serialize)]
struct Figure {
    value: f64,
    standard_error: f64,
}

impl Display for Figure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:+.2} ±{:.2}", self.value, self.standard_error)
    }
}

impl Figure {
    fn new((value, standard_error): (f64, f64)) -> Self {
        Self { value, standard_error }
    }
}

impl Row {
    fn losses(&self, text: &str) -> Option<&[f32]> {
        self.texts.iter().find(|row| row.text == text).map(|row| &row.losses[..])
    }
}

/// Codecs side by side, the reference first.
#[derive(Serialize)]
pub struct Comparison {
    rows: Vec<Row>,
}

impl Comparison {
    /// Puts losses of the same codec together, in the order in which codecs come, and compares each with
    /// f16. Of two of the same codec and text the later counts.
    ///
    /// # Errors
    /// Where there are none of f16, or texts were scored at other lengths.
    pub fn new(mut found: Vec<Measured>) -> Result<Self> {
        found.sort_by_key(|measured| !measured.is_reference());
        let mut rows: Vec<Row> = Vec::new();
        for Measured { title, codec, sinks, recent, chunk, bits, prompt, rule, text, losses } in
            found
        {
            let place = rows.iter().position(|row| row.of.title == title).unwrap_or(rows.len());
            if place == rows.len() {
                let of = Head { title, codec, sinks, recent, chunk, bits, prompt, rule };
                rows.push(Row { of, texts: Vec::new(), increase: None, together: None });
            }
            let texts = &mut rows[place].texts;
            texts.retain(|row| row.text != text);
            let perplexity = perplexity(&losses);
            texts.push(TextRow { text, perplexity, increase: None, losses });
        }
        let first = rows.first().filter(|row| row.of.codec == REFERENCE && row.of.rule.is_none());
        let texts: Vec<(String, Vec<f32>)> = first
            .context("no losses of f16 to compare with")?
            .texts
            .iter()
            .map(|row| (row.text.clone(), row.losses.clone()))
            .collect();
        let mut together = Vec::new();
        for row in &rows {
            let alone = |evicted: bool| {
                let same = |other: &&Row| match evicted {
                    true => other.of.codec == REFERENCE && other.of.rule == row.of.rule,
                    false => other.of.rule.is_none() && other.of.codec == row.of.codec,
                };
                rows.iter().filter(|other| other.of.prompt == row.of.prompt).find(same)
            };
            let packed = row.of.rule.is_some() && row.of.codec != REFERENCE;
            let parts = alone(true).zip(alone(false)).filter(|_| packed);
            together.push(parts.and_then(|(evicted, packed)| beyond(row, evicted, packed, &texts)));
        }
        for (row, together) in rows.iter_mut().zip(together).skip(1) {
            row.together = together;
            let mut pairs = Vec::new();
            for (text, reference) in &texts {
                let Some(of) = row.texts.iter_mut().find(|row| row.text == *text) else { continue };
                ensure!(
                    of.losses.len() == reference.len(),
                    "{}: {text} was scored at another length than with f16",
                    row.of.title
                );
                of.increase = Some(Figure::new(increase(&[(&of.losses, reference)])));
                if text != COPY {
                    pairs.push((of.losses.clone(), reference));
                }
            }
            let all = texts.iter().filter(|text| text.0 != COPY).count();
            if all > 0 && pairs.len() == all {
                let pairs: Vec<(&[f32], &[f32])> =
                    pairs.iter().map(|(losses, reference)| (&losses[..], &reference[..])).collect();
                row.increase = Some(Figure::new(increase(&pairs)));
            }
        }
        Ok(Self { rows })
    }

    /// Points of a picture.
    pub fn points(&self) -> Vec<Point> {
        let point = |row: &Row| {
            let bits = (row.of.bits[0] + row.of.bits[1]) / 2.0;
            row.increase.map(|increase| (row.of.title.clone(), bits, increase.value))
        };
        self.rows.iter().filter_map(point).collect()
    }
}

/// What a row that was evicted and packed costs beyond both, over all texts but the copy test.
fn beyond(
    row: &Row,
    evicted: &Row,
    packed: &Row,
    reference: &[(String, Vec<f32>)],
) -> Option<Figure> {
    let mut differences = Vec::new();
    for (text, reference) in reference.iter().filter(|(text, _)| text != COPY) {
        let rows = row.losses(text)?.iter().zip(evicted.losses(text)?);
        let others = packed.losses(text)?.iter().zip(reference);
        differences.push(rows.zip(others).map(|((row, evicted), (packed, reference))| {
            f64::from(row - evicted) - f64::from(packed - reference)
        }));
    }
    let (middle, error) = average(differences);
    Some(Figure::new((100.0 * middle, 100.0 * error)))
}

impl Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "| codec | bits K / V / mean |")?;
        let texts: Vec<&str> = match self.rows.first() {
            Some(row) => row.texts.iter().map(|text| &text.text[..]).collect(),
            None => Vec::new(),
        };
        texts.iter().try_for_each(|text| write!(out, " {text} |"))?;
        let together = self.rows.iter().any(|row| row.together.is_some());
        writeln!(out, " loss, % |{}", if together { " together, points |" } else { "" })?;
        writeln!(out, "|{}", "---|".repeat(3 + texts.len() + usize::from(together)))?;
        for row in &self.rows {
            let [keys, values] = row.of.bits;
            let mean = (keys + values) / 2.0;
            write!(out, "| {} | {keys:.2} / {values:.2} / {mean:.2} |", row.of.title)?;
            for text in &texts {
                let Some(of) = row.texts.iter().find(|row| row.text == *text) else {
                    write!(out, " - |")?;
                    continue;
                };
                let digits = if *text == COPY { 3 } else { 2 };
                write!(out, " {:.digits$}", of.perplexity)?;
                match of.increase {
                    Some(increase) if *text == COPY => write!(out, " ({increase} %) |")?,
                    _ => write!(out, " |")?,
                }
            }
            let figure = |figure: Option<Figure>| match figure {
                Some(figure) => format!(" {figure} |"),
                None => " - |".into(),
            };
            write!(out, "{}", figure(row.increase))?;
            writeln!(out, "{}", if together { figure(row.together) } else { String::new() })?;
        }
        Ok(())
    }
}

/// Errors of attention outputs.
#[derive(Serialize)]
pub struct Errors {
    codec: String,
    /// By text, layer and head.
    texts: Vec<(String, Vec<Vec<f64>>)>,
}

impl Errors {
    /// Without texts.
    pub fn new(choice: &Choice) -> Self {
        Self { codec: choice.to_string(), texts: Vec::new() }
    }

    /// Adds those of a text.
    pub fn add(&mut self, text: &str, errors: Vec<Vec<f64>>) {
        self.texts.push((text.into(), errors));
    }
}

impl Display for Errors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Vec::new();
        for (text, layers) in &self.texts {
            writeln!(out, "{} on {text}, by layer: mean, then each query head", self.codec)?;
            for (layer, heads) in layers.iter().enumerate() {
                let mean = heads.iter().sum::<f64>() / heads.len() as f64;
                write!(out, "{layer:3}  {mean:.3}  ")?;
                heads.iter().try_for_each(|error| write!(out, " {error:.3}"))?;
                writeln!(out)?;
                all.extend(heads);
            }
        }
        writeln!(out, "mean {:.4}", all.iter().sum::<f64>() / all.len() as f64)
    }
}

/// Answers of several codecs to one prompt.
#[derive(Serialize)]
pub struct Answers {
    /// Tokens of the prompt.
    prompt: usize,
    answers: Vec<Answer>,
}

#[derive(Serialize)]
struct Answer {
    codec: String,
    text: String,
    tokens: Vec<u32>,
    /// First tokens that are those of the first answer.
    same: usize,
}

impl Answers {
    /// Without answers to a prompt of so many tokens.
    pub fn new(prompt: usize) -> Self {
        Self { prompt, answers: Vec::new() }
    }

    /// Adds an answer.
    pub fn add(&mut self, choice: &Choice, text: String, tokens: Vec<u32>) {
        let same = match self.answers.first() {
            Some(first) => first.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count(),
            None => tokens.len(),
        };
        self.answers.push(Answer { codec: choice.to_string(), text, tokens, same });
    }
}

impl Display for Answers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Answer { codec, text, tokens, same } in &self.answers {
            let count = tokens.len();
            writeln!(out, "== {codec}: {count} tokens, the first {same} as without compression")?;
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgkv_eval::choice::Window;

    const WINDOW: Window = Window { sinks: 4, recent: 16, chunk: 64 };

    fn measured(codec: &str, rule: bool, text: &str, loss: f32) -> Measured {
        let choice = Choice::parse(codec, WINDOW).unwrap();
        let rule = rule.then(|| Rule::parse("nested", 0.5, 4).unwrap());
        let mut found = Measured::new(&choice, [2.0, 4.0], 8, rule.as_ref(), text);
        found.losses = vec![loss, loss + 1.0];
        found
    }

    #[test]
    fn lines_of_any_order_make_a_table() {
        let mut lines = Vec::new();
        for (text, more) in [("alice", 0.0), ("copy", 5.0)] {
            lines.push(measured("tuned-k3v2", true, text, 1.45 + more));
            lines.push(measured("tuned-k3v2", false, text, 1.2 + more));
            lines.push(measured("f16", true, text, 1.1 + more));
            lines.push(measured("f16", false, text, 9.0));
            lines.push(measured("f16", false, text, 1.0 + more));
        }
        let again =
            |line: &Measured| serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap();
        let found = Comparison::new(lines.iter().map(again).collect()).unwrap();
        let titles: Vec<_> = found.rows.iter().map(|row| &row.of.title[..]).collect();
        let packed = "tuned-k3v2 S4 W16 r64";
        let (evicted, alone) =
            (format!("{packed}, nested 0.5 of 8"), format!("{packed}, prompt 8"));
        assert_eq!(titles, ["f16", &evicted, &alone, "f16, nested 0.5 of 8"]);
        let percent = found.rows[1].increase.unwrap().value;
        assert!((percent - 100.0 * (0.45f64.exp() - 1.0)).abs() < 1e-3, "{percent}");
        // Packing costs 0.2 and evicting 0.1 alone.
        assert!((found.rows[1].together.unwrap().value - 15.0).abs() < 1e-3);
        assert!(found.rows[2].together.is_none());
        assert_eq!(found.to_string().lines().count(), 6);
        assert!(Comparison::new(lines[..3].to_vec()).is_err());
        lines[3].losses.pop();
        lines.truncate(4);
        assert!(Comparison::new(lines).is_err());
    }
}
