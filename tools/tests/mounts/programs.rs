//! The scripts that run large programs on a mount and kill its target under them (`tools/scripts`): SQLite, shortly,
//! always; the others, which need minutes and programs that not every machine has, when they are asked for:
//!
//! ```text
//! cargo test --release -p tools --test mounts programs -- --ignored --nocapture
//! ```

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{FLASHNET, can_mount, can_serve, skip};
use tempfile::TempDir;

/// Where cargo has put the examples.
fn examples() -> PathBuf {
    Path::new(FLASHNET).with_file_name("examples")
}

/// Whether this process can run the scripts; if not, the test has been skipped.
fn can_run() -> bool {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("the scripts need root");
        return false;
    }
    let found = Command::new("bash")
        .args(["-c", "command -v mountpoint setpriv"])
        .stdout(Stdio::null())
        .status();
    if !found.is_ok_and(|status| status.success()) {
        skip("the scripts need bash, mountpoint and setpriv");
        return false;
    }
    can_serve() && can_mount()
}

/// Whether the program of `sqlite.sh` is there, too.
fn has_ledger() -> bool {
    let ledger = examples().join("sqlite_ledger");
    if !ledger.is_file() {
        skip("sqlite_ledger is not built: cargo build -p tools --examples");
    }
    ledger.is_file()
}

fn script(scratch: &TempDir, name: &str, arguments: &[&str]) -> Child {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut command = Command::new(scripts.join(name));
    command
        .args(arguments)
        .env("FLASHNET", FLASHNET)
        .env("FLASHNET_EXAMPLES", examples())
        .env("TMPDIR", scratch.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    // SAFETY: signal is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| {
            // A shell can not trap what was ignored when it began, which is so in the background of another one.
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    command.spawn().expect("the script starts")
}

/// Runs a script to its end, which has to be a good one, and gives what it printed.
fn run(name: &str, arguments: &[&str]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let output = script(&scratch, name, arguments)
        .wait_with_output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    println!("{name}\n{table}");
    assert!(output.status.success(), "{name}: {}", output.status);
    assert_nothing_left(&scratch);
    table
}

fn assert_nothing_left(scratch: &TempDir) {
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let scratch = scratch.path().to_str().unwrap();
    assert!(!mounts.contains(scratch), "mounts left behind: {mounts}");
    // What has been killed may take a moment to go.
    let start = Instant::now();
    while let Some(command) = process_at(scratch) {
        let patient = start.elapsed() < Duration::from_secs(60);
        assert!(patient, "process left behind: {command}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn process_at(scratch: &str) -> Option<String> {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.find_map(|process| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        command.contains(scratch).then_some(command)
    })
}

/// I1 and I9 as SQLite sees them: with its log in a shared mapping, its data in one too, and with a journal that is
/// deleted, no acknowledged transaction is lost, and the database is in order after every kill.
#[test]
fn sqlite_survives_kills() {
    if !can_run() || !has_ledger() {
        return;
    }
    let table = run(
        "sqlite.sh",
        &["--kills", "1", "--modes", "wal-mapped delete"],
    );
    assert_eq!(table.matches("acknowledged").count(), 2, "{table}");
}

/// A script that somebody interrupts takes its target, its mount and its image along.
#[test]
fn an_interrupted_script_cleans_up() {
    if !can_run() || !has_ledger() {
        return;
    }
    for (delay, signal) in [(200, libc::SIGINT), (1500, libc::SIGTERM)] {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = script(&scratch, "sqlite.sh", &["--kills", "100"]);
        std::thread::sleep(Duration::from_millis(delay));
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        // Before it has set its traps it dies of the signal, and has made nothing.
        let died = status.code() == Some(128 + signal) || status.signal() == Some(signal);
        assert!(died, "{delay} ms: {status}");
        assert_nothing_left(&scratch);
    }
}

/// Git and cargo work on a mount, and go on there after a kill in the middle of a build.
#[test]
#[ignore = "takes minutes"]
fn git_and_cargo_survive_a_kill() {
    if can_run() {
        run("build.sh", &[]);
    }
}

/// PostgreSQL recovers by itself from kills, and has every transaction that pgbench saw committed.
#[test]
#[ignore = "takes minutes, and needs PostgreSQL"]
fn postgresql_survives_kills() {
    if can_run() {
        run("postgresql.sh", &["--kills", "2"]);
    }
}
