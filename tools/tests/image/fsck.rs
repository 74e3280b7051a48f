//! `fsck` as fsck(8) and people call it: exit status, what it writes and what not, and repairs of a real volume.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{self, FLASHNET, Image, can_serve, flashnet, good, skip};
use ftl::device::FileDevice;
use ftl::format::Header;
use ftl::inspect::Inspector;
use ftl::{ArrayDevice, GRAIN_BYTES, OpenOptions, Pba, SegmentId, Volume};

/// Calls `fsck.contigfs`.
fn fsck(image: &Image, options: &[&str]) -> (i32, String) {
    let link = image.beside("fsck.contigfs");
    if !link.exists() {
        symlink(FLASHNET, &link).unwrap();
    }
    let mut command = Command::new(link);
    command.args(options).arg(image.path()).stdin(Stdio::null());
    said(&command.output().unwrap())
}

fn said(output: &Output) -> (i32, String) {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.code().unwrap(), text)
}

/// An image with `/one` and `/two`.
fn image_with_files() -> Image {
    let image = Image::new("64MiB");
    let source = image.beside("source");
    fs::write(&source, b"content").unwrap();
    let target = image.serve(&[]);
    for name in ["/one", "/two"] {
        good(&["put", source.to_str().unwrap(), &target.url(name)]);
    }
    assert!(target.stop().success());
    image
}

/// The device of an image.
fn device(image: &Path) -> ArrayDevice<FileDevice> {
    let device = FileDevice::open(image).unwrap();
    let name = image.display().to_string();
    ArrayDevice::assemble(vec![(name, device)], false).unwrap()
}

/// Writes into the space of the file system, as a program with a mistake would.
fn write_at(image: &Path, byte: u64, bytes: &[u8]) {
    let device = device(image);
    let (volume, _) = Volume::open(device, OpenOptions::default()).unwrap();
    volume.write(byte, bytes).unwrap();
    volume.shutdown().unwrap();
}

/// Damages the first entry of the root directory.
fn damage_a_name(image: &Image) {
    write_at(&image.path(), (1 << 32) * 4096 + 16, b"!");
}

#[test]
fn exit_status_of_fsck() {
    if !can_serve() {
        return;
    }
    let image = image_with_files();
    for options in [&[][..], &["-n"], &["-p"], &["-a", "-f"], &["-y", "-v"]] {
        let (status, text) = fsck(&image, options);
        assert_eq!(status, 0, "{options:?}: {text}");
    }
    let (_, text) = fsck(&image, &["-p"]);
    assert!(text.contains("volume.img: clean"), "{text}");
    assert_eq!(fsck(&image, &["-z"]).0, 16);
    assert_eq!(fsck(&image, &["-n", "-y"]).0, 16);
    assert_eq!(fsck(&image, &["-V"]).0, 0);
    let (status, text) = fsck(&image, &["/nonexistent/device"]);
    assert!(
        status == 8 && text.contains("/nonexistent/device"),
        "{text}"
    );
    let target = image.serve(&[]);
    let (status, text) = fsck(&image, &["-y"]);
    assert!(status == 8 && text.contains("in use"), "{text}");
    assert!(target.stop().success());

    damage_a_name(&image);
    for options in [&[][..], &["-p", "-f"]] {
        let (status, text) = fsck(&image, options);
        assert!(
            status == 4 && text.contains("fsck -y"),
            "{options:?}: {text}"
        );
    }
    let name = image.path();
    let name = name.to_str().unwrap();
    assert_eq!(flashnet(&["fsck", name]).status.code(), Some(1));
    let (status, text) = fsck(&image, &["-y"]);
    assert!(status == 1 && text.contains("repaired: "), "{text}");
    assert_eq!(fsck(&image, &["-y"]).0, 0);
    assert_eq!(flashnet(&["fsck", name]).status.code(), Some(0));
    assert_eq!(flashnet(&["fsck", "-z", name]).status.code(), Some(2));

    // Nothing is lost but one name.
    let target = image.serve(&[]);
    let names = good(&["ls", &target.url("/")]);
    let lost = good(&["ls", &target.url("/lost+found")]);
    let number = lost.split_whitespace().find(|word| word.contains('#'));
    let number = number.unwrap_or_else(|| panic!("{lost}"));
    let left = if names.contains("one") {
        "/one"
    } else {
        "/two"
    };
    for path in [left, &format!("/lost+found/{number}")] {
        assert_eq!(good(&["get", &target.url(path), "-"]), "content");
    }
    assert!(target.stop().success());
}

/// Without -p and -y not a byte of the image changes, also when the volume has to be recovered to be looked at.
#[test]
fn looking_changes_nothing() {
    if !can_serve() {
        return;
    }
    let image = image_with_files();
    let source = image.beside("source");
    let target = image.serve(&[]);
    good(&["put", source.to_str().unwrap(), &target.url("/three")]);
    target.kill();
    let before = fs::read(image.path()).unwrap();
    for options in [&[][..], &["-n"]] {
        let (status, text) = fsck(&image, options);
        assert_eq!(status, 0, "{text}");
        assert!(
            text.contains("3 files") && text.contains("is recovered when"),
            "{text}"
        );
    }
    assert!(before == fs::read(image.path()).unwrap());
    // The boot: recovered, and clean from then on.
    let (status, text) = fsck(&image, &["-p"]);
    assert!(status == 0 && text.contains("was recovered"), "{text}");
    let (status, text) = fsck(&image, &["-p"]);
    assert!(status == 0 && text.contains("clean"), "{text}");
}

/// A volume with problems that only `-y` may end, and the number of the file that has them.
fn image_with_a_lost_place() -> Image {
    let image = image_with_files();
    // A bit of the hot record of the second file: where its data are.
    write_at(&image.path(), (1 << 26) * 4096 + 3 * 32 + 3, b"!");
    image
}

/// What a preening fsck leaves, the next one sees again, also when the volume was used and shut down in between; and a
/// mount that finds damage says so for the next one.
#[test]
fn preening_does_not_pass_over_what_it_left() {
    if !can_serve() {
        return;
    }
    let image = image_with_a_lost_place();
    // Nobody has looked yet.
    assert_eq!(fsck(&image, &["-p"]).0, 0);
    assert!(image.serve(&[]).stop().success());
    for round in 0..2 {
        let (status, text) = fsck(&image, &["-p"]);
        assert!(status == 4 && text.contains("fsck -y"), "{round}: {text}");
    }
    assert!(image.serve(&[]).stop().success());
    assert_eq!(fsck(&image, &["-a"]).0, 4);
    let (status, text) = fsck(&image, &["-y"]);
    assert!(status == 1 && text.contains("repaired: "), "{text}");
    let (status, text) = fsck(&image, &["-p"]);
    assert!(status == 0 && text.contains(": clean"), "{text}");
    assert_eq!(fsck(&image, &["-f", "-n"]).0, 0);
    let target = image.serve(&[]);
    for path in ["/one", "/two"] {
        let content = good(&["get", &target.url(path), "-"]);
        assert_eq!(content.trim_end_matches('\0'), "content");
    }
    assert!(target.stop().success());
}

/// Headers of the log, in order.
fn headers(image: &Image) -> Vec<(Pba, Header)> {
    let mut device = device(&image.path());
    let mut inspector = Inspector::new(&mut device).unwrap();
    let segments = 0..inspector.superblock().geometry.segment_count;
    let found = segments.flat_map(|id| inspector.headers(SegmentId(id)));
    let mut all: Vec<_> = found.collect();
    all.sort_by_key(|(_, header)| header.no);
    all
}

/// Garbage in a header of a volume that was not shut down, with durable ones behind it: `fsck` calls it a problem, and the
/// target says it when it starts (I2, I7).
#[test]
fn a_lost_header_is_told() {
    if !can_serve() {
        return;
    }
    let image = image_with_files();
    let known = headers(&image).last().expect("some").1.no;
    let source = image.beside("source");
    fs::write(&source, [7; 16 * GRAIN_BYTES]).unwrap();
    let target = image.serve(&[]);
    for n in 0..24 {
        good(&[
            "put",
            source.to_str().unwrap(),
            &target.url(&format!("/{n}")),
        ]);
    }
    target.kill();
    let path = image.path();
    let name = path.to_str().unwrap();
    let fsck = || said(&flashnet(&["fsck", name]));
    let (status, text) = fsck();
    assert_eq!(status, 0, "a kill alone is no damage: {text}");

    // Of a file, beside one of another in a segment that is full.
    let all = headers(&image);
    let youngest = all.last().expect("some").1.segment;
    let of_files = |(_, header): &&(Pba, Header)| {
        header.no > known && header.records.len() >= 16 && header.segment != youngest
    };
    let of_files: Vec<_> = all.iter().filter(of_files).collect();
    let beside = |pair: &&[&(Pba, Header)]| pair[0].1.segment == pair[1].1.segment;
    let pair = of_files.windows(2).find(beside).expect("a full segment");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let garbage = [0x5a; GRAIN_BYTES];
    file.write_all_at(&garbage, pair[0].0.0 * GRAIN_BYTES as u64)
        .unwrap();

    let (status, text) = fsck();
    assert!(
        status == 1 && text.contains("headers of the log are lost: 1"),
        "{status}: {text}"
    );
    // Who recovers the volume is the last who can tell.
    let copy = image.beside("copy");
    for (command, wanted) in [
        (&["fsck", "--rebuild"][..], 1),
        (&["scrub"], 1),
        (&["resize"], 0),
        (&["region", "list"], 0),
    ] {
        fs::copy(&path, &copy).unwrap();
        let (status, text) = said(&flashnet(&[command, &[copy.to_str().unwrap()]].concat()));
        assert!(
            status == wanted && text.contains("are lost: 1"),
            "{command:?}: {status}: {text}"
        );
    }
    fs::copy(&path, &copy).unwrap();
    let scrubbed = flashnet(&["--json", "scrub", copy.to_str().unwrap()]);
    let scrubbed: serde_json::Value = serde_json::from_slice(&scrubbed.stdout).unwrap();
    assert_eq!(scrubbed["headers_lost"], 1, "{scrubbed}");
    let log = image.beside("log");
    let mut target = Command::new(FLASHNET)
        .args(["--json", "serve", "--listen", "127.0.0.1:0", name])
        .env("FLASHNET_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    common::served(&mut target);
    target.kill().unwrap();
    target.wait().unwrap();
    let log = fs::read_to_string(log).unwrap();
    let is_told = |line: &str| line.contains("headers of the log are lost") && line.contains(name);
    assert!(log.lines().any(is_told), "{log}");
}

/// `-C` tells other programs how far it is, line by line, and people in one line; `-C` without a number is wrong usage.
#[test]
fn progress_is_told() {
    if !can_serve() {
        return;
    }
    let image = image_with_files();
    let (status, text) = fsck(&image, &["-C", "0"]);
    assert!(status == 0 && text.contains("log 100.0%"), "{text}");
    // Standard output has nothing but the JSON that was asked for.
    let path = image.path();
    let output = flashnet(&["--json", "fsck", "-C", "0", path.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["files"], 2, "{report}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("log 100.0%"), "{errors}");
    assert_eq!(fsck(&image, &["-C"]).0, 16);
    let (status, text) = fsck(&image, &["-C", "77"]);
    assert!(status == 8 && text.contains("77"), "{text}");
    let link = image.beside("fsck.contigfs");
    let lines = image.beside("lines");
    let call = Command::new("sh")
        .args(["-c", "exec \"$1\" -n -C7 \"$2\" 7>\"$3\"", "sh"])
        .args([&link, &image.path(), &lines])
        .output()
        .unwrap();
    assert_eq!(said(&call).0, 0, "{}", said(&call).1);
    let told = fs::read_to_string(lines).unwrap();
    let name = image.path().display().to_string();
    let mut last = (0, 0);
    for line in told.lines() {
        let parts: Vec<&str> = line.splitn(4, ' ').collect();
        let [pass, done, all] = [0, 1, 2].map(|n| parts[n].parse::<u64>().unwrap());
        assert!(
            parts[3] == name && done <= all && (pass, done) > last,
            "{line}"
        );
        last = (pass, done);
    }
    assert_eq!(last.0, 2, "{told}");
}

/// fsck(8) finds the program by the type and hands on options and status.
#[test]
fn by_the_front_end() {
    let Ok(version) = Command::new("fsck").arg("-V").output() else {
        return skip("no fsck(8)");
    };
    if !can_serve() || !version.status.success() {
        return;
    }
    let image = image_with_a_lost_place();
    let beside = image.beside("");
    let path = format!("{}:{}", beside.display(), std::env::var("PATH").unwrap());
    assert_eq!(fsck(&image, &["-V"]).0, 0, "makes the link");
    let front_end = |options: &[&str]| {
        let mut command = Command::new("fsck");
        command.args(["-T", "-t", "contigfs"]).arg(image.path());
        command.args(options).env("PATH", &path);
        said(&command.stdin(Stdio::null()).output().unwrap())
    };
    let statuses = [
        (&["-n"][..], 4),
        (&["-p", "-f"], 4),
        (&["-a"], 4),
        (&["-y", "-v"], 1),
        (&["-f", "-p"], 0),
        (&["-z"], 16),
    ];
    for (options, wanted) in statuses {
        let (status, text) = front_end(options);
        assert_eq!(status, wanted, "{options:?}: {text}");
    }
}
