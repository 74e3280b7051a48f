//! I1, I18: a reactor whose ring fails ends its target, with status 1 and soon, whatever waits for what that reactor had under way; what was
//! acknowledged is there when the next one starts.
//!
//! No kernel fails a ring on demand, so the target runs in a process of this program, which puts something else in the place of the
//! ring's descriptor.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use common::{Image, can_mount, can_serve};
use tools::cli::Cli;

/// In the process of the target: the number of the reactor.
const REACTOR: &str = "FLASHNET_TEST_RING_OF_REACTOR";
/// In the same: its arguments.
const ARGUMENTS: &str = "FLASHNET_TEST_ARGUMENTS";
/// In the same: the ring fails when this is there.
const TRIGGER: &str = "FLASHNET_TEST_TRIGGER";
/// How many there are.
const REACTORS: usize = 2;
/// The longest that a target takes to end.
const SOON: Duration = Duration::from_secs(45);

/// Waits until it is time, and takes the ring of a reactor away. Theirs are made last, in their order.
fn fail_the_ring(reactor: usize) {
    let trigger = std::env::var_os(TRIGGER).unwrap();
    while !Path::new(&trigger).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let entries = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_ring = |path: &Path| {
        fs::read_link(path).is_ok_and(|link| link == Path::new("anon_inode:[io_uring]"))
    };
    let rings = entries.filter(|entry| is_ring(&entry.path()));
    let mut rings: Vec<i32> = rings
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    rings.sort_unstable();
    let null = File::open("/dev/null").unwrap();
    // SAFETY: no memory is passed. The owner of the number goes on with what is no ring, and closes that.
    let put = unsafe { libc::dup2(null.as_raw_fd(), rings[rings.len() - REACTORS + reactor]) };
    assert!(put >= 0);
}

/// The target, when this is its process; nothing otherwise.
#[test]
fn process_of_the_target() {
    let Some(reactor) = std::env::var(REACTOR).ok() else {
        return;
    };
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let reactor = reactor.parse().unwrap();
    std::thread::spawn(move || fail_the_ring(reactor));
    let cli = Cli::try_parse_from(arguments.split('\n')).unwrap();
    let status = match tools::commands::run(&cli) {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("{error:#}");
            1
        }
    };
    std::process::exit(status);
}

/// Appends to a file, durably, until that fails; what was acknowledged.
fn write(path: &Path, direct: bool) -> u64 {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let flags = if direct { libc::O_DSYNC } else { 0 };
    let Ok(file) = options.custom_flags(flags).open(path) else {
        return 0;
    };
    let mut acknowledged = 0;
    loop {
        let bytes = (acknowledged as u32).to_le_bytes().repeat(1024);
        let written = file.write_all_at(&bytes, acknowledged % 256 * 4096);
        let synced = written.and_then(|()| if direct { Ok(()) } else { file.sync_data() });
        if synced.is_err() {
            return acknowledged;
        }
        acknowledged += 1;
    }
}

#[test]
fn a_ring_that_fails_ends_the_target() {
    if !can_serve() || !can_mount() {
        return;
    }
    for reactor in 0..REACTORS {
        let image = Image::new("128MiB");
        let mount = image.beside("mount");
        fs::create_dir(&mount).unwrap();
        let (ready, trigger) = (image.beside("ready"), image.beside("trigger"));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let arguments = [
            "flashnet".to_owned(),
            "serve".to_owned(),
            text(&image.path()),
            "--mount".to_owned(),
            text(&mount),
            "--listen".to_owned(),
            "127.0.0.1:0".to_owned(),
            "--reactors".to_owned(),
            REACTORS.to_string(),
            "--ready-file".to_owned(),
            text(&ready),
        ];
        let mut target = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_of_the_target", "--nocapture"])
            .env(REACTOR, reactor.to_string())
            .env(ARGUMENTS, arguments.join("\n"))
            .env(TRIGGER, &trigger)
            .env("FLASHNET_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !ready.exists() {
            assert_eq!(target.try_wait().unwrap(), None, "it did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let address = fs::read_to_string(&ready).unwrap();
        let writers: Vec<_> = (0..4)
            .map(|n| {
                let path = mount.join(n.to_string());
                std::thread::spawn(move || write(&path, n % 2 == 0))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        fs::write(&trigger, "").unwrap();
        let start = Instant::now();
        let status = loop {
            // Whoever sleeps in the ring finds out when something happens: connections go to each reactor in turn.
            let _ = std::net::TcpStream::connect(address.trim());
            if let Some(status) = target.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > SOON {
                target.kill().unwrap();
                target.wait().unwrap();
                let _ = tools::target::detach(&mount);
                panic!("the target of reactor {reactor} does not end");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        eprintln!("reactor {reactor}: ended after {:?}", start.elapsed());
        assert_eq!(status.code(), Some(1));
        let _ = tools::target::detach(&mount);
        let acknowledged: Vec<u64> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        assert!(
            acknowledged.iter().all(|&count| count > 0),
            "{acknowledged:?}"
        );
        let again = image.serve(&["--mount", mount.to_str().unwrap()]);
        for (n, count) in acknowledged.into_iter().enumerate() {
            let last = count - 1;
            let file = File::open(mount.join(n.to_string())).unwrap();
            let mut found = [0; 4];
            file.read_exact_at(&mut found, last % 256 * 4096).unwrap();
            assert_eq!(u64::from(u32::from_le_bytes(found)), last);
        }
        assert!(again.stop().success());
    }
}
