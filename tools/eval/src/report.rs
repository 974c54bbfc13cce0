//! What the program prints.

use std::fmt::{self, Display};

use anyhow::Result;
use serde::Serialize;
use wgkv_eval::choice::Choice;
use wgkv_eval::loss::{increase, perplexity};
use wgkv_eval::model::Shape;
use wgkv_eval::plot::Point;

/// The text that is no part of the mean over texts: there, a token is lost or not.
const COPY: &str = "copy";

/// Prints an answer as a table or as JSON.
pub fn answer<T: Display + Serialize>(json: bool, found: &T) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(found)?);
    } else {
        print!("{found}");
    }
    Ok(())
}

/// One codec.
#[derive(Serialize)]
pub struct Row {
    codec: String,
    sinks: usize,
    recent: usize,
    chunk: usize,
    /// Bits an element of packed keys and values.
    bits: [f64; 2],
    texts: Vec<TextRow>,
    /// Increase over f16 in percent, geometric mean over the texts but the copy test.
    #[serde(skip_serializing_if = "Option::is_none")]
    increase: Option<Increase>,
    #[serde(skip)]
    title: String,
}

#[derive(Serialize)]
struct TextRow {
    text: String,
    perplexity: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    increase: Option<Increase>,
    #[serde(skip)]
    losses: Vec<f32>,
}

#[derive(Clone, Copy, Serialize)]
struct Increase {
    percent: f64,
    standard_error: f64,
}

impl Display for Increase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:+.2} ±{:.2} %", self.percent, self.standard_error)
    }
}

impl Increase {
    fn new((percent, standard_error): (f64, f64)) -> Self {
        Self { percent, standard_error }
    }
}

impl Row {
    /// A row without texts.
    pub fn new(choice: &Choice, shape: &Shape) -> Result<Self> {
        Ok(Self {
            codec: choice.name.clone(),
            sinks: choice.window.sinks,
            recent: choice.window.recent,
            chunk: choice.window.chunk,
            bits: choice.bits(shape)?,
            texts: Vec::new(),
            increase: None,
            title: choice.to_string(),
        })
    }

    /// Adds the losses of a text.
    pub fn add(&mut self, text: &str, losses: Vec<f32>) {
        let perplexity = perplexity(&losses);
        self.texts.push(TextRow { text: text.into(), perplexity, increase: None, losses });
    }
}

/// Codecs side by side, the reference first.
#[derive(Serialize)]
pub struct Comparison {
    rows: Vec<Row>,
}

impl Comparison {
    /// Compares rows with the first.
    pub fn new(mut rows: Vec<Row>) -> Self {
        if let Some((first, others)) = rows.split_first_mut() {
            for row in others {
                let (mut losses, mut reference) = (Vec::new(), Vec::new());
                for (text, first) in row.texts.iter_mut().zip(&first.texts) {
                    let found = increase(&[&text.losses], &[&first.losses]);
                    text.increase = Some(Increase::new(found));
                    if text.text != COPY {
                        losses.push(&text.losses[..]);
                        reference.push(&first.losses[..]);
                    }
                }
                if !losses.is_empty() {
                    row.increase = Some(Increase::new(increase(&losses, &reference)));
                }
            }
        }
        Self { rows }
    }

    /// Points of a picture.
    pub fn points(&self) -> Vec<Point> {
        let point = |row: &Row| {
            let bits = (row.bits[0] + row.bits[1]) / 2.0;
            row.increase.map(|increase| (row.title.clone(), bits, increase.percent))
        };
        self.rows.iter().filter_map(point).collect()
    }
}

impl Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "| codec | bits K / V / mean |")?;
        let texts: Vec<&str> = match self.rows.first() {
            Some(row) => row.texts.iter().map(|text| &text.text[..]).collect(),
            None => Vec::new(),
        };
        texts.iter().try_for_each(|text| write!(out, " {text} |"))?;
        writeln!(out, " loss |")?;
        writeln!(out, "|{}", "---|".repeat(3 + texts.len()))?;
        for row in &self.rows {
            let [keys, values] = row.bits;
            let mean = (keys + values) / 2.0;
            write!(out, "| {} | {keys:.2} / {values:.2} / {mean:.2} |", row.title)?;
            for text in &row.texts {
                let digits = if text.text == COPY { 3 } else { 2 };
                write!(out, " {:.digits$}", text.perplexity)?;
                match text.increase {
                    Some(increase) if text.text == COPY => write!(out, " ({increase}) |")?,
                    _ => write!(out, " |")?,
                }
            }
            match row.increase {
                Some(increase) => writeln!(out, " {increase} |")?,
                None => writeln!(out, " - |")?,
            }
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
