//! The report as pictures for print: time and bytes over tokens, and how near the device's limits a case
//! comes. Curves differ by marker and dashes, not by colour.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::{CoordTranslate, Shift};
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;

use super::Line;
use crate::file::{Fail, shown, write_whole};

type Fault = DrawingAreaErrorKind<std::io::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Points of a curve.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

/// Size of what is left of the names, and room for these.
const PLOT: (u32, u32) = (720, 600);
const NAMES: u32 = 330;
/// Height of a name and size of its letters.
const NAME: u32 = 20;
const LETTERS: u32 = 13;
/// Markers that there are.
const SHAPES: usize = 8;

fn fault(path: &Path, error: &dyn std::fmt::Display) -> Fail {
    Fail::input(format!("cannot be drawn: {error}")).at(shown(&path.display().to_string()))
}

/// What a picture shows.
struct View<'a> {
    title: &'a str,
    axes: [&'a str; 2],
    /// Base of the horizontal scale.
    base: f64,
    curves: Curves,
    /// A bound that no curve passes, and its name.
    roof: Option<(&'a str, [(f64, f64); 2])>,
}

/// Writes `time.svg`, `linear.svg`, `bytes.svg` and `roofline.svg` into a folder.
pub fn plots(folder: &Path, lines: &[Line]) -> Result<(), Fail> {
    let curves = |value: &dyn Fn(&Line) -> f64| {
        let mut curves = Curves::new();
        for line in lines {
            let point = (line.case.shape.tokens as f64, value(line));
            curves.entry(line.case.curve()).or_default().push(point);
        }
        curves
    };
    let over_tokens = |title, unit, curves| View {
        title,
        axes: ["tokens a row", unit],
        base: 2.0,
        curves,
        roof: None,
    };
    let time = curves(&|line| line.median * 1e3);
    over_tokens("median time of a run", "milliseconds", time).draw(&folder.join("time.svg"))?;
    // However the tokens are spread over sequences and heads.
    let mut all = Curves::new();
    for line in lines {
        let tokens = (line.case.shape.rows() * line.case.shape.tokens) as f64;
        all.entry(line.case.kind()).or_default().push((tokens, line.median * 1e3));
    }
    let mut linear = over_tokens("median time, all shapes together", "milliseconds", all);
    linear.axes[0] = "tokens of all rows";
    linear.draw(&folder.join("linear.svg"))?;
    let bytes = curves(&|line| line.case.bytes() as f64 / f64::from(1 << 20));
    over_tokens("bytes that a run has to move", "MiB", bytes).draw(&folder.join("bytes.svg"))?;
    let mut points = Curves::new();
    for line in lines {
        let (bytes, operations) = (line.case.bytes() as f64, line.case.operations() as f64);
        let point = (operations / bytes, operations / line.median / 1e9);
        points.entry(line.case.curve()).or_default().push(point);
    }
    // What the copy's pace allows at an intensity.
    let pace = lines.iter().map(|line| line.copy).fold(0.0, f64::max) / 1e9;
    let ends = points.values().flatten().map(|point| point.0);
    let (low, high) = ends.fold((f64::INFINITY, 0.0f64), |(l, h), x| (l.min(x), h.max(x)));
    let view = View {
        title: "roofline: pace of arithmetic over arithmetic a byte",
        axes: ["operations a byte moved", "operations a second, 1e9"],
        base: 10.0,
        curves: points,
        roof: Some(("at the pace of a copy", [low, high].map(|x| (x, x * pace)))),
    };
    view.draw(&folder.join("roofline.svg"))
}

/// Shade of a curve: darker and lighter in turn.
fn shade(index: usize) -> RGBColor {
    if (index / SHAPES).is_multiple_of(2) { BLACK } else { RGBColor(128, 128, 128) }
}

/// Draws the marker of a curve around a pixel.
fn mark(area: &Area<'_>, index: usize, at: (i32, i32)) -> Result<(), Fault> {
    let (full, thin) = (shade(index).filled(), shade(index).stroke_width(2));
    let by = |x: i32, y: i32| (at.0 + x, at.1 + y);
    let square = |style| Rectangle::new([by(-4, -4), by(4, 4)], style);
    let cross = |ends: [(i32, i32); 4]| {
        let [a, b, c, d] = ends.map(|(x, y)| by(x, y));
        area.draw(&PathElement::new([a, b], thin))?;
        area.draw(&PathElement::new([c, d], thin))
    };
    match index % SHAPES {
        0 => area.draw(&Circle::new(at, 4, full)),
        1 => area.draw(&square(thin)),
        2 => area.draw(&TriangleMarker::new(at, 6, full)),
        3 => cross([(-4, -4), (4, 4), (-4, 4), (4, -4)]),
        4 => area.draw(&square(full)),
        5 => area.draw(&Circle::new(at, 4, thin)),
        6 => {
            let corners = [(0, -6), (6, 0), (0, 6), (-6, 0), (0, -6)];
            area.draw(&PathElement::new(corners.map(|(x, y)| by(x, y)), thin))
        }
        _ => cross([(-5, 0), (5, 0), (0, -5), (0, 5)]),
    }
}

impl View<'_> {
    /// Draws the curves on logarithmic scales, with their names beside them.
    fn draw(&self, path: &Path) -> Result<(), Fail> {
        let roof = self.roof.iter().flat_map(|roof| &roof.1);
        let all = || self.curves.values().flatten().chain(roof.clone());
        let all = || all().filter(|p| p.0 > 0.0 && p.1 > 0.0);
        let ends = |axis: fn(&(f64, f64)) -> f64| {
            let (low, high) = all()
                .map(axis)
                .fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
            low / 1.3..high * 1.3
        };
        if all().next().is_none() {
            return Ok(());
        }
        let (x, y) = (ends(|p| p.0).log_scale().base(self.base), ends(|p| p.1).log_scale());
        let mut text = String::new();
        self.draw_into(&mut text, x, y).map_err(|e| fault(path, &e))?;
        write_whole(path, text.as_bytes())
    }

    fn draw_into<X, Y>(&self, text: &mut String, x: X, y: Y) -> Result<(), Fault>
    where
        X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
        Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    {
        let names = self.curves.len() + usize::from(self.roof.is_some());
        let height = PLOT.1.max(80 + NAME * names as u32);
        let size = (PLOT.0 + NAMES, height);
        let area: Area<'_> = SVGBackend::with_string(text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, beside) = area.split_horizontally(PLOT.0);
        let mut chart = ChartBuilder::on(&plot)
            .margin(16)
            .caption(self.title, ("sans-serif", 16))
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)?;
        let plain = |number: &f64| format!("{number}");
        chart
            .configure_mesh()
            .bold_line_style(RGBColor(208, 208, 208))
            .light_line_style(RGBColor(240, 240, 240))
            .label_style(("sans-serif", LETTERS))
            .axis_desc_style(("sans-serif", LETTERS))
            .x_label_formatter(&plain)
            .y_label_formatter(&plain)
            .x_desc(self.axes[0])
            .y_desc(self.axes[1])
            .draw()?;
        let place = |row: usize| (12, 52 + row as i32 * NAME as i32);
        let name = |row: usize, text: &str| {
            let (x, y) = place(row);
            Text::new(text.to_owned(), (x + 40, y - 7), ("sans-serif", LETTERS))
        };
        for (index, (text, points)) in self.curves.iter().enumerate() {
            let mut points = points.clone();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (line, (x, y)) = (shade(index).stroke_width(1), place(index));
            if self.roof.is_none() {
                let sample = [(x, y), (x + 32, y)];
                if index.is_multiple_of(2) {
                    chart.draw_series(LineSeries::new(points.iter().copied(), line))?;
                    beside.draw(&PathElement::new(sample, line))?;
                } else {
                    let dashes = DashedLineSeries::new(points.iter().copied(), 6, 4, line);
                    chart.draw_series(dashes)?;
                    for from in [x, x + 10, x + 20] {
                        beside.draw(&PathElement::new([(from, y), (from + 6, y)], line))?;
                    }
                }
            }
            for point in &points {
                mark(&area, index, chart.as_coord_spec().translate(point))?;
            }
            mark(&beside, index, (x + 16, y))?;
            beside.draw(&name(index, text))?;
        }
        if let Some((text, ends)) = self.roof {
            let (row, thick) = (self.curves.len(), BLACK.stroke_width(2));
            chart.draw_series(LineSeries::new(ends, thick))?;
            let (x, y) = place(row);
            beside.draw(&PathElement::new([(x, y), (x + 32, y)], thick))?;
            beside.draw(&name(row, text))?;
        }
        area.present()?;
        Ok(())
    }
}
