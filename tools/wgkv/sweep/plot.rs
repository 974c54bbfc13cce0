//! The report as pictures: time and bytes over tokens, and how near the device's limits a case comes.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::Line;
use crate::file::Fail;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Points of a curve.
type Curves = BTreeMap<String, Vec<(f64, f64)>>;

fn fault(path: &Path, error: &dyn std::fmt::Display) -> Fail {
    Fail::input(format!("{}: {error}", path.display()))
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
    let time = curves(&|line| line.median * 1e3);
    draw(&folder.join("time.svg"), ["tokens a row", "milliseconds"], &time, &[])?;
    // However the tokens are spread over sequences and heads.
    let mut all = Curves::new();
    for line in lines {
        let tokens = (line.case.shape.rows() * line.case.shape.tokens) as f64;
        all.entry(line.case.kind()).or_default().push((tokens, line.median * 1e3));
    }
    draw(&folder.join("linear.svg"), ["tokens of all rows", "milliseconds"], &all, &[])?;
    let bytes = curves(&|line| line.case.bytes() as f64 / f64::from(1 << 20));
    draw(&folder.join("bytes.svg"), ["tokens a row", "MiB moved"], &bytes, &[])?;
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
    let roof: Vec<(f64, f64)> = [low, high].iter().map(|&x| (x, x * pace)).collect();
    let names = ["operations a byte", "operations, 1e9/s"];
    draw(&folder.join("roofline.svg"), names, &points, &roof)
}

/// Draws curves on logarithmic scales, and a black line beside them.
fn draw(path: &Path, names: [&str; 2], curves: &Curves, roof: &[(f64, f64)]) -> Result<(), Fail> {
    let all = || curves.values().flatten().chain(roof).filter(|p| p.0 > 0.0 && p.1 > 0.0);
    let ends = |axis: fn(&(f64, f64)) -> f64| {
        let (low, high) = all()
            .map(axis)
            .fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
        low / 1.3..high * 1.3
    };
    if all().next().is_none() {
        return Ok(());
    }
    let area: Area<'_> = SVGBackend::new(path, (960, 600)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| fault(path, &e))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(ends(|p| p.0).log_scale(), ends(|p| p.1).log_scale())
        .map_err(|e| fault(path, &e))?;
    chart.configure_mesh().x_desc(names[0]).y_desc(names[1]).draw().map_err(|e| fault(path, &e))?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let mut points = points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        if roof.is_empty() {
            let line = LineSeries::new(points.iter().copied(), &colour);
            chart.draw_series(line).map_err(|e| fault(path, &e))?;
        }
        let dots = points.iter().map(|&at| Circle::new(at, 4, colour.filled()));
        chart
            .draw_series(dots)
            .map_err(|e| fault(path, &e))?
            .label(name.clone())
            .legend(move |at| Circle::new(at, 4, colour.filled()));
    }
    chart
        .draw_series(LineSeries::new(roof.iter().copied(), &BLACK))
        .map_err(|e| fault(path, &e))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(|e| fault(path, &e))?;
    area.present().map_err(|e| fault(path, &e))
}
