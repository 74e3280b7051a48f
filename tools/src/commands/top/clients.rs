//! What the programs on the mount and remote peers ask for.

use super::columns::{Columns, operations, per, rate};
use super::line::{Kind, Line};
use super::rates::Span;
use crate::target::status::Operations;

const COLUMNS: Columns = Columns {
    name: 16,
    figure: 9,
};
/// Tenants at most that are named; nobody has a terminal for more.
const TENANTS_MAX: usize = 100;
/// Requests that are shown even if there is little room.
const NEEDED: usize = 4;

/// The requests of the mount, those first that took most of the time; of others nothing.
pub(super) fn requests(span: &Span<'_>) -> Vec<Line> {
    let Some(mount) = &span.now.mount else {
        return Vec::new();
    };
    let all = mount.requests.keys().map(|name| {
        let done = span.operations(|status| status.mount.as_ref()?.requests.get(name));
        (name, done)
    });
    let mut all: Vec<(&String, Operations)> = all.filter(|(_, done)| done.count > 0).collect();
    all.sort_by(|(_, one), (_, other)| other.seconds.total_cmp(&one.seconds));
    let mut lines = Vec::new();
    for (at, (name, done)) in all.iter().enumerate() {
        if at == 0 {
            lines.push(heading(span, "mount"));
        }
        let mut line = row(span, name, done);
        line.is_spare = at >= NEEDED;
        lines.push(line);
    }
    lines
}

/// The operations of peers, as far as there ever were any, and who is connected.
pub(super) fn remote(span: &Span<'_>) -> Vec<Line> {
    let remote = &span.now.remote;
    let mut lines = Vec::new();
    for (name, ever) in &remote.operations {
        if ever.count > 0 {
            let done = span.operations(|status| status.remote.operations.get(name));
            // None fails: what can not be done ends the connection.
            lines.push(COLUMNS.row(name, &operations(span, &done)));
        }
    }
    if remote.control.count > 0 {
        let done = span.operations(|status| Some(&status.remote.control));
        lines.push(row(span, "control", &done));
    }
    if !lines.is_empty() {
        lines.insert(0, heading(span, "remote"));
    }
    lines.extend(connections(span));
    lines
}

fn heading(span: &Span<'_>, what: &str) -> Line {
    let labels = match span.is_all {
        true => ["count", "MiB", "mean", "p99", "failed"],
        false => ["/s", "MiB/s", "mean", "p99", "failed/s"],
    };
    COLUMNS.heading(what, &labels)
}

fn row(span: &Span<'_>, name: &str, done: &Operations) -> Line {
    let mut figures = operations(span, done).to_vec();
    figures.push(rate(span, done.failed));
    COLUMNS.row(name, &figures)
}

fn connections(span: &Span<'_>) -> Option<Line> {
    let remote = &span.now.remote;
    if remote.accepted == 0 && remote.refused == 0 {
        return None;
    }
    let tenants = remote.tenants.iter().filter(|(_, count)| **count > 0);
    let mut tenants: Vec<(&String, &u64)> = tenants.collect();
    tenants.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let named = tenants.iter().take(TENANTS_MAX);
    let named: Vec<String> = named
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let named = match named.is_empty() {
        true => String::new(),
        false => format!(": {}", named.join(", ")),
    };
    let come = rate(span, span.counted(|status| status.remote.accepted));
    let refused = rate(span, span.counted(|status| status.remote.refused));
    let per = per(span);
    let text = format!(
        "{} of {} connections, {come}{per} let in, {refused}{per} refused, {} registrations{named}",
        remote.connections, remote.connections_max, remote.registrations,
    );
    Some(Line::new(Kind::Row, text))
}
