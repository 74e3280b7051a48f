//! A plot of a figure.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;

use super::figure::Outcome;
use crate::cli::hyperloop::Figure;

const SIZE: (u32, u32) = (720, 440);
const COLOURS: [RGBColor; 3] = [
    RGBColor(27, 98, 165),
    RGBColor(206, 92, 0),
    RGBColor(110, 110, 110),
];

/// Draws an outcome, both axes logarithmic, a line for each side.
pub(super) fn draw(path: &Path, outcome: &Outcome, crowd: &str) -> Result<()> {
    let failed = |error: String| anyhow!(error);
    let context = || format!("cannot draw {}", path.display());
    plot(path, outcome, crowd)
        .map_err(|error| failed(error.to_string()))
        .with_context(context)
}

fn plot(path: &Path, outcome: &Outcome, crowd: &str) -> Result<(), Box<dyn std::error::Error>> {
    let lines = outcome.lines();
    let points = || lines.iter().flat_map(|(_, points)| points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        (low * 0.8)..(high * 1.25)
    };
    let xs = range(&mut points().map(|&(x, _)| x));
    let ys = range(&mut points().map(|&(_, y)| y));
    let figure = outcome.figure();
    let (x, y) = match figure {
        Figure::Throughput => ("bytes", "per second"),
        Figure::Members => ("members", "p99, µs"),
        _ => ("bytes", "p99, µs"),
    };
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!("{}, {crowd}", figure.title());
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(xs.log_scale(), ys.log_scale())?;
    chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
    for ((side, points), colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(
                points.iter().copied(),
                colour.stroke_width(2),
            ))?
            .label(side.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
