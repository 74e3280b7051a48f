//! What a target is, where, how large and how busy; and what an operator should not overlook.

use std::path::PathBuf;

use super::figure::percent;
use super::line::{Kind, Line};
use super::rates::{Looks, log};
use crate::commands::show;
use crate::devices;
use crate::target::status::Status;

/// A device that answers nothing for so many seconds is worth a word.
const SILENT: f64 = 1.0;

/// The first lines.
pub(super) fn head(looks: &Looks, devices: &[PathBuf], clock: &str) -> Vec<Line> {
    let status = looks.now();
    let mut lines = vec![Line::new(Kind::Title, who(looks, devices, clock))];
    let (remote, mount) = (&status.remote, status.mount.as_ref());
    let at = [
        ("mounted on", mount.map(|mount| &mount.path)),
        ("RDMA at", remote.address.as_ref()),
        ("RDMA by TLS at", remote.tls_address.as_ref()),
    ];
    let at = at.into_iter();
    let at: Vec<String> = at
        .filter_map(|(what, at)| at.map(|at| format!("{what} {at}")))
        .collect();
    if !at.is_empty() {
        lines.push(Line::new(Kind::Row, at.join(", ")));
    }
    lines.push(Line::new(Kind::Row, space(status)));
    let processor = looks.latest().processor();
    let memory = show::bytes(status.process.resident);
    let cost = format!("processor {}, memory {memory}", percent(processor));
    lines.push(Line::new(Kind::Row, cost));
    lines
}

fn who(looks: &Looks, devices: &[PathBuf], clock: &str) -> String {
    let process = &looks.now().process;
    let before = looks.predecessor();
    let before = before.map_or_else(String::new, |pid| format!(" (before: {pid})"));
    format!(
        "{clock} flashnet {}, pid {}{before}, up {}: {}",
        looks.now().version,
        process.pid,
        span(process.uptime),
        devices::names(devices),
    )
}

fn space(status: &Status) -> String {
    let volume = &status.volume;
    let segments = volume.devices.iter().map(|device| device.segments);
    let segments = segments.fold(0, u64::saturating_add);
    format!(
        "{} used, {} available of {}; {} inodes; {} of {segments} segments free",
        show::bytes(volume.used),
        show::bytes(volume.available),
        show::bytes(volume.capacity),
        volume.inodes,
        log(status, "segments_free"),
    )
}

/// What is wrong.
pub(super) fn warnings(status: &Status) -> Vec<Line> {
    let volume = &status.volume;
    let mut said = Vec::new();
    said.extend(volume.why_failed());
    if volume.suspect {
        said.push("something is wrong with what the volume holds: let flashnet fsck look at it when it is not served".to_owned());
    }
    let ill = volume
        .devices
        .iter()
        .filter(|device| device.state != "live");
    said.extend(ill.map(|device| format!("{} is {}", device.path, device.state)));
    let silent = volume
        .devices
        .iter()
        .filter(|device| device.silent >= SILENT);
    said.extend(silent.map(|device| {
        let (path, seconds) = (&device.path, device.silent);
        format!("{path} has answered nothing for {seconds:.0} s")
    }));
    let failed = log(status, "fills_failed");
    if failed > 0 {
        let damaged = log(status, "damaged");
        said.push(format!(
            "since the start {failed} reads of pages failed, of {damaged} the checksum did not fit"
        ));
    }
    let line = |text| Line::new(Kind::Warning, text);
    said.into_iter().map(line).collect()
}

/// A long time: `3h 12m 7s`.
pub(super) fn span(seconds: f64) -> String {
    let seconds = std::time::Duration::from_secs(seconds as u64);
    humantime::format_duration(seconds).to_string()
}
