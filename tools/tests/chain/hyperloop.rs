//! The figures of `bench hyperloop`: all of them, each right in what it says of operations (how fast is nobody's business here).

use std::time::Duration;

use crate::common::good;
use serde_json::Value;
use tools::perf::hyperloop::{Chain, Placement, Side, Work, throughput};

/// Each figure, quiet and crowded, with three sides each, of operations whose results were checked; members of a group took
/// part without an application; a plot of each.
#[test]
fn figures() {
    let plots = tempfile::tempdir().unwrap();
    let options = [
        "--json",
        "bench",
        "hyperloop",
        "--brief",
        "--seconds",
        "0.02",
    ];
    let crowd = ["--tenants", "1", "--plots", plots.path().to_str().unwrap()];
    let report: Value = serde_json::from_str(&good(&[&options[..], &crowd].concat())).unwrap();
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(report["placement"], if several { "apart" } else { "free" });
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 10);
    for figure in figures {
        let points = figure["points"].as_array().unwrap();
        let is_single = figure["figure"] == "gcas";
        assert_eq!(points.len(), if is_single { 3 } else { 6 }, "{figure}");
        for point in points {
            let measured = &point["measured"];
            if figure["figure"] == "throughput" {
                assert!(measured["per_second"].as_f64().unwrap() > 0.0, "{point}");
                let applications = measured["cores_applications"].as_f64().unwrap();
                assert_eq!(applications == 0.0, point["side"] == "engine", "{point}");
            } else {
                assert!(measured["operations"].as_u64().unwrap() > 0, "{point}");
                let [p95, p99, max] =
                    ["p95_us", "p99_us", "max_us"].map(|p| measured[p].as_f64().unwrap());
                assert!(0.0 < p95 && p95 <= p99 && p99 <= max, "{point}");
                // There is no other 99th percentile of so few.
                let few = measured["operations"].as_u64().unwrap() < 100;
                assert!(!few || p99 == max, "{point}");
            }
        }
        let crowd = if figure["crowded"] == true {
            "crowded"
        } else {
            "quiet"
        };
        let name = format!("{}-{crowd}.svg", figure["figure"].as_str().unwrap());
        let svg = std::fs::read_to_string(plots.path().join(name)).unwrap();
        assert!(svg.contains("<svg") && svg.matches("polyline").count() >= 3 || is_single);
    }
}

/// Endpoints and client may share the processors of applications.
#[test]
fn shared_processors() {
    let options = ["--json", "bench", "hyperloop", "--only", "gcas"];
    let few = ["--seconds", "0.02", "--tenants", "1", "--placement", "free"];
    let report: Value = serde_json::from_str(&good(&[&options[..], &few].concat())).unwrap();
    assert_eq!(report["placement"], "free");
    assert_eq!(report["figures"].as_array().unwrap().len(), 2);
}

/// A busy machine may let no time to measure in: something is carried out and counted all the same, and nothing is waited for in vain.
#[test]
fn no_time_is_enough() {
    for side in Side::ALL {
        let mut chain = Chain::start(side, 2, &Placement::Free).unwrap();
        let figures = throughput(&mut chain, Work::Write(8), Duration::ZERO).unwrap();
        assert!(figures.per_second > 0.0, "{}", side.name());
    }
}
