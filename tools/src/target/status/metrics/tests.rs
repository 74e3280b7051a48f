use std::collections::BTreeMap;

use super::super::{Device, Mount, Operations, Stream};
use super::*;
use crate::exporter::families::{Format, grammar::check, of};

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
        silent: 2.5,
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
        },
        reactor_calls: vec![11, 12],
        volume: Volume {
            uuid: "u-u".to_owned(),
            session: 3,
            gc_policy: "lifetime".to_owned(),
            failure: Some("input/output error".to_owned()),
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
        "flashnet_volume_failed 1",
        "flashnet_volume_capacity_bytes 1000",
        "# HELP flashnet_ftl_fills Grains read from the media for a `get`.",
        "# TYPE flashnet_ftl_fills counter",
        "flashnet_ftl_fills_total 100",
        "# TYPE flashnet_ftl_dirty_pages gauge",
        "flashnet_stream_live_grains{stream=\"0\"} 5",
        "flashnet_device_up{device=\"/dev/a\"} 1",
        "flashnet_device_silent_seconds{device=\"/dev/a\"} 2.5",
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
