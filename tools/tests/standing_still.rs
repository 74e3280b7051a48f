//! Targets that stand still: who asks something of them is not kept for ever.

mod common;

use std::process::{Command, Stdio};

use common::{FLASHNET, Image, can_serve, good};

fn signal(process: u32, signal: i32) {
    // SAFETY: a signal to a child that has not been waited for.
    let sent = unsafe { libc::kill(process as i32, signal) };
    assert_eq!(sent, 0);
}

/// Whether nothing is left of a process that has begun but what the kernel waits for: its memory is gone.
fn has_exited(child: &Child) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    line.is_empty()
}

/// Who wants to replace a target that stands still hears so, and that goes on as if nobody had asked.
#[test]
fn a_target_that_stands_still_is_not_replaced() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    signal(target.pid(), libc::SIGSTOP);
    let asks = |command: &[&str]| {
        Command::new(FLASHNET)
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let all = [
        asks(&["serve", path, "--replace", "--listen", "127.0.0.1:0"]),
        asks(&["top", "--once", path]),
        asks(&["region", "list", path]),
    ];
    for asking in all {
        let output = asking.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("has not answered for 10 s"), "{said}");
    }
    signal(target.pid(), libc::SIGCONT);
    good(&["ls", &target.url("/")]);
    let next = image.serve(&["--replace"]);
    assert!(target.ended().success());
    assert!(next.stop().success());
}
