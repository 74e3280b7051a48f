//! The measuring commands measure what they say; how much is nobody's business here.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{self, Image, bad, can_serve, good, tool};
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

/// Whoever is compared with the target has its file where the target has it: in memory, or on the disk.
#[test]
fn rivals_read_from_where_the_target_does() {
    if !can_serve() {
        return;
    }
    let socket = ["read", "--rounds", "1", "--baseline", "socket"];
    let report = measure(&socket);
    check(&report["baseline"]);
    assert_eq!(report["baseline"]["cache"], "buffered");
    let cold = ["--file-size", "16MiB", "--pool", "4MiB", "--seconds", "0.5"];
    let report = good(&[&["--json", "perf"], &socket[..], &cold].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    check(&report["baseline"]);
    assert_eq!(report["baseline"]["cache"], "direct");
}

/// More connections than a few, and a few.
#[test]
fn a_few_connections() {
    if !can_serve() {
        return;
    }
    let crowd = ["read", "--connections", "40", "--depth", "2"];
    let report = measure(&[&crowd[..], &["--rounds", "1", "--baseline", "few"]].concat());
    check(&report);
    check(&report["baseline"]);
    assert_eq!(report["shape"]["connections"], 40);
    assert_eq!(report["baseline"]["name"], "few");
    assert_eq!(report["baseline"]["connections"], 16);
}

/// Each of the network block servers alone, and the faster of both: from memory, from the page cache, and from the disk.
#[test]
fn network_block_servers() {
    if !can_serve() {
        return;
    }
    let [Some(qemu), Some(nbdkit)] = ["qemu-nbd", "nbdkit"].map(tool) else {
        return;
    };
    let rounds = ["--rounds", "1", "--baseline", "nbd", "--depth", "4"];
    let ask = |servers: &[&Path], what: &[&str]| {
        let report = only(servers, &[&["--json", "perf"], what, &rounds[..]].concat());
        assert!(report.status.success(), "{what:?}: {report:?}");
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        check(&report["baseline"]);
        report["baseline"].clone()
    };
    let dram = "read --connections 2 --device dram --file-size 1MiB --seconds 0.2";
    let resident = "write --resident --file-size 1MiB --seconds 0.2";
    let durable = "write --sync --resident --file-size 1MiB --seconds 1";
    let latency = "lat --resident --file-size 1MiB --seconds 0.2";
    let cold = "read --file-size 16MiB --pool 4MiB --seconds 1";
    let cases = [
        (dram, "buffered", "memory"),
        (resident, "buffered", "memory"),
        (durable, "buffered", "buffered"),
        (latency, "buffered", "memory"),
        (cold, "direct", "direct"),
    ];
    for (what, of_qemu, of_nbdkit) in cases {
        let what: Vec<&str> = what.split(' ').collect();
        for (server, name, cache) in [(&qemu, "qemu-nbd", of_qemu), (&nbdkit, "nbdkit", of_nbdkit)]
        {
            let report = ask(&[server], &what);
            assert_eq!(report["name"], name);
            assert_eq!(report["cache"], cache, "{what:?}");
            assert_eq!(report["trial"], serde_json::json!({}));
        }
    }
    let what: Vec<&str> = dram.split(' ').collect();
    let report = ask(&[&qemu, &nbdkit], &what);
    let rate = |name: &str| report["trial"][name].as_f64().unwrap();
    let faster = match rate("qemu-nbd") > rate("nbdkit") {
        true => "qemu-nbd",
        false => "nbdkit",
    };
    assert_eq!(report["name"], faster, "{report}");
}

/// Without network block servers there is nothing to compare with, and one that does not start says why.
#[test]
fn no_network_block_server() {
    let load = "perf read --resident --file-size 1MiB --seconds 0.2 --baseline nbd";
    let load: Vec<&str> = load.split(' ').collect();
    let said = only(&[], &load);
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("qemu-utils, nbdkit"), "{said}");
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("nbdkit");
    fs::write(&broken, "#!/bin/sh\necho no plugin >&2\nexit 1\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let said = only(&[&broken], &load);
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("does not serve: no plugin"), "{said}");
}

/// Runs the program where there are only these others.
fn only(programs: &[&Path], arguments: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    for program in programs {
        symlink(program, dir.path().join(program.file_name().unwrap())).unwrap();
    }
    Command::new(common::FLASHNET)
        .args(arguments)
        .env("PATH", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// What can not be measured as asked is said, not something else measured, and not after a while.
#[test]
fn mistakes() {
    let mistakes = [
        // Sizes that would be compared with something else, or with nothing.
        (
            "perf read --connections 3000 --pool 4MiB",
            "too small for so many connections",
        ),
        (
            "perf read --resident --file-size 64MiB --pool 4MiB",
            "too small for a file",
        ),
        (
            "perf read --file-size 64MiB --baseline socket",
            "4 times as large",
        ),
        (
            "perf lat --file-size 64MiB --baseline disk",
            "4 times as large",
        ),
        (
            "perf read --size 1000 --baseline socket",
            "multiples of 512",
        ),
        ("perf disk --size 1000", "multiples of 512"),
        ("perf read --file-size 16EiB", "up to 16"),
        ("perf read --spin 2h", "--spin 2h: 1s is the most"),
        (
            "perf read --size 16MiB --depth 1024 --connections 64",
            "in flight",
        ),
        ("bench fs --size 16EiB", "up to 16"),
        ("ftl bench --size 64MiB", "at least 512MiB"),
        // What the other side, or the side that was chosen, does not do.
        ("perf read --baseline alone", "--idle"),
        ("perf read --baseline socket --idle 10", "--idle"),
        ("perf read --baseline nbd --idle 10", "--idle"),
        (
            "perf read --file-size 64MiB --baseline nbd",
            "4 times as large",
        ),
        ("perf read --size 1000 --baseline nbd", "multiples of 512"),
        ("perf read --baseline few", "--connections N"),
        (
            "perf read --connections 16 --baseline few",
            "--connections N",
        ),
        ("perf lat --baseline few", "`read` and `write`"),
        (
            "perf raw --connections 32 --baseline few",
            "`read` and `write`",
        ),
        (
            "perf read --connections 32 --idle 10 --baseline few",
            "--idle",
        ),
        ("perf lat --idle 10", "idle connections"),
        ("perf raw --direction write --sync", "stores nothing"),
        ("perf reg --baseline socket", "--baseline"),
        ("perf raw localhost/file", "no target"),
        ("perf read localhost/file --pool 1GiB", "--pool"),
        ("perf read localhost/file --device dram", "--device"),
        ("perf read --direction write", "--direction"),
        // What would have been passed over.
        ("perf raw --pattern sequential", "--pattern has no meaning"),
        ("perf raw --file-size 1MiB", "--file-size has no meaning"),
        ("perf raw --crc", "--crc has no meaning"),
        ("perf raw --resident", "--resident has no meaning"),
        ("perf raw --spin 1ms", "--spin has no meaning"),
        ("perf raw --directory /tmp", "--directory has no meaning"),
        ("perf disk --poll", "--poll has no meaning"),
        ("perf disk --pool 1GiB", "--pool has no meaning"),
        ("perf disk --device dram", "--device has no meaning"),
        ("perf read --sync", "--sync has no meaning for `read` alone"),
        ("perf read --rounds 9", "--rounds has no meaning"),
        (
            "perf read --baseline raw --baseline-buffered",
            "--baseline-buffered has no meaning for `read` beside `raw`",
        ),
        ("perf reg --size 8B", "--size has no meaning"),
        ("perf reg --seconds 1", "--seconds has no meaning"),
        // Nor is an end that is far away.
        ("bench wa --grains 16384", "--grains 16384"),
        ("bench wa --only two --grains 16384 --svg x.svg", "--grains"),
        ("bench wa --svg /nowhere/x.svg", "/nowhere/x.svg"),
        // An amplification of nothing.
        ("bench wa --measure 0", "--measure"),
        ("bench wa --measure nan", "--measure"),
        ("bench wa --warm inf", "--warm"),
    ];
    for (arguments, why) in mistakes {
        let said = bad(&arguments.split(' ').collect::<Vec<_>>());
        assert!(said.contains(why), "{arguments}: {said}");
    }
}

/// More connections than the system has descriptors for are not tried.
#[test]
fn too_few_descriptors() {
    let run = Command::new("/bin/sh")
        .args(["-c", r#"ulimit -n 256; exec "$@""#, "sh", common::FLASHNET])
        .args(["perf", "read", "--connections", "193"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("are enough for 192 at a target"), "{said}");
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
        spin_us: 0,
        pattern: Pattern::Random,
        turn: 0,
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

/// Who ends a measurement in the middle has the disk as it was.
#[test]
fn an_interrupted_measurement_leaves_nothing() {
    if !can_serve() {
        return;
    }
    for command in ["ftl bench --size 1GiB", "perf read", "perf reg"] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(common::FLASHNET)
            .args(command.split(' '))
            .arg("--directory")
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Once there is a file there is something to leave behind.
        let files = || {
            let inner = fs::read_dir(dir.path()).unwrap().flatten();
            inner.flat_map(|d| fs::read_dir(d.path())).flatten().count()
        };
        while files() == 0 {
            assert!(child.try_wait().unwrap().is_none(), "{command}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        assert!(!child.wait().unwrap().success(), "{command}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{command}");
    }
}

/// A measurement that nobody reads has failed, and the disk is as it was, too.
#[test]
fn an_unread_measurement_leaves_nothing() {
    if !can_serve() {
        return;
    }
    let commands = [
        "perf raw --seconds 0.1",
        "perf reg",
        "ftl bench --size 512MiB --rounds 1 --seconds 0.1 --only append",
    ];
    for command in commands {
        let dir = tempfile::tempdir().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = Command::new(common::FLASHNET)
            .args(command.split(' '))
            .arg("--directory")
            .arg(dir.path())
            .stdout(writer)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(1), "{command}: {status}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{command}");
    }
}

/// A trace is looked through before anything is made of it: nothing is left of one that is none, or says nothing.
#[test]
fn traces_that_say_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, image) = (dir.path().join("trace"), dir.path().join("image"));
    let [path, media] = [&trace, &image].map(|path| path.to_str().unwrap());
    let replay = ["ftl", "replay", path, "--grains", "4096", "--media", media];
    let trim = 1 << 63;
    let words = |steps: &[u64]| steps.iter().flat_map(|step| step.to_le_bytes()).collect();
    let cases: [(Vec<u8>, &str); 5] = [
        (vec![0; 7], "no whole number"),
        (Vec::new(), "nothing to measure"),
        (words(&[1, 2, 3, 4096]), "step 3"),
        (words(&[1, 2, 4096 | trim, 3]), "step 2"),
        (words(&[1, 2, 3 | trim, 4 | trim]), "nothing to measure"),
    ];
    for (bytes, why) in cases {
        fs::write(&trace, bytes).unwrap();
        let said = bad(&replay);
        assert!(said.contains(why), "{said}");
        assert!(!image.exists(), "{why}");
    }
    // Too little hidden for the engine, which it says when the image is there.
    fs::write(&trace, words(&[1, 2, 3, 4]) as Vec<u8>).unwrap();
    let said = bad(&[&replay[..], &["--op", "0"]].concat());
    assert!(said.contains("do not suffice"), "{said}");
    assert!(!image.exists());
    let report = good(&[&["--json"], &replay[..], &["--op", "50"]].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["user_grains"], 2);
    // A file that was there before is not ours to remove.
    let said = bad(&replay);
    assert!(said.contains("exists") && image.exists(), "{said}");
}

/// Who ends a replay in the middle can try it again with the same image.
#[test]
fn an_interrupted_replay_leaves_no_image() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, image) = (dir.path().join("trace"), dir.path().join("image"));
    fs::write(&trace, [0; 8]).unwrap();
    let mut child = Command::new(common::FLASHNET)
        .args(["ftl", "replay", "--grains", "1000000", "--media"])
        .args([&image, &trace])
        .spawn()
        .unwrap();
    while !image.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert!(!child.wait().unwrap().success());
    assert!(!image.exists());
}

/// A file of a target that runs is used as it is, unless more of it is asked for than there is.
#[test]
fn a_file_that_is_there() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let target = image.serve(&[]);
    let url = target.url("/file");
    let local = image.beside("local");
    let put = |bytes: usize| {
        fs::write(&local, vec![1; bytes]).unwrap();
        good(&["put", local.to_str().unwrap(), &url]);
    };
    put(100_000);
    for what in ["read", "write", "lat"] {
        let told = good(&["--json", "perf", what, "--seconds", "0.2", &url]);
        let told: Value = serde_json::from_str(&told).unwrap();
        check(&told);
        assert_eq!(told["shape"]["file_bytes"], 100_000);
    }
    let said = bad(&["perf", "read", "--file-size", "1MiB", &url]);
    assert!(said.contains("--file-size"), "{said}");
    put(1000);
    let said = bad(&["perf", "read", &url]);
    assert!(said.contains("fewer than one operation"), "{said}");
    let none = target.url("/none");
    assert!(bad(&["perf", "read", &none]).contains("/none"));
}
