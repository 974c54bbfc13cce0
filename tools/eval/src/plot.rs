//! Loss over bits as a picture.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;

/// A point: name, bits an element, increase of perplexity in percent.
pub type Point = (String, f64, f64);

/// Draws points on a logarithmic scale into an SVG file.
pub fn plot(path: &Path, points: &[Point]) -> Result<()> {
    ensure!(!points.is_empty(), "nothing to draw");
    // What is not worse than the reference has no place on a logarithmic scale.
    let loss = |percent: f64| percent.max(0.1);
    let least = points.iter().map(|point| loss(point.2)).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| loss(point.2)).fold(0.0, f64::max);
    let widest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let fault = |e: &dyn std::fmt::Display| anyhow!("{}: {e}", path.display());
    let area = SVGBackend::new(path, (900, 560)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| fault(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..widest * 1.25, (least / 1.5..most * 1.5).log_scale())
        .map_err(|e| fault(&e))?;
    chart
        .configure_mesh()
        .x_desc("bits an element")
        .y_desc("perplexity above f16, %")
        .draw()
        .map_err(|e| fault(&e))?;
    for (name, bits, percent) in points {
        let at = (*bits, loss(*percent));
        let label = EmptyElement::at(at)
            + Circle::new((0, 0), 4, BLUE.filled())
            + Text::new(name.clone(), (7, -6), ("sans-serif", 13));
        chart.draw_series([label]).map_err(|e| fault(&e))?;
    }
    area.present().map_err(|e| fault(&e))
}
