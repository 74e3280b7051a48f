//! `flashnet top`: what a running target is and does, as text, as JSON and live on a terminal; also when the target ends, or another
//! takes its place.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::world::{World, open, put};
use crate::common::{FLASHNET, Image, bad, can_serve, good};
use serde_json::Value;
use tools::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE};
use tools::target::status::Status;

const PATIENCE: Duration = Duration::from_secs(60);

/// One look as text and one as JSON, of a volume named by its device, and by where it is mounted or because nothing else is.
#[test]
fn one_look() {
    let Some(world) = World::new("128MiB", &[]) else {
        return;
    };
    let path = world.image.path();
    let path = path.to_str().unwrap();
    let dir = world.dir.to_str().unwrap();
    world.file("file").write_all(&[1; 5000]).unwrap();
    for volume in [path, dir] {
        let text = good(&["top", "--once", volume]);
        assert!(
            text.lines().next().unwrap().ends_with(&format!(": {path}")),
            "{text}"
        );
        assert!(text.contains("since the start"), "{text}");
        assert!(
            text.contains(&format!("mounted on {dir}, RDMA at ")),
            "{text}"
        );
        let writes = text.lines().find(|line| line.starts_with("write "));
        let writes: Vec<&str> = writes.unwrap().split_whitespace().collect();
        assert_eq!((writes[1], writes[5]), ("1", "0"), "{text}");
        let json = good(&["--json", "top", "-n", "1", volume]);
        let status: Status = serde_json::from_str(&json).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert_eq!(status.process.pid, world.target.pid());
        assert_eq!(status.mount.unwrap().requests["write"].bytes, 5000);
    }
    world.end();
}

/// Nobody serves the volume, it is not there, or nothing is mounted: what to do is said.
#[test]
fn nobody_to_be_watched() {
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let said = bad(&["top", path]);
    assert!(
        said.contains(&format!("nobody serves {path}: `flashnet serve`")),
        "{said}"
    );
    let said = bad(&["top", &format!("{path}.not")]);
    assert!(said.contains("cannot find"), "{said}");
    let dir = image.beside("dir");
    std::fs::create_dir(&dir).unwrap();
    let said = bad(&["top", dir.to_str().unwrap()]);
    assert!(said.contains("no volume is mounted on"), "{said}");
}

/// `top` with its output in a pipe.
struct Piped {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Piped {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(FLASHNET)
            .arg("top")
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> Option<String> {
        self.lines.next().map(Result::unwrap)
    }

    fn status(&mut self) -> Status {
        serde_json::from_str(&self.line().expect("another look")).unwrap()
    }

    /// The lines of a block of text; the last one is followed by another block, or by the end.
    fn block(&mut self) -> Vec<String> {
        let lines = self.lines.by_ref().map(Result::unwrap);
        lines.take_while(|line| !line.is_empty()).collect()
    }

    /// Its exit status, and what it has complained about.
    fn end(mut self) -> (Option<i32>, String) {
        for line in self.lines {
            line.unwrap();
        }
        let mut said = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

/// Text in a pipe: the first block is of all there was, the others of what came since, and there are as many as were asked for.
#[test]
fn blocks_of_text() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let path = image.path();
    let target = image.serve(&[]);
    let mut top = Piped::start(&["-d", "0.2", "-n", "3", path.to_str().unwrap()]);
    let first = top.block();
    assert!(
        first.iter().any(|line| line.starts_with("since the start")),
        "{first:?}"
    );
    for _ in 0..2 {
        let block = top.block();
        assert!(
            block.iter().any(|line| line.starts_with("in the last 0.")),
            "{block:?}"
        );
    }
    assert_eq!(top.end(), (Some(0), String::new()));
    assert!(target.stop().success());
}

/// Load on the mount and by RDMA is in the figures; those of another process that takes over begin anew, and are shown as such.
#[test]
fn load_and_replacement() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    let mut json = Piped::start(&["--json", "-d", "0.1", path]);
    let mut text = Piped::start(&["-d", "0.1", path]);
    let first = json.status();
    assert_eq!(first.process.pid, target.pid());
    text.block();
    {
        let mut session = target.session();
        let file = open(
            &mut session,
            "/file",
            FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            1 << 20,
        );
        put(&mut session, &file, 0, &vec![1; 1 << 20], true);
    }
    let seen = later(&mut json, |status| {
        status.remote.operations["write"].bytes >= 1 << 20
    });
    assert!(seen.volume.log["user_grains"] >= 256, "{seen:?}");
    assert!(seen.process.uptime > first.process.uptime);
    assert!(seen.volume.devices[0].operations["write"].bytes > 1 << 20);
    let old = target.pid();
    let other = image.serve(&["--replace"]);
    assert!(target.ended().success());
    let seen = later(&mut json, |status| status.process.pid == other.pid());
    assert_eq!(
        seen.remote
            .operations
            .get("write")
            .map_or(0, |write| write.bytes),
        0
    );
    let said = format!("pid {} (before: {old})", other.pid());
    let start = Instant::now();
    loop {
        let block = text.block();
        assert!(start.elapsed() < PATIENCE, "{block:?}");
        if block[0].contains(&said) {
            break;
        }
    }
    other.kill();
    for top in [json, text] {
        assert_eq!(
            top.end(),
            (Some(1), "flashnet: the target has ended\n".to_owned())
        );
    }
}

/// The first look that is as it should be.
fn later(top: &mut Piped, is_so: impl Fn(&Status) -> bool) -> Status {
    let start = Instant::now();
    loop {
        let status = top.status();
        if is_so(&status) {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "{status:?}");
    }
}

/// A reader that has seen enough ends it quietly.
#[test]
fn a_reader_that_goes() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let target = image.serve(&[]);
    let mut top = Piped::start(&["-d", "0.1", path.to_str().unwrap()]);
    top.line().unwrap();
    let Piped { mut child, lines } = top;
    drop(lines);
    let mut said = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    child.wait().unwrap();
    assert!(target.stop().success());
}

/// `top` on a terminal of its own.
struct Screen {
    child: Child,
    keyboard: File,
    slave: OwnedFd,
    drawn: Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

/// What there is before it starts, and has to be again when it has ended.
fn modes(terminal: &OwnedFd) -> (libc::tcflag_t, libc::tcflag_t, libc::tcflag_t) {
    // SAFETY: plain data.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the modes outlive the call.
    let got = unsafe { libc::tcgetattr(terminal.as_raw_fd(), &raw mut modes) };
    assert_eq!(got, 0);
    (modes.c_iflag, modes.c_oflag, modes.c_lflag)
}

impl Screen {
    fn start((columns, rows): (u16, u16), options: &[&str]) -> Self {
        let size = libc::winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let (mut master, mut slave) = (0, 0);
        // SAFETY: all that is pointed to outlives the call, and the name is not wanted.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0);
        // SAFETY: both are new, and nobody else has them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(FLASHNET);
        command.arg("top").args(options);
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: only system calls, of which none allocates.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let child = command.spawn().unwrap();
        let keyboard = master.try_clone().unwrap();
        let (sender, drawn) = channel();
        thread::spawn(move || {
            let (mut master, mut bytes) = (master, vec![0; 65_536]);
            loop {
                match master.read(&mut bytes) {
                    Ok(len) if len > 0 => drop(sender.send(bytes[..len].to_vec())),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => return,
                }
            }
        });
        Self {
            child,
            keyboard,
            slave,
            drawn,
            seen: Vec::new(),
        }
    }

    /// Waits until this is drawn after what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            let found = self
                .seen
                .windows(text.len())
                .position(|seen| seen == text.as_bytes());
            if let Some(at) = found {
                self.seen.drain(..at + text.len());
                return;
            }
            match self.drawn.recv_timeout(Duration::from_millis(100)) {
                Ok(bytes) => self.seen.extend(bytes),
                Err(RecvTimeoutError::Timeout) if start.elapsed() < PATIENCE => {}
                Err(_) => panic!(
                    "{text:?} is not in {:?}",
                    String::from_utf8_lossy(&self.seen)
                ),
            }
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }

    /// Its exit status.
    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Taken: another screen, no line wrap, no cursor. Given back: all three.
const TAKEN: &str = "\u{1b}[?1049h\u{1b}[?7l\u{1b}[?25l";
const GIVEN_BACK: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";

/// It starts, draws, obeys its keys, and ends by each way out; the terminal is as it was afterwards.
#[test]
fn live() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    let pid = target.pid().to_string();
    for way_out in ["q", "\u{3}", "\u{1b}"] {
        let mut screen = Screen::start((100, 30), &["-d", "0.1", path]);
        screen.wait_for(TAKEN);
        screen.wait_for(&format!("pid {pid}"));
        screen.wait_for("since the start");
        screen.wait_for("in the last 0.");
        screen.press(b"s");
        screen.wait_for("since the start");
        screen.press(b"s ");
        screen.wait_for("[paused]");
        screen.press(b"p");
        screen.wait_for("in the last 0.");
        screen.press(way_out.as_bytes());
        screen.wait_for(GIVEN_BACK);
        assert_eq!(screen.end(), Some(0));
    }
    let mut screen = Screen::start((100, 30), &["-d", "0.1", "-n", "2", path]);
    screen.wait_for(GIVEN_BACK);
    assert_eq!(screen.end(), Some(0));
    assert!(target.stop().success());
}

/// By a signal, too, and when the target ends, which is said where it can be read.
#[test]
fn live_until_something_ends_it() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    let start = |size| {
        let mut screen = Screen::start(size, &["-d", "0.1", path]);
        screen.wait_for(TAKEN);
        screen
    };
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let mut screen = start((80, 24));
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(screen.child.id() as i32, signal) };
        screen.wait_for(GIVEN_BACK);
        screen.wait_for("flashnet: interrupted");
        assert_eq!(screen.end(), Some(1));
    }
    let mut screen = start((80, 24));
    let old = target.pid();
    let other = image.serve(&["--replace"]);
    assert!(target.ended().success());
    screen.wait_for(&format!("pid {} (before: {old})", other.pid()));
    other.kill();
    screen.wait_for("[no answer for");
    screen.wait_for(GIVEN_BACK);
    screen.wait_for("flashnet: the target has ended");
    assert_eq!(screen.end(), Some(1));
}

/// A terminal of any size is drawn on, within its bounds, and has its modes back afterwards.
#[test]
fn terminals() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    for (columns, rows) in [(1, 1), (20, 5), (0, 0), (500, 200)] {
        let mut screen = Screen::start((columns, rows), &["-d", "0.1", path]);
        screen.wait_for(TAKEN);
        assert_eq!(modes(&screen.slave).2 & (libc::ICANON | libc::ECHO), 0);
        // The end of a drawing.
        for _ in 0..3 {
            screen.wait_for("\u{1b}[?2026l");
        }
        let below = format!("\u{1b}[{};1H", rows + 1);
        let seen = String::from_utf8_lossy(&screen.seen).into_owned();
        assert!(rows == 0 || !seen.contains(&below), "{seen:?}");
        screen.press(b"q");
        screen.wait_for(GIVEN_BACK);
        assert_eq!(screen.end(), Some(0));
        let modes = modes(&screen.slave);
        assert_ne!(modes.2 & libc::ICANON, 0);
        assert_ne!(modes.2 & libc::ECHO, 0);
        assert_ne!(modes.0 & libc::ICRNL, 0);
        assert_ne!(modes.1 & libc::OPOST, 0);
    }
    assert!(target.stop().success());
}

/// What is said in `--json` is the whole status, and one line for each look.
#[test]
fn json_is_whole() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let target = image.serve(&[]);
    let said = good(&[
        "--json",
        "top",
        "-d",
        "100ms",
        "-n",
        "3",
        path.to_str().unwrap(),
    ]);
    let looks: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(looks.len(), 3);
    for look in looks {
        for part in ["version", "process", "volume", "mount", "remote"] {
            assert!(look.get(part).is_some(), "{part} of {look}");
        }
    }
    assert!(target.stop().success());
}
