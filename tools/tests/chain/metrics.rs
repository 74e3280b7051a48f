//! Monitoring systems ask the members of a group (tools/docs/watching.md): what they do, and when they are not in the chain.

use std::net::{SocketAddr, TcpListener};

use crate::common::scrape::{get, sample, scrape};
use crate::replicas::{Group, until};

/// Waits until a number is what it should be.
fn becomes(at: SocketAddr, begin: &str, value: f64) {
    let found = until(|| (sample(&scrape(at), begin) == value).then_some(()));
    assert!(found.is_some(), "{begin} is not {value}: {}", scrape(at));
}

#[test]
fn members_tell_of_themselves() {
    let mut group = Group::local();
    group.create("1,2", &[]);
    let options = ["--metrics", "127.0.0.1:0"];
    let mut start = |id: u32| -> SocketAddr {
        let memory = group.memory(id);
        let said = group.start_with(id, Some(&memory), &options);
        said["metrics"].as_str().unwrap().parse().unwrap()
    };
    let first = start(1);
    // It waits for the other one.
    let (status, _, why) = get(first, "/healthz");
    assert_eq!(status, 503);
    assert!(why.contains("member 1"), "{why}");
    let second = start(2);
    let status = group.serves(&[1, 2], "the start");
    let epoch = status.epoch() as f64;
    for (id, at) in [(1, first), (2, second)] {
        becomes(at, "flashnet_chain_open_epoch ", epoch);
        becomes(at, "flashnet_chain_members ", 2.0);
        let place = status.chain().iter().position(|&other| other == id);
        becomes(at, "flashnet_chain_place ", place.unwrap() as f64);
        assert_eq!(get(at, "/healthz").0, 200);
    }

    let mut load = group.load(&[]);
    load.goes_on("a look");
    load.finish();
    for at in [first, second] {
        let text = scrape(at);
        let writes = sample(
            &text,
            "flashnet_chain_operation_seconds_count{op=\"write\"}",
        );
        assert!(writes > 0.0, "{text}");
        assert!(sample(&text, "flashnet_chain_operation_seconds_sum{op=\"write\"}") > 0.0);
        assert!(sample(&text, "flashnet_chain_operation_bytes_total{op=\"write\"}") > 512.0);
        assert!(sample(&text, "flashnet_chain_flush_seconds_count ") > 0.0);
        assert_eq!(sample(&text, "flashnet_chain_flush_failures_total "), 0.0);
        let json = get(at, "/status").2;
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["chain"], 2);
    }

    // The other one is taken out of the chain.
    group.kill(1);
    becomes(second, "flashnet_chain_members ", 1.0);
    becomes(second, "flashnet_chain_place ", 0.0);
    assert!(sample(&scrape(second), "flashnet_chain_epoch ") > epoch);
    // Its port is free again when it ends, and a member that can not have one does not start.
    assert!(group.stop(2).success());
    let taken = TcpListener::bind(second).unwrap();
    let memory = group.memory(2);
    let serve = ["serve", "--member", "2", "--metrics", &second.to_string()];
    let why = group.bad(&[&serve[..], &["--memory", memory.to_str().unwrap()]].concat());
    assert!(why.contains("--metrics"), "{why}");
    drop(taken);
}
