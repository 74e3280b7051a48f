use std::collections::{BTreeMap, BTreeSet};

use super::super::super::status::{Device, Mount, Process, Stream};
use super::*;

fn operations(classes: &[(usize, u64)]) -> Operations {
    let mut operations = Operations {
        failed: 1,
        bytes: 4096,
        seconds: 0.25,
        classes: vec![0; ftl::DURATION_CLASSES],
        ..Operations::default()
    };
    for &(class, count) in classes {
        operations.classes[class] = count;
        operations.count += count;
    }
    operations
}

/// One that has some of everything.
fn full() -> Status {
    let device = |path: &str, state: &str| Device {
        path: path.to_owned(),
        state: state.to_owned(),
        segments: 16,
        free: 9,
        erases: 30,
        operations: BTreeMap::from([
            ("read".to_owned(), operations(&[(0, 2), (3, 5), (25, 1)])),
            ("flush".to_owned(), operations(&[])),
        ]),
    };
    let stats = ftl::Stats::default().described();
    let numbered = stats.iter().zip(100..);
    Status {
        version: "1.2.3".to_owned(),
        process: Process {
            pid: 7,
            uptime: 60.0,
            cpu: 1.5,
            resident: 1 << 20,
            reactor_calls: vec![11, 12],
        },
        volume: Volume {
            uuid: "u-u".to_owned(),
            session: 3,
            gc_policy: "lifetime".to_owned(),
            capacity: 1000,
            log: numbered
                .map(|(stat, value)| (stat.name.to_owned(), value))
                .collect(),
            streams: vec![Stream {
                segments: 4,
                live: 5,
            }],
            devices: vec![
                device("/dev/a", "live"),
                device("/srv/\"odd\\\nname\"", "failed"),
            ],
            ..Volume::default()
        },
        mount: Some(Mount {
            path: "/mnt/flash".to_owned(),
            requests: BTreeMap::from([("getattr".to_owned(), operations(&[(7, 3)]))]),
        }),
        remote: Remote {
            connections: 2,
            ended: BTreeMap::from([("lost".to_owned(), 6)]),
            tenants: BTreeMap::from([("anonymous".to_owned(), 1), ("alpha".to_owned(), 1)]),
            operations: BTreeMap::from([("read".to_owned(), operations(&[(2, 3)]))]),
            control: operations(&[(1, 1)]),
            ..Remote::default()
        },
    }
}

#[test]
fn lines() {
    let text = of(full(), 1_700_000_000.5, Format::OpenMetrics).unwrap();
    for line in [
        "# TYPE flashnet_build info",
        "flashnet_build_info{version=\"1.2.3\"} 1",
        "# TYPE process_cpu_seconds counter",
        "process_cpu_seconds_total 1.5",
        "process_resident_memory_bytes 1048576",
        "process_start_time_seconds 1700000000.5",
        "flashnet_reactor_calls_total{reactor=\"1\"} 12",
        "flashnet_volume_info{uuid=\"u-u\",gc_policy=\"lifetime\"} 1",
        "flashnet_volume_suspect 0",
        "flashnet_volume_capacity_bytes 1000",
        "# HELP flashnet_ftl_fills Grains read from the media for a `get`.",
        "# TYPE flashnet_ftl_fills counter",
        "flashnet_ftl_fills_total 100",
        "# TYPE flashnet_ftl_dirty_pages gauge",
        "flashnet_stream_live_grains{stream=\"0\"} 5",
        "flashnet_device_up{device=\"/dev/a\"} 1",
        "flashnet_device_up{device=\"/srv/\\\"odd\\\\\\nname\\\"\"} 0",
        "flashnet_device_operation_bytes_total{device=\"/dev/a\",op=\"read\"} 4096",
        "flashnet_device_operation_failures_total{device=\"/dev/a\",op=\"read\"} 1",
        "flashnet_device_operation_seconds_count{device=\"/dev/a\",op=\"read\"} 8",
        "flashnet_device_operation_seconds_sum{device=\"/dev/a\",op=\"read\"} 0.25",
        "flashnet_device_operation_seconds_bucket{le=\"0.000008\",device=\"/dev/a\",op=\"read\"} 7",
        "flashnet_device_operation_seconds_bucket{le=\"16.777216\",device=\"/dev/a\",op=\"read\"} 7",
        "flashnet_device_operation_seconds_bucket{le=\"+Inf\",device=\"/dev/a\",op=\"read\"} 8",
        "flashnet_mount_info{path=\"/mnt/flash\"} 1",
        "flashnet_mount_request_seconds_count{op=\"getattr\"} 3",
        "flashnet_remote_connections 2",
        "flashnet_remote_connections_ended_total{reason=\"lost\"} 6",
        "flashnet_tenant_connections{tenant=\"alpha\"} 1",
        "flashnet_remote_operation_seconds_count{op=\"read\"} 3",
        "flashnet_remote_operation_seconds_bucket{le=\"0.000004\",op=\"read\"} 3",
        "flashnet_remote_operation_bytes_total{op=\"read\"} 4096",
        "flashnet_control_request_seconds_bucket{le=\"0.000001\"} 0",
        "flashnet_control_request_seconds_bucket{le=\"0.000002\"} 1",
        "flashnet_control_request_failures_total 1",
    ] {
        let found = text.lines().any(|found| found == line);
        assert!(found, "{line}\n{text}");
    }
    assert!(text.ends_with("\n# EOF\n"));
}

/// Whoever reads the formats understands all of it, from full targets and from empty ones.
#[test]
fn grammar() {
    let named = BTreeMap::from([("later".to_owned(), 5)]);
    let mut strange = Status::default();
    strange.volume.log = named;
    strange.remote.control.count = 4;
    for status in [full(), Status::default(), strange] {
        for format in [Format::OpenMetrics, Format::Prometheus] {
            let text = of(status.clone(), 1.0, format).unwrap();
            check(&text, format);
        }
    }
}

/// Every counter of the translation layer is there under its name.
#[test]
fn counters_of_the_log() {
    let text = of(full(), 1.0, Format::Prometheus).unwrap();
    for (stat, value) in ftl::Stats::default().described().iter().zip(100..) {
        let total = if stat.is_counted { "_total" } else { "" };
        let line = format!("flashnet_ftl_{}{total} {value}", stat.name);
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// Labels of a sample, and what it is of.
type Series = (String, BTreeMap<String, String>);

/// Panics unless that is a text of this format. It is stricter than those who read them: families are not empty and not interleaved.
fn check(text: &str, format: Format) {
    let mut names = BTreeSet::new();
    let mut family = ("", "");
    let mut has_samples = true;
    let mut seen: BTreeMap<Series, f64> = BTreeMap::new();
    let mut histograms: BTreeMap<Series, Vec<(f64, f64)>> = BTreeMap::new();
    let text = match format {
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("an end"),
        Format::Prometheus => text,
    };
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, about) = help.split_once(' ').unwrap();
            assert!(is_name(name) && about.ends_with('.'), "{line}");
            assert!(names.insert(name), "{name} is declared twice");
            assert!(has_samples, "{} has no samples", family.0);
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (typed, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, typed);
            let total = name.ends_with("_total");
            assert_eq!(
                total,
                kind == "counter" && format == Format::Prometheus,
                "{name}"
            );
            (family, has_samples) = ((name, kind), false);
            continue;
        }
        let (name, labels, value) = sample(line);
        let (of, kind) = family;
        let suffix = name.strip_prefix(of).unwrap_or_else(|| panic!("{line}"));
        let suffixes: &[&str] = match (kind, format) {
            ("counter", Format::OpenMetrics) => &["_total"],
            ("info", Format::OpenMetrics) => &["_info"],
            ("counter" | "gauge", _) => &[""],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            _ => panic!("{kind}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let series = (name.to_owned(), labels.clone());
        assert!(seen.insert(series, value).is_none(), "{line} is twice");
        if suffix == "_bucket" {
            let mut labels = labels;
            let limit = labels.remove("le").unwrap();
            let limit = limit.replace("+Inf", "inf").parse().unwrap();
            let series = (of.to_owned(), labels);
            histograms.entry(series).or_default().push((limit, value));
        }
        has_samples = true;
    }
    assert!(has_samples, "{} has no samples", family.0);
    for ((name, labels), buckets) in histograms {
        let is_ordered = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(buckets.windows(2).all(is_ordered), "{name} {labels:?}");
        let (limit, all) = buckets.last().unwrap();
        assert_eq!(*limit, f64::INFINITY, "{name} {labels:?}");
        let count = seen[&(format!("{name}_count"), labels.clone())];
        assert_eq!(*all, count, "{name} {labels:?}");
        assert!(seen.contains_key(&(format!("{name}_sum"), labels)));
    }
}

fn is_name(name: &str) -> bool {
    let is_good = |(at, byte): (usize, u8)| {
        byte.is_ascii_lowercase() || byte == b'_' || at > 0 && byte.is_ascii_digit()
    };
    !name.is_empty() && name.bytes().enumerate().all(is_good)
}

/// The parts of a line like `name{label="value",...} 1.5`.
fn sample(line: &str) -> (&str, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let mut said = String::new();
            let mut chars = value.char_indices();
            let end = loop {
                match chars.next().expect("a quote") {
                    (at, '"') => break at,
                    (_, '\\') => said.push(match chars.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, char @ ('\\' | '"'))) => char,
                        other => panic!("{other:?} in {line}"),
                    }),
                    (_, char) => said.push(char),
                }
            };
            assert!(labels.insert(label.to_owned(), said).is_none(), "{line}");
            let after = &value[end + 1..];
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').unwrap();
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name, labels, value.parse().unwrap())
}
