//! The measuring commands measure what they say; how much is nobody's business here.

mod common;

use common::{bad, can_serve, good};
use serde_json::Value;

fn measure(more: &[&str]) -> Value {
    let options = ["--json", "perf"];
    let file = ["--resident", "--file-size", "1MiB", "--seconds", "0.4"];
    let report = good(&[&options, more, &file].concat());
    serde_json::from_str(&report).unwrap()
}

/// Operations were counted, and took time.
fn check(figures: &Value) {
    let [half, most] = ["p50_us", "p99_us"].map(|p| figures[p].as_f64().unwrap());
    assert!(figures["operations"].as_u64().unwrap() > 0, "{figures}");
    assert!(half > 0.0 && half <= most, "{figures}");
}

/// Without sleeping: a target, its client, and the bare program of both.
#[test]
fn polling() {
    if !can_serve() {
        return;
    }
    for what in ["lat", "read"] {
        let report = measure(&[what, "--poll", "--rounds", "1", "--baseline", "raw"]);
        check(&report);
        check(&report["baseline"]);
    }
}

/// Busy connections beside idle ones, and without them.
#[test]
fn idle_connections() {
    if !can_serve() {
        return;
    }
    let crowd = [
        "read",
        "--connections",
        "2",
        "--depth",
        "4",
        "--idle",
        "3000",
    ];
    let report = measure(&[&crowd[..], &["--rounds", "1", "--baseline", "alone"]].concat());
    check(&report);
    check(&report["baseline"]);
    assert_eq!(report["baseline"]["name"], "alone");
}

/// What can not be measured as asked is said, not something else measured.
#[test]
fn mistakes() {
    let crowd = ["perf", "read", "--connections", "3000", "--pool", "4MiB"];
    let said = bad(&crowd);
    assert!(
        said.contains("--pool") && said.contains("too small"),
        "{said}"
    );
    let said = bad(&["perf", "read", "--baseline", "alone"]);
    assert!(said.contains("--idle"), "{said}");
    let said = bad(&["perf", "lat", "--idle", "10"]);
    assert!(said.contains("idle connections"), "{said}");
}
