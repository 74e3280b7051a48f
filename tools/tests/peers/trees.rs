//! `get -r` and `put -r`: a directory with everything in it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{Image, bad, can_serve, flashnet, good, pattern};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What is below a directory: of each file its content, of each directory nothing.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn tree(root: &Path) -> Tree {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap();
            let name = name.to_str().unwrap().to_owned();
            if path.is_dir() {
                waiting.push(path);
                found.insert(name, None);
            } else {
                found.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// An image, a directory of files beside it, and what that holds.
fn image_and_files() -> (Image, PathBuf, Tree) {
    let image = Image::new("128MiB");
    let from = image.beside("from");
    make_tree(&from);
    let whole = tree(&from);
    (image, from, whole)
}

/// Directories and files with all that there may be to them, but nothing that can not be copied.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("deep/deeper/deepest")).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    for (n, len) in [0, 1, 4095, 4096, 4097, 100_000, 3 << 20]
        .into_iter()
        .enumerate()
    {
        let name = format!("deep/deeper/file {n}");
        fs::write(root.join(name), pattern(len, n as u64)).unwrap();
    }
    for n in 0..40 {
        fs::write(root.join(format!("many{n}")), [n; 10]).unwrap();
    }
    fs::write(root.join("deep/\u{e4}"), "umlaut").unwrap();
    fs::write(root.join("deep/-r"), "no option").unwrap();
}

#[test]
fn there_and_back() {
    if !can_serve() {
        return;
    }
    let (image, from, whole) = image_and_files();
    let target = image.serve(&[]);

    // Under its own name into a directory that is there; to another name otherwise; and again over what is there.
    good(&["put", "-r", text(&from), &target.url("/")]);
    good(&["put", "-r", text(&from), &target.url("/other")]);
    good(&["put", "-r", text(&from), &target.url("/other/")]);
    good(&["put", "-r", text(&from), &target.url("/other")]);
    let to = image.beside("to");
    for path in ["/from", "/other", "/other/from"] {
        good(&["get", "-r", &target.url(path), text(&to)]);
        let mut came = tree(&to);
        if path == "/other" {
            came.retain(|name, _| name != "from" && !name.starts_with("from/"));
        }
        assert!(came == whole, "{path}");
        fs::remove_dir_all(&to).unwrap();
    }
    fs::create_dir(&to).unwrap();
    let said = good(&["--json", "get", "-r", &target.url("/from"), text(&to)]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let files = whole.values().flatten().count();
    assert_eq!(said["files"], files);
    assert_eq!(said["directories"], whole.len() - files + 1);
    assert!(tree(&to.join("from")) == whole);
    // All of a volume, and a single file, whose content is what is there now.
    fs::write(from.join("many0"), "now").unwrap();
    good(&["put", "-r", text(&from.join("many0")), &target.url("/from")]);
    let all = image.beside("all");
    fs::create_dir(&all).unwrap();
    good(&["get", "-r", &target.url("/"), text(&all)]);
    assert_eq!(fs::read(all.join("from/many0")).unwrap(), b"now");
    assert_eq!(fs::read_dir(&all).unwrap().count(), 2);
    // And what it was.
    good(&["snapshot", "create", text(&image.path()), "then"]);
    good(&["rm", "-r", &target.url("/from"), &target.url("/other")]);
    let then = image.beside("then");
    let from_then = target.url("/.snapshots/then/from");
    good(&["get", "-r", &from_then, text(&then)]);
    assert!(tree(&then) == tree(&from));
    let nothing = bad(&["get", "-r", &target.url("/from"), text(&to)]);
    assert!(nothing.contains("no such file"), "{nothing}");
    let standard_output = bad(&["get", "-r", &target.url("/"), "-"]);
    assert!(standard_output.contains("standard output"));
    assert!(target.stop().success());
}

/// What can not be copied is named, and keeps nothing else from being copied.
#[test]
fn what_is_left_out_is_told() {
    if !can_serve() {
        return;
    }
    let (image, from, whole) = image_and_files();
    symlink("many0", from.join("link")).unwrap();
    fs::write(from.join(OsStr::from_bytes(b"no\xff text")), "bytes").unwrap();
    let target = image.serve(&[]);
    let put = flashnet(&["put", "-r", text(&from), &target.url("/there")]);
    let said = String::from_utf8_lossy(&put.stderr);
    assert_eq!(put.status.code(), Some(1));
    for what in [
        "link is neither",
        "remote paths are UTF-8",
        "2 of what there is",
    ] {
        assert!(said.contains(what), "{what}: {said}");
    }
    let to = image.beside("to");
    good(&["get", "-r", &target.url("/there"), text(&to)]);
    assert!(tree(&to) == whole);
    // Something is in the way of one of them.
    let again = image.beside("again");
    fs::create_dir(&again).unwrap();
    fs::create_dir_all(again.join("there/many7")).unwrap();
    let get = flashnet(&["get", "-r", &target.url("/there"), text(&again)]);
    let said = String::from_utf8_lossy(&get.stderr);
    assert_eq!(get.status.code(), Some(1));
    assert!(
        said.contains("many7") && said.contains("1 of what there is"),
        "{said}"
    );
    let mut came = tree(&again.join("there"));
    assert_eq!(came.insert("many7".into(), Some(vec![7; 10])), Some(None));
    assert!(came == whole);
    assert!(target.stop().success());
}

/// Whoever may make files on a target chooses their names: what is said of one does not command the terminal of who copies it.
#[test]
fn names_are_only_words() {
    if !can_serve() {
        return;
    }
    let name = "\u{1b}]0;owned\u{7}";
    let image = Image::new("64MiB");
    let from = image.beside("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join(name), "bytes").unwrap();
    let target = image.serve(&[]);
    good(&["put", "-r", text(&from), &target.url("/there")]);
    // Something is in the way of it.
    let to = image.beside("to");
    fs::create_dir_all(to.join("there").join(name)).unwrap();
    let get = flashnet(&["get", "-r", &target.url("/there"), text(&to)]);
    let said = String::from_utf8_lossy(&get.stderr);
    assert_eq!(get.status.code(), Some(1));
    assert!(said.contains("]0;owned"), "{said:?}");
    let commands = |c: char| c.is_control() && c != '\n';
    assert!(!said.contains(commands), "{said:?}");
    assert!(target.stop().success());
}
