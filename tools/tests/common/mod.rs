//! What the end-to-end tests share: images, running targets, commands, and the rule of skipping.
#![allow(unreachable_pub)] // Shared by several test programs.
#![allow(dead_code)]

pub mod client;
pub mod fault_disk;
pub mod scrape;
pub mod world;

use std::fs::File;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tools::client::{Session, SessionOptions};

/// The program under test.
pub const FLASHNET: &str = env!("CARGO_BIN_EXE_flashnet");

/// Why this test cannot run here; printed, and a failure where nothing may be skipped.
pub fn skip(why: &str) {
    let required = std::env::var("FLASHNET_REQUIRE").is_ok_and(|what| what.contains("all"));
    assert!(!required, "nothing may be skipped here, but: {why}");
    // Not by `eprintln`, of which nobody hears when the test passes.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Whether this system lets a target run at all; if not, the test has been skipped.
pub fn can_serve() -> bool {
    match tools::reactor::Ring::new(1, 1, 4096) {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("io_uring is not to be had: {error}"));
            false
        }
    }
}

/// Whether this process can mount; if not, the test has been skipped.
pub fn can_mount() -> bool {
    match contigfs::fuse::available() {
        Ok(()) => true,
        Err(why) => {
            skip(&why.to_string());
            false
        }
    }
}

/// What the environment chooses instead of `default`.
pub fn chosen(key: &str, default: u64) -> u64 {
    match std::env::var(key) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{key} has to be a number")),
        Err(_) => default,
    }
}

/// A program of the test tools, or none when the test has been skipped.
pub fn tool(name: &str) -> Option<PathBuf> {
    let tools = std::env::var_os("FLASHNET_TOOLS").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = tools
        .into_iter()
        .map(|dir| dir.join("bin"))
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    if found.is_none() {
        skip(&format!("{name} is not installed"));
    }
    found
}

/// Runs the program and waits for its end.
pub fn flashnet<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(FLASHNET)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

/// Standard output of a run that must succeed.
pub fn good<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> String {
    let output = flashnet(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// The message of a run that must fail with status 1.
pub fn bad<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> String {
    ends_with(1, arguments)
}

/// The message of a run that must say that its usage is wrong.
pub fn wrong<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> String {
    ends_with(2, arguments)
}

fn ends_with<S: AsRef<std::ffi::OsStr>>(status: i32, arguments: &[S]) -> String {
    let output = flashnet(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{errors}");
    errors
}

/// A formatted image in a directory of its own.
pub struct Image {
    dir: TempDir,
}

impl Image {
    /// An image of `size`, as `mkfs --size` takes it.
    pub fn new(size: &str) -> Self {
        let image = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        good(&["mkfs", "--size", size, image.path().to_str().unwrap()]);
        image
    }

    /// The image file.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("volume.img")
    }

    /// A path beside it.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a target on it.
    pub fn serve(&self, more: &[&str]) -> Target {
        Target::start(&self.path(), more)
    }
}

/// Where a target that has just been started with `--json` serves.
pub fn served(child: &mut Child) -> SocketAddr {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a line of JSON");
    assert!(!line.is_empty(), "the target did not start");
    let ready: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
    ready["address"].as_str().unwrap().parse().unwrap()
}

/// A running target; killed when dropped.
pub struct Target {
    child: Child,
    /// Where it serves.
    pub address: SocketAddr,
    mount: Option<PathBuf>,
}

impl Target {
    fn start(image: &Path, more: &[&str]) -> Self {
        Self::start_on(&[image], more)
    }

    /// Starts a target without saying on what, which is in `more`; none if it does not start.
    pub fn try_start(more: &[&str]) -> Option<Self> {
        let child = Command::new(FLASHNET)
            .args(["--json", "serve", "--listen", "127.0.0.1:0"])
            .args(more)
            .env("FLASHNET_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut target = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            mount: mount_of(more),
        };
        let mut line = String::new();
        let stdout = target.child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).ok()?;
        let ready: serde_json::Value = serde_json::from_str(&line).ok()?;
        target.address = ready["address"].as_str()?.parse().ok()?;
        Some(target)
    }

    /// Starts a target on a volume of these devices.
    pub fn start_on(devices: &[impl AsRef<std::ffi::OsStr>], more: &[&str]) -> Self {
        Self::run(Command::new(FLASHNET), devices, more)
    }

    /// The same as another user, which only root can do.
    pub fn start_as(user: u32, devices: &[impl AsRef<std::ffi::OsStr>], more: &[&str]) -> Self {
        let mut command = Command::new(FLASHNET);
        command.uid(user).gid(user);
        Self::run(command, devices, more)
    }

    fn run(mut command: Command, devices: &[impl AsRef<std::ffi::OsStr>], more: &[&str]) -> Self {
        let listen: &[&str] = match more.contains(&"--listen") {
            true => &[],
            false => &["--listen", "127.0.0.1:0"],
        };
        let mut child = command
            .args(["--json", "serve"])
            .args(listen)
            .args(devices)
            .args(more)
            .env("FLASHNET_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let address = served(&mut child);
        Self {
            child,
            address,
            mount: mount_of(more),
        }
    }

    /// `HOST:PORT/path` for the commands.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }

    /// A session with it.
    pub fn session(&self) -> Session {
        Session::connect(self.address, SessionOptions::default()).expect("a session")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it.
    pub fn kill(mut self) {
        self.halt();
    }

    /// Kills it, and leaves its mount to those who work there.
    pub fn halt(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order.
    pub fn stop(self) -> ExitStatus {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.ended()
    }

    /// Waits until it has ended, as somebody else has asked it to.
    pub fn ended(mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            let threads = || threads_of(self.child.id());
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "it does not end:\n{}",
                threads()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What the threads of a process wait in, as far as the kernel tells.
fn threads_of(process: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let mut said = String::new();
    for task in tasks.into_iter().flatten().flatten() {
        let file = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (name, state) = (file("comm"), file("stat"));
        let state = state
            .rsplit(')')
            .next()
            .and_then(|rest| rest.trim().chars().next());
        said += &format!("{} {state:?}\n{}\n", name.trim(), file("stack"));
    }
    said
}

/// The directory that these options of `serve` mount on.
fn mount_of(options: &[&str]) -> Option<PathBuf> {
    let at = options.iter().position(|&option| option == "--mount")?;
    Some(PathBuf::from(options[at + 1]))
}

impl Drop for Target {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if let Some(dir) = &self.mount {
            let _ = tools::target::detach(dir);
        }
    }
}

/// Bytes that differ from one another.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Everything a socket still gives until the peer closes it.
pub fn drain(stream: &mut std::net::TcpStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the target keeps the connection: {error}"),
    }
    bytes
}

/// As the system call.
pub fn fallocate(file: &File, mode: i32, offset: u64, len: u64) {
    // SAFETY: no memory is passed, and the descriptor is open.
    let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
    assert_eq!(done, 0, "{}", Error::last_os_error());
}

/// Copies by the system call that may clone.
pub fn copy_range((from, from_at): (&File, u64), (to, to_at): (&File, u64), len: u64) {
    let (mut from_at, mut to_at) = (from_at as i64, to_at as i64);
    // SAFETY: the descriptors are open and both offsets outlive the call.
    let copied = unsafe {
        let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
        libc::copy_file_range(from, &mut from_at, to, &mut to_at, len as usize, 0)
    };
    assert_eq!(copied, len as isize, "{}", Error::last_os_error());
}
