//! `fsck` as fsck(8) and people call it: exit status, what it writes and what not, and repairs of a real volume.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{FLASHNET, Image, can_serve, flashnet, good};
use ftl::device::FileDevice;
use ftl::{ArrayDevice, OpenOptions, Volume};

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

/// Writes into the space of the file system, as a program with a mistake would.
fn write_at(image: &Path, byte: u64, bytes: &[u8]) {
    let device = FileDevice::open(image).unwrap();
    let name = image.display().to_string();
    let device = ArrayDevice::assemble(vec![(name, device)], false).unwrap();
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
