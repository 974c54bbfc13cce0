//! What `compress` did, as one picture for print: which tokens of each head stayed, how they scored, how
//! far they are from what went in, and what takes the bytes.

use std::io;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use crate::file::Fail;

/// Stretches that positions are divided into.
const BINS: usize = 192;
/// Most heads that get a strip of their own.
const STRIPS: usize = 64;
const WIDTH: u32 = 1000;
/// Height of a panel that does not grow.
const PANEL: u32 = 240;
/// Height of all strips that there is room for, of one at least, and of what is around them.
const STRIPES: u32 = 160;
const STRIP: u32 = 11;
const FRAME: u32 = 92;
/// Size of the letters on axes.
const LETTERS: u32 = 13;

type Fault = DrawingAreaErrorKind<io::Error>;
type Drawn = Result<(), Fault>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What is drawn, gathered layer by layer.
pub struct Picture {
    /// Tokens of the longest layer.
    tokens: usize,
    /// Layer and row, and the share of each stretch that stayed.
    strips: Vec<(String, Vec<f64>)>,
    heads: usize,
    /// Mean scores of each stretch, a list a head.
    scores: Vec<Vec<f64>>,
    /// Squares of differences and of what went in, of keys and values, by stretch.
    errors: [Vec<[f64; 2]>; 2],
}

impl Picture {
    /// Without layers, of which the longest has so many tokens.
    pub fn new(tokens: usize) -> Self {
        let bins = tokens.clamp(1, BINS);
        let errors = [vec![[0.0; 2]; bins], vec![[0.0; 2]; bins]];
        Self { tokens, strips: Vec::new(), heads: 0, scores: Vec::new(), errors }
    }

    fn bins(&self) -> usize {
        self.errors[0].len()
    }

    fn bin(&self, position: usize) -> usize {
        (position * self.bins() / self.tokens.max(1)).min(self.bins() - 1)
    }

    /// Middle of a stretch.
    fn middle(&self, bin: usize) -> f64 {
        (bin as f64 + 0.5) * self.tokens as f64 / self.bins() as f64
    }

    /// Adds a head: its scores and which positions stayed.
    pub fn add_head(&mut self, layer: u32, row: usize, scores: &[f32], kept: &[u32]) {
        self.heads += 1;
        let mut sums = vec![(0.0, 0.0); self.bins()];
        for (position, score) in scores.iter().enumerate() {
            let sum = &mut sums[self.bin(position)];
            *sum = (sum.0 + f64::from(*score), sum.1 + 1.0);
        }
        let all: Vec<f64> = sums.iter().map(|sum| sum.1).collect();
        self.scores.push(sums.iter().map(|sum| sum.0 / sum.1).collect());
        if self.strips.len() < STRIPS {
            let mut stayed = vec![0.0; self.bins()];
            kept.iter().for_each(|position| stayed[self.bin(*position as usize)] += 1.0);
            let share =
                stayed.iter().zip(all).map(|(kept, all)| if all > 0.0 { kept / all } else { 0.0 });
            self.strips.push((format!("{layer}.{row}"), share.collect()));
        }
    }

    /// Adds what came back of a row of keys (side 0) or values and what went in.
    pub fn add_row(
        &mut self,
        side: usize,
        position: u32,
        got: &[f32],
        want: impl Iterator<Item = f32>,
    ) {
        let finite = |v: f32| if v.is_finite() { f64::from(v) } else { 0.0 };
        let bin = self.bin(position as usize);
        let [difference, size] = &mut self.errors[side][bin];
        for (got, want) in got.iter().zip(want) {
            let (got, want) = (finite(*got), finite(want));
            *difference += (got - want) * (got - want);
            *size += want * want;
        }
    }

    /// Draws everything as SVG, with the bytes before and after by part.
    pub fn draw(&self, before: u64, parts: &[(&str, u64)]) -> Result<String, Fail> {
        let mut text = String::new();
        self.panels(&mut text, before, parts)
            .map_err(|e| Fail::input(format!("the picture cannot be drawn: {e}")))?;
        Ok(text)
    }

    fn panels(&self, text: &mut String, before: u64, parts: &[(&str, u64)]) -> Drawn {
        let strips = FRAME + STRIPES.max(STRIP * self.strips.len() as u32);
        let size = (WIDTH, strips + 3 * PANEL);
        let area: Area<'_> = SVGBackend::with_string(text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let ends = [strips, strips + PANEL, strips + 2 * PANEL];
        let panels = area.split_by_breakpoints([] as [u32; 0], ends);
        let [kept, scores, errors, bytes] = &panels[..] else { return Ok(()) };
        self.draw_strips(kept)?;
        self.draw_scores(scores)?;
        self.draw_errors(errors)?;
        draw_bytes(bytes, before, parts)?;
        area.present()
    }

    fn draw_strips(&self, area: &Area<'_>) -> Drawn {
        let count = self.strips.len();
        let mut title = String::from("tokens that stay, a strip a head (black: all of a stretch)");
        if count < self.heads {
            title += &format!(", the first {count} of {} heads", self.heads);
        }
        let mut chart = self.chart(area, &title, -0.5..count as f64 - 0.5)?;
        let name = |at: &f64| {
            let strip = (count as f64 - 1.0 - at).round();
            let strip = (strip >= 0.0).then(|| self.strips.get(strip as usize)).flatten();
            strip.map_or(String::new(), |strip| strip.0.clone())
        };
        chart
            .configure_mesh()
            .disable_mesh()
            .label_style(("sans-serif", LETTERS))
            .axis_desc_style(("sans-serif", LETTERS))
            .x_label_formatter(&|tokens| format!("{tokens:.0}"))
            .x_desc("position, tokens")
            .y_desc("layer.head")
            .y_labels(count.min(12))
            .y_label_formatter(&name)
            .draw()?;
        let width = self.tokens as f64 / self.bins() as f64;
        for (at, (_, shares)) in self.strips.iter().enumerate() {
            let middle = (count - 1 - at) as f64;
            // Stretches of one shade are one box.
            let shades: Vec<u8> = shares.iter().map(|share| (share * 5.0).ceil() as u8).collect();
            let mut first = 0;
            for run in shades.chunk_by(|a, b| a == b) {
                let (begin, end) = (first as f64 * width, (first + run.len()) as f64 * width);
                first += run.len();
                if run[0] > 0 {
                    let grey = 255 - 51 * run[0].min(5);
                    let corners = [(begin, middle - 0.42), (end, middle + 0.42)];
                    let style = RGBColor(grey, grey, grey).filled();
                    chart.draw_series([Rectangle::new(corners, style)])?;
                }
            }
        }
        Ok(())
    }

    fn draw_scores(&self, area: &Area<'_>) -> Drawn {
        let (mut low, mut middle, mut high) = (Vec::new(), Vec::new(), Vec::new());
        for bin in 0..self.bins() {
            let mut all: Vec<f64> = self
                .scores
                .iter()
                .map(|head| head[bin])
                .filter(|score| score.is_finite())
                .collect();
            all.sort_by(f64::total_cmp);
            let at = |share: f64| {
                let place = share * (all.len().max(1) - 1) as f64;
                let (below, above) = (all.get(place as usize)?, all.get(place.ceil() as usize)?);
                Some(below + place.fract() * (above - below))
            };
            if let (Some(least), Some(median), Some(most)) = (at(0.1), at(0.5), at(0.9)) {
                let x = self.middle(bin);
                low.push((x, least));
                middle.push((x, median));
                high.push((x, most));
            }
        }
        let lowest = low.iter().map(|point| point.1).fold(0.0, f64::min);
        let highest = high.iter().map(|point| point.1).fold(0.01, f64::max);
        let title = "scores over all heads: median, and the middle 80%";
        let mut chart = self.chart(area, title, lowest..1.15 * highest)?;
        mesh(&mut chart, "position, tokens", "score")?;
        high.reverse();
        let band = [low, high].concat();
        chart.draw_series([Polygon::new(band, RGBColor(208, 208, 208).filled())])?;
        chart.draw_series(LineSeries::new(middle, BLACK.stroke_width(2)))?;
        Ok(())
    }

    fn draw_errors(&self, area: &Area<'_>) -> Drawn {
        let lines = [0, 1].map(|side| {
            let bins = self.errors[side].iter().enumerate();
            let known = bins.filter(|(_, [_, size])| *size > 0.0);
            known
                .map(|(bin, [difference, size])| {
                    (self.middle(bin), 100.0 * (difference / size).sqrt())
                })
                .collect::<Vec<_>>()
        });
        let most = lines.iter().flatten().map(|point| point.1).fold(1.0, f64::max);
        let mut chart =
            self.chart(area, "error of rows that stay, over all heads", 0.0..1.7 * most)?;
        mesh(&mut chart, "position, tokens", "relative error (rms), %")?;
        let [keys, values] = lines;
        chart
            .draw_series(LineSeries::new(keys, BLACK.stroke_width(2)))?
            .label("keys")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 24, y)], BLACK.stroke_width(2)));
        chart
            .draw_series(DashedLineSeries::new(values, 6, 4, BLACK.stroke_width(2)))?
            .label("values")
            .legend(|(x, y)| {
                let dash =
                    |from| PathElement::new([(from, 0), (from + 8, 0)], BLACK.stroke_width(2));
                EmptyElement::at((x, y)) + dash(0) + dash(14)
            });
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .legend_area_size(30)
            .label_font(("sans-serif", LETTERS))
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        Ok(())
    }

    fn chart<'a, 'b>(
        &self,
        area: &'a Area<'b>,
        title: &str,
        y: core::ops::Range<f64>,
    ) -> Result<Chart<'a, 'b>, Fault>
    where
        'b: 'a,
    {
        chart(area, title, 0.0..self.tokens as f64, y)
    }
}

fn chart<'a, 'b: 'a>(
    area: &'a Area<'b>,
    title: &str,
    x: core::ops::Range<f64>,
    y: core::ops::Range<f64>,
) -> Result<Chart<'a, 'b>, Fault> {
    let chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 16))
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    Ok(chart)
}

fn mesh(chart: &mut Chart<'_, '_>, x: &str, y: &str) -> Drawn {
    let light = RGBColor(224, 224, 224);
    chart
        .configure_mesh()
        .bold_line_style(light)
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", LETTERS))
        .axis_desc_style(("sans-serif", LETTERS))
        .x_label_formatter(&|tokens| format!("{tokens:.0}"))
        .x_desc(x)
        .y_desc(y)
        .draw()?;
    Ok(())
}

fn draw_bytes(area: &Area<'_>, before: u64, parts: &[(&str, u64)]) -> Drawn {
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let after: u64 = parts.iter().map(|part| part.1).sum();
    let most = parts.iter().map(|part| kib(part.1)).fold(1.0, f64::max);
    let title = format!("bytes by part: {before} before, {after} after");
    let mut chart = chart(area, &title, -0.5..parts.len() as f64 - 0.5, 0.0..1.2 * most)?;
    let name = |at: &f64| {
        let part = (at.fract() == 0.0 && *at >= 0.0).then(|| parts.get(*at as usize)).flatten();
        part.map_or(String::new(), |part| part.0.to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(RGBColor(224, 224, 224))
        .light_line_style(TRANSPARENT)
        .label_style(("sans-serif", LETTERS))
        .axis_desc_style(("sans-serif", LETTERS))
        .x_labels(parts.len())
        .x_label_formatter(&name)
        .x_desc("part")
        .y_desc("KiB")
        .draw()?;
    for (at, (_, bytes)) in parts.iter().enumerate() {
        let (at, height) = (at as f64, kib(*bytes));
        let corners = [(at - 0.35, 0.0), (at + 0.35, height)];
        chart.draw_series([Rectangle::new(corners, RGBColor(96, 96, 96).filled())])?;
        let share = 100.0 * *bytes as f64 / after.max(1) as f64;
        let text = Text::new(
            format!("{share:.1}%"),
            (at - 0.12, height + 0.09 * most),
            ("sans-serif", 13),
        );
        chart.draw_series([text])?;
    }
    Ok(())
}
