//! The measuring commands measure what they say; how much is nobody's business here.

mod common;

use std::net::TcpListener;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::time::Duration;

use common::{bad, can_serve, good};
use serde_json::Value;
use tools::perf::rdma::{self, Victim};
use tools::perf::shape::{Direction, Pattern, Shape};

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
/// What nothing makes durable is not called so.
#[test]
fn plain_memory_is_not_durable() {
    if !can_serve() {
        return;
    }
    let dram = ["--device", "dram", "--sync", "--file-size", "1MiB"];
    let said = bad(&[&["perf", "write"], &dram[..]].concat());
    assert!(said.contains("durable"), "{said}");
    let said = bad(&[&["perf", "lat", "--direction", "write"], &dram[..]].concat());
    assert!(said.contains("durable"), "{said}");
}

/// Signals that have nothing to do with it, those of a debugger or a terminal, do not make a slow target a silent one.
#[test]
fn signals_do_not_end_a_wait() {
    if !can_serve() {
        return;
    }
    signal_hook::flag::register(libc::SIGUSR1, Arc::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let victim = Victim {
        address: listener.local_addr().unwrap(),
        path: "/file".to_owned(),
        pid: None,
        tls: None,
        crc: false,
        token: Vec::new(),
    };
    let shape = Shape {
        direction: Direction::Read,
        size: 8,
        depth: 1,
        connections: 1,
        idle: 0,
        seconds: 0.1,
        file_bytes: 64,
        sync: false,
        poll: false,
        pattern: Pattern::Random,
    };
    let load = std::thread::spawn(move || rdma::run(&victim, &shape));
    let (peer, _) = listener.accept().unwrap();
    for _ in 0..50 {
        // SAFETY: the thread has not been joined, so the number is still its own.
        unsafe { libc::pthread_kill(load.as_pthread_t(), libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(peer);
    let error = format!("{:#}", load.join().unwrap().unwrap_err());
    assert!(error.contains("ended"), "{error}");
}
