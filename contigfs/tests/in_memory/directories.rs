//! Directories: a million names, listings that stay right while names come and go.

use std::collections::BTreeSet;
use std::sync::Arc;

use contigfs::{Fs, FsError, InodeNo, NewNode};
use support::{Dice, assert_clean, fresh, name, names};

const ROOT: InodeNo = InodeNo::ROOT;

/// A million names in one directory, found again after a mount, and all space back after their end.
#[test]
fn a_million_names() {
    const COUNT: u64 = 1_000_000;
    let (store, fs) = fresh(500_000);
    let empty = fs.statfs().grains_free;
    for i in 0..COUNT {
        fs.create(ROOT, name(&format!("file-{i}")), &NewNode::file())
            .unwrap();
    }
    assert_clean(&store);
    drop(fs);
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    assert_eq!(names(&fs, ROOT).unwrap().len() as u64, COUNT);
    for i in 0..COUNT {
        fs.lookup(ROOT, name(&format!("file-{i}"))).unwrap();
        fs.unlink(ROOT, name(&format!("file-{i}"))).unwrap();
    }
    assert_eq!(fs.lookup(ROOT, name("file-7")), Err(FsError::NotFound));
    assert_eq!(
        (fs.statfs().grains_free, fs.attr(ROOT).unwrap().size),
        (empty, 0)
    );
    assert_clean(&store);
}

/// A listing read piecewise shows every name that is there all the time exactly once, whatever else happens.
#[test]
fn cookies_survive_changes() {
    let (_store, fs) = fresh(10_000);
    let mut dice = Dice::new(5);
    let stable: BTreeSet<String> = (0..500).map(|i| format!("stable-{i}")).collect();
    for label in &stable {
        fs.create(ROOT, name(label), &NewNode::file()).unwrap();
    }
    let mut fleeting: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    let mut cookie = 0;
    for i in 0.. {
        let mut part = Vec::new();
        fs.readdir(ROOT, cookie, |entry| {
            part.push(entry);
            part.len() < 7
        })
        .unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.next_cookie;
        seen.extend(
            part.iter()
                .map(|entry| entry.name.to_str().unwrap().to_owned()),
        );
        let label = format!("{}-{i}", "fleeting".repeat(dice.below(9) as usize));
        fs.create(ROOT, name(&label), &NewNode::file()).unwrap();
        fleeting.push(label);
        if dice.below(2) == 0 {
            let which = dice.below(fleeting.len() as u64) as usize;
            fs.unlink(ROOT, name(&fleeting.swap_remove(which))).unwrap();
        }
        assert!(i < 10_000, "the listing ends");
    }
    let unique: BTreeSet<&String> = seen.iter().collect();
    assert_eq!(unique.len(), seen.len(), "no name twice");
    assert!(
        stable.iter().all(|label| unique.contains(label)),
        "no name missing"
    );
    assert_eq!(seen[..2], [".", ".."]);
}

#[test]
fn names_have_limits() {
    let (_store, fs) = fresh(100);
    let longest = "n".repeat(255);
    fs.create(ROOT, name(&longest), &NewNode::file()).unwrap();
    fs.lookup(ROOT, name(&longest)).unwrap();
    let long = "n".repeat(256);
    let refused = |label: &str| {
        fs.create(ROOT, name(label), &NewNode::file())
            .map(drop)
            .unwrap_err()
    };
    assert_eq!(refused(&long), FsError::NameTooLong);
    assert_eq!(refused("a/b"), FsError::Invalid);
    assert_eq!(refused("."), FsError::Exists);
    assert_eq!(refused(".."), FsError::Exists);
    assert_eq!(refused(""), FsError::NotFound);
    assert_eq!(
        fs.symlink(ROOT, name("l"), name(&"t".repeat(4096)), 0, 0)
            .map(drop),
        Err(FsError::NameTooLong)
    );
    fs.symlink(ROOT, name("l"), name(&"t".repeat(4095)), 0, 0)
        .unwrap();
}

/// Paths lead through links and `..`, and a loop of links ends.
#[test]
fn paths() {
    let (_store, fs) = fresh(100);
    let dir = fs
        .create(ROOT, name("d"), &NewNode::directory())
        .unwrap()
        .ino;
    let file = fs.create(dir, name("f"), &NewNode::file()).unwrap().ino;
    fs.symlink(dir, name("up"), name("../d/f"), 0, 0).unwrap();
    fs.symlink(ROOT, name("loop"), name("/loop"), 0, 0).unwrap();
    assert_eq!(fs.lookup_path("/d/f"), Ok(file));
    assert_eq!(fs.lookup_path("d/./up"), Ok(file));
    assert_eq!(fs.lookup_path("/d/../d"), Ok(dir));
    assert_eq!(fs.lookup_path("/"), Ok(ROOT));
    let endless = fs.lookup_path("/loop");
    assert_eq!(endless, Err(FsError::LinkLoop));
    assert_eq!(FsError::LinkLoop.errno(), libc::ELOOP);
    assert_eq!(fs.lookup_path("/d/f/x"), Err(FsError::NotDirectory));
}
