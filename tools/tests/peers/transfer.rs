//! `get` and `put`, and the copies behind them, while connections are lost and targets end: nothing is lost, nothing is mixed up.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write, sink};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::client::Wire;
use crate::common::{self, FLASHNET, Image, can_serve, good, pattern};
use tools::client::{ChannelOptions, ClientError, Transfer};
use tools::control::{FLAG_CREATE, FLAG_PERSISTENT, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

/// Bytes that a target says to who writes: until the file is open, with each acknowledgement, and when all is durable.
const OPENED: usize = 240;
const ACKNOWLEDGED: usize = 20;
const SYNCED: usize = 104;

/// A `get` of `/file` into a pipe, which goes on as fast as that is read.
fn get_slowly(image: &Image, wire: &Wire, more: &[&str]) -> (Child, File) {
    let pipe = image.beside("pipe");
    let _ = fs::remove_file(&pipe);
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let get = Command::new(FLASHNET)
        .args(["get", &format!("{}/file", wire.address)])
        .arg(&pipe)
        .args(more)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (get, File::open(&pipe).unwrap())
}

fn ended(child: Child) -> (Output, String) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// A file of these bytes, put there.
fn put_file(image: &Image, target: &common::Target, content: &[u8]) {
    let source = image.beside("source");
    fs::write(&source, content).unwrap();
    good(&["put", source.to_str().unwrap(), &target.url("/file")]);
}

/// Connections that last for a part of the file only, one after the other: each goes on where the one before has ended, and
/// nothing of it is left behind in the table of the target.
#[test]
fn copies_go_on_over_lost_connections() {
    if !can_serve() {
        return;
    }
    let image = Image::new("256MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let content = pattern(40_000_001, 5);
    put_file(&image, &target, &content);
    let back = image.beside("back");

    wire.choke(3 << 20);
    let get = common::flashnet(&[
        "get",
        &format!("{}/file", wire.address),
        back.to_str().unwrap(),
    ]);
    let said = String::from_utf8_lossy(&get.stderr);
    assert!(get.status.success(), "{said}");
    assert!(said.matches("goes on behind").count() >= 5, "{said}");
    assert!(fs::read(&back).unwrap() == content);

    // As few as the last one needs, and not enough for all of it.
    wire.choke(OPENED + SYNCED);
    let source = image.beside("source");
    let put = common::flashnet(&[
        "put",
        source.to_str().unwrap(),
        &format!("{}/there", wire.address),
    ]);
    let said = String::from_utf8_lossy(&put.stderr);
    assert!(put.status.success(), "{said}");
    assert!(said.contains("goes on behind"), "{said}");
    good(&["get", &target.url("/there"), back.to_str().unwrap()]);
    assert!(fs::read(&back).unwrap() == content);

    let image_path = image.path();
    let regions = good(&["--json", "region", "list", image_path.to_str().unwrap()]);
    let regions: serde_json::Value = serde_json::from_str(&regions).unwrap();
    assert_eq!(regions["regions"].as_array().map(Vec::len), Some(0));
    assert!(target.stop().success());
}

/// A target that ends, in order or not, and comes back while a file is read.
#[test]
fn get_outlives_the_target() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let mut target = image.serve(&[]);
    let content = pattern(16 << 20, 6);
    // Also its time is on media when that returns.
    put_file(&image, &target, &content);
    let wire = Wire::to(target.address);
    for is_killed in [true, false] {
        let (get, mut reader) = get_slowly(&image, &wire, &[]);
        let mut came = vec![0; 1 << 20];
        reader.read_exact(&mut came).unwrap();
        match is_killed {
            true => target.kill(),
            false => assert!(target.stop().success()),
        }
        target = image.serve(&[]);
        wire.lead_to(target.address);
        reader.read_to_end(&mut came).unwrap();
        let (output, said) = ended(get);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("goes on behind"), "{said}");
        assert!(came == content, "{is_killed}");
    }
    assert!(target.stop().success());
}

/// A file that is another one when the target is back is not put together with the one before.
#[test]
fn get_of_a_file_that_is_replaced_meanwhile() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    put_file(&image, &target, &pattern(16 << 20, 6));
    let wire = Wire::to(target.address);
    let (get, mut reader) = get_slowly(&image, &wire, &[]);
    reader.read_exact(&mut [0; 4096]).unwrap();
    wire.refuse(usize::MAX);
    wire.cut();
    // It hears of the loss when there is room in the pipe again.
    thread::sleep(Duration::from_millis(100));
    put_file(&image, &target, &pattern(16 << 20, 7));
    wire.refuse(0);
    std::io::copy(&mut reader, &mut sink()).unwrap();
    let (output, said) = ended(get);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("replaced or changed meanwhile"), "{said}");
    assert!(said.contains("of 16.0 MiB were copied"), "{said}");
    assert!(target.stop().success());
}

/// Who does not want to wait, or has waited for long enough, hears how far it was.
#[test]
fn a_target_that_does_not_come_back() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    for (timeout, is_told) in [("1s", true), ("0s", false)] {
        let target = image.serve(&[]);
        put_file(&image, &target, &pattern(8 << 20, 6));
        let wire = Wire::to(target.address);
        let (get, mut reader) = get_slowly(&image, &wire, &["--timeout", timeout]);
        reader.read_exact(&mut [0; 4096]).unwrap();
        target.kill();
        let begun = Instant::now();
        std::io::copy(&mut reader, &mut sink()).unwrap();
        let (output, said) = ended(get);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.contains("goes on behind"), is_told, "{said}");
        assert!(said.contains("of 8.0 MiB were copied"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{said}");
    }
}

fn signal(target: &common::Target, signal: i32) {
    // SAFETY: a signal to a child that has not been waited for.
    let sent = unsafe { libc::kill(target.pid() as i32, signal) };
    assert_eq!(sent, 0);
}

/// Commands that wait for a target that takes their connections and does not answer, after all of them have said so.
fn waiting(commands: &[&[&str]]) -> Vec<(Child, BufReader<ChildStderr>)> {
    let start = |command: &&[&str]| {
        let mut child = Command::new(FLASHNET)
            .args(*command)
            .args(["--timeout", "24s"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        (child, stderr)
    };
    let mut all: Vec<_> = commands.iter().map(start).collect();
    for (_, stderr) in &mut all {
        let mut said = String::new();
        stderr.read_line(&mut said).unwrap();
        let waits = "did not answer for 4 s: waits for the target, 24s at most";
        assert!(said.contains(waits), "{said}");
    }
    all
}

fn all_succeed(commands: Vec<(Child, BufReader<ChildStderr>)>) {
    for (mut child, mut stderr) in commands {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        assert!(said.is_empty(), "{said}");
    }
}

/// A target that stands still when a command begins, as one does that opens its volume or is replaced, is waited for: a script would
/// lose its copy to a pause that a copy under way outlives.
#[test]
fn a_target_that_does_not_answer_yet() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let content = pattern(3_000_001, 6);
    put_file(&image, &target, &content);
    let (source, back) = (image.beside("source"), image.beside("back"));
    let (source, back) = (source.to_str().unwrap(), back.to_str().unwrap());
    let url = |path| target.url(path);
    let [root, file, there, moved, gone, dir, directory] = [
        "/",
        "/file",
        "/there",
        "/moved",
        "/gone",
        "/dir",
        "/directory",
    ]
    .map(url);
    good(&["mkdir", &moved, &gone]);
    signal(&target, libc::SIGSTOP);
    let commands = waiting(&[
        &["get", &file, back],
        &["put", source, &there],
        &["ls", &root],
        &["stat", &file],
        &["mkdir", &dir],
        &["mv", &moved, &directory],
        &["rm", "-d", &gone],
    ]);
    signal(&target, libc::SIGCONT);
    all_succeed(commands);
    assert!(fs::read(back).unwrap() == content);
    let listed = good(&["ls", &root]);
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next_back());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["dir", "directory", "file", "there"]
    );

    // One that is killed then, and comes back.
    signal(&target, libc::SIGSTOP);
    let commands = waiting(&[&["get", &there, back], &["put", source, &file]]);
    let address = target.address.to_string();
    target.kill();
    let target = image.serve(&["--listen", &address]);
    all_succeed(commands);
    assert!(fs::read(back).unwrap() == content);
    assert!(target.stop().success());
}

/// Where no target is, or something else, that is said and nobody is waited for; nor is one without end that says nothing.
#[test]
fn who_is_no_target_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("{}/", listener.local_addr().unwrap());
    let said = common::bad(&["ls", &at, "--timeout", "2s"]);
    let [told, error] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("{said}");
    };
    assert!(told.contains("did not answer for 1 s: waits"), "{said}");
    assert!(error.ends_with("did not answer for 1 s"), "{said}");
    let said = common::bad(&["ls", &at, "--timeout", "1s"]);
    assert_eq!(said.lines().count(), 1, "{said}");

    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = format!("{}/", other.local_addr().unwrap());
    thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"SSH-2.0-of_some_kind, and quite talkative\r\n");
        }
    });
    let said = common::bad(&["ls", &elsewhere, "--timeout", "1h"]);
    assert!(said.contains("not an MPA start frame"), "{said}");
    assert!(!said.contains("waits"), "{said}");

    drop(listener);
    let said = common::bad(&["ls", &at, "--timeout", "1h"]);
    assert!(said.contains("Connection refused"), "{said}");
    assert!(!said.contains("waits"), "{said}");
}

/// What is written goes on where what is acknowledged ends, unless that was in the memory of a target that was killed: then
/// where what is durable ends.
#[test]
fn what_a_target_has_lost_is_written_again() {
    if !can_serve() {
        return;
    }
    let image = Image::new("256MiB");
    let content = pattern(48 << 20, 8);
    let length = content.len() as u64;
    let cut_at = 40 << 20;
    // That a target has ended in order is written beside the regions that outlive it.
    let target = image.serve(&[]);
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_PERSISTENT,
        ..Request::new(Op::Open, "/region")
    };
    target.session().open(request).unwrap();
    assert!(target.stop().success());
    for (what, begins_anew) in [("cut", false), ("stop", false), ("kill", true)] {
        let target = RefCell::new(Some(image.serve(&[])));
        let address = target.borrow().as_ref().unwrap().address;
        let wire = Wire::to(address);
        let request = Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length,
            ..Request::new(Op::Open, "/file")
        };
        let options = ChannelOptions::default();
        let mut transfer = Transfer::open(&[wire.address], options, request, |_| ()).unwrap();
        let (mut is_cut, mut lost_at) = (false, Vec::new());
        let mut least = u64::MAX;
        let fill = |at: u64, bytes: &mut [u8]| {
            bytes.copy_from_slice(&content[at as usize..][..bytes.len()]);
            if is_cut {
                least = least.min(at);
            }
            if at >= cut_at && !is_cut {
                is_cut = true;
                let running = target.borrow_mut().take().unwrap();
                let next = match what {
                    "cut" => {
                        wire.cut();
                        running
                    }
                    "stop" => {
                        assert!(running.stop().success());
                        image.serve(&[])
                    }
                    _ => {
                        running.kill();
                        image.serve(&[])
                    }
                };
                wire.lead_to(next.address);
                *target.borrow_mut() = Some(next);
            }
            Ok(())
        };
        let lost = |_: &ClientError, done| lost_at.push(done);
        transfer.write(length, fill, lost).unwrap();
        assert_eq!(transfer.done(), length);
        transfer.close();
        assert_eq!(lost_at.len(), 1, "{what}");
        assert!(lost_at[0] > 0 && lost_at[0] <= cut_at, "{lost_at:?}");
        let again = if begins_anew { 0 } else { lost_at[0] };
        assert_eq!(least, again, "{what}");
        // Durable, all of it.
        target.into_inner().unwrap().kill();
        let target = image.serve(&[]);
        let back = image.beside("back");
        good(&["get", &target.url("/file"), back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == content, "{what}");
        assert!(target.stop().success());
    }
}

/// Memory of a target: what fits is copied, and is not taken for the same when the target has been started anew.
#[test]
fn memory_of_a_target() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let source = image.beside("source");
    let content = pattern(5_000_001, 3);
    fs::write(&source, &content).unwrap();
    let dram = ["--dram", "16MiB"];
    let target = image.serve(&dram);
    let wire = Wire::to(target.address);
    good(&["put", source.to_str().unwrap(), &target.url("/.dram")]);
    let request = Request::new(Op::Open, "/.dram");
    let options = ChannelOptions::default();
    let mut transfer = Transfer::open(&[wire.address], options, request, |_| ()).unwrap();
    let running = RefCell::new(Some(target));
    let mut came = Vec::new();
    let mut is_anew = false;
    let take = |_, bytes: &[u8]| {
        came.extend_from_slice(bytes);
        if came.len() > 8 << 20 && !is_anew {
            is_anew = true;
            running.take().unwrap().kill();
            let next = image.serve(&dram);
            wire.lead_to(next.address);
            running.replace(Some(next));
        }
        Ok(())
    };
    let ended = transfer.read(take, |_, _| ()).unwrap_err();
    assert!(matches!(ended, ClientError::Changed), "{ended}");
    assert!(came[..content.len()] == content);
    assert!(running.take().unwrap().stop().success());
}

/// A source that changes while it is copied is said to have.
#[test]
fn put_of_a_file_that_changes_meanwhile() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let target = image.serve(&[]);
    let wire = Wire::to(target.address);
    let source = image.beside("source");
    let content = pattern(16 << 20, 9);
    let changed = "was changed while it was copied";
    let longer = "had 16777216 bytes, which were copied, and has 16777217 now";
    let write = |at: u64| {
        let file = File::options().write(true).open(&source).unwrap();
        file.write_all_at(&[7], at).unwrap();
    };
    let replace = || {
        let other = image.beside("other");
        fs::write(&other, &content).unwrap();
        fs::rename(&other, &source).unwrap();
    };
    let last = content.len() as u64 - 1;
    let changes: [(&dyn Fn(), _); 3] = [
        (&|| write(last), changed),
        (&|| write(last + 1), longer),
        (&replace, changed),
    ];
    for (change, says) in changes {
        fs::write(&source, &content).unwrap();
        wire.choke(OPENED + ACKNOWLEDGED);
        let mut put = Command::new(FLASHNET)
            .args(["put", source.to_str().unwrap()])
            .arg(format!("{}/file", wire.address))
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It has begun, and is far from its end.
        let mut stderr = BufReader::new(put.stderr.take().unwrap());
        let mut said = String::new();
        stderr.read_line(&mut said).unwrap();
        wire.refuse(usize::MAX);
        wire.cut();
        change();
        wire.choke(usize::MAX);
        wire.refuse(0);
        stderr.read_to_string(&mut said).unwrap();
        let ended = put.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(says), "{said}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
    assert!(target.stop().success());
}
