//! What is read from devices and written to them: by device, and by what it is for.

use super::columns::{Columns, operations, rate};
use super::figure::number;
use super::line::Line;
use super::rates::{Looks, Span, log};
use crate::target::status::Device;

/// Of devices: as much as fits on a narrow terminal is what everybody asks for.
const DEVICES: Columns = Columns {
    name: 10,
    figure: 7,
};
const COUNTERS: Columns = Columns {
    name: 12,
    figure: 11,
};
/// Devices that are shown even if there is little room.
const NEEDED: usize = 4;

/// A line of each device.
pub(super) fn devices(span: &Span<'_>) -> Vec<Line> {
    let all = &span.now.volume.devices;
    if all.is_empty() {
        return Vec::new();
    }
    let [r, mib_r, w, mib_w, f] = match span.is_all {
        true => ["reads", "MiB", "writes", "MiB", "flush"],
        false => ["r/s", "MiB/s", "w/s", "MiB/s", "f/s"],
    };
    let (mean, p99) = ("mean", "p99");
    let labels = [
        r, mib_r, mean, p99, w, mib_w, mean, p99, f, mean, "failed", "free", "state",
    ];
    let mut lines = vec![DEVICES.heading("device", &labels)];
    for (at, device) in all.iter().enumerate() {
        let mut line = row(span, at, device);
        line.is_spare = at >= NEEDED;
        lines.push(line);
    }
    lines
}

fn row(span: &Span<'_>, at: usize, device: &Device) -> Line {
    let done = |kind| span.operations(|status| status.volume.devices.get(at)?.operations.get(kind));
    let [read, write, flush] = ["read", "write", "flush"].map(done);
    let failed = [&read, &write, &flush].map(|done| done.failed);
    let failed = failed.into_iter().fold(0, u64::saturating_add);
    let [flushes, _, flush_mean, _] = operations(span, &flush);
    let mut figures = operations(span, &read).to_vec();
    figures.extend(operations(span, &write));
    figures.extend([flushes, flush_mean, rate(span, failed)]);
    figures.extend([number(device.free as f64), format!(" {}", device.state)]);
    DEVICES.row(&device.path, &figures)
}

/// Grains that are appended to the log, and how many for each of a user.
pub(super) fn written(span: &Span<'_>, looks: &Looks) -> Vec<Line> {
    const KINDS: [&str; 4] = ["user", "relocated", "header", "checkpoint"];
    let grains = KINDS.map(|kind| format!("{kind}_grains"));
    if grains.iter().all(|name| log(span.now, name) == 0) {
        return Vec::new();
    }
    let mut labels = KINDS.to_vec();
    labels.extend(["WA", "WA ever"]);
    let mut figures = grains.map(|name| rate(span, span.log(&name))).to_vec();
    for span in [*span, looks.all()] {
        let ratio = span.write_amplification();
        figures.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")));
    }
    let what = if span.is_all { "grains" } else { "grains/s" };
    table(what, &labels, &figures)
}

/// Pages in memory.
pub(super) fn pages(span: &Span<'_>) -> Vec<Line> {
    let volume = &span.now.volume;
    if volume.frames == 0 {
        return Vec::new();
    }
    let mut labels = vec!["fills", "evictions", "waits", "dirty", "frames"];
    let counted = ["fills", "evictions", "frame_waits"];
    let mut figures = counted.map(|name| rate(span, span.log(name))).to_vec();
    figures.push(number(log(span.now, "dirty_pages") as f64));
    figures.push(number(volume.frames as f64));
    if volume.shared_frames > 0 {
        labels.push("shared");
        figures.push(number(volume.shared_frames as f64));
    }
    let what = if span.is_all { "pages" } else { "pages/s" };
    table(what, &labels, &figures)
}

fn table(what: &str, labels: &[&str], figures: &[String]) -> Vec<Line> {
    vec![COUNTERS.heading(what, labels), COUNTERS.row("", figures)]
}
