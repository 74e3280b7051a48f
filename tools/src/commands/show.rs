//! How commands speak: sizes, tables, progress.

use std::time::Duration;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use ftl::RecoveryReport;
use indicatif::{ProgressBar, ProgressStyle};

/// A table with these headings; all columns but the first are flush right.
pub(super) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(headings);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Bytes for people: `1.5 GiB`.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Bytes per second for people.
pub(super) fn rate(n: u64, time: Duration) -> String {
    format!(
        "{}/s",
        bytes((n as f64 / time.as_secs_f64().max(1e-9)) as u64)
    )
}

/// A time for people: microseconds, milliseconds or seconds.
pub(super) fn time(t: Duration) -> String {
    let us = t.as_secs_f64() * 1e6;
    if us < 1000.0 {
        format!("{us:.0} µs")
    } else if us < 1_000_000.0 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{:.2} s", us / 1e6)
    }
}

/// A progress bar for `total` bytes; invisible when standard error is no terminal.
pub(super) fn progress(total: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template(
        "{prefix:12} {bar:32} {bytes:>10}/{total_bytes} {bytes_per_sec:>12} {eta:>4}",
    )
    .expect("the template is legal");
    bar.set_style(style);
    bar.set_prefix(what.to_owned());
    bar
}

/// Tells whoever makes a volume good that it has lost something, which nobody sees afterwards.
pub(super) fn lost_headers(names: &str, recovery: &RecoveryReport) {
    if let Some(lost) = contigfs::lost_headers(recovery) {
        eprintln!("{names}: {lost}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_can_read_it() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(1 << 30), "1.0 GiB");
        assert_eq!(time(Duration::from_micros(12)), "12 µs");
        assert_eq!(time(Duration::from_micros(12_300)), "12.3 ms");
    }
}
