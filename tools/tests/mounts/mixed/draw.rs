//! What clients do next, by chance: mostly what can succeed, at edges more often than between them.

use rand::Rng;
use rand::rngs::SmallRng;

use super::answer::Fill;
use super::local::{self, LocalCall, LocalView, OpenFile, Space};
use super::oracle::{Mode, Node, Oracle};
use super::remote::{self, Region, RemoteCall, RemoteView};

const NAMES: [&str; 8] = [
    "a",
    "b",
    "c",
    "d",
    "sixteen-bytes-ok",
    "seventeen-bytes-x",
    "e",
    "a-rather-long-name-that-takes-several-units-of-a-directory-grain-and-then-some-more",
];
const GRAIN: usize = 4096;
/// Most bytes of a file.
const FILE_MAX: usize = 300_000;
/// Files and directories; with so many, more are removed than made.
const PATHS_MAX: usize = 25;

/// One time in `n`.
fn once_in(rng: &mut SmallRng, n: u32) -> bool {
    rng.random_range(0..n) == 0
}

fn pick<T: Clone>(rng: &mut SmallRng, items: &[T]) -> Option<T> {
    (!items.is_empty()).then(|| items[rng.random_range(0..items.len())].clone())
}

fn name(rng: &mut SmallRng) -> String {
    NAMES[rng.random_range(0..NAMES.len())].to_owned()
}

/// A path that may lead nowhere, up to three parts long.
fn any_path(rng: &mut SmallRng, oracle: &Oracle) -> String {
    let dirs: Vec<String> = paths(oracle, |oracle, node| oracle.is_dir(node));
    let parent = match rng.random_range(0..10) {
        0 => Some(name(rng)),
        1..6 => pick(rng, &dirs),
        _ => None,
    };
    match parent {
        Some(parent) if parent.matches('/').count() < 2 => format!("{parent}/{}", name(rng)),
        _ => name(rng),
    }
}

fn paths(oracle: &Oracle, which: impl Fn(&Oracle, Node) -> bool) -> Vec<String> {
    let all = oracle.paths().into_iter();
    all.filter(|(_, node)| which(oracle, *node))
        .map(|(path, _)| path)
        .collect()
}

/// A path of a file in most cases.
fn file_path(rng: &mut SmallRng, oracle: &Oracle) -> String {
    let files = paths(oracle, |oracle, node| !oracle.is_dir(node));
    match pick(rng, &files) {
        Some(path) if !once_in(rng, 12) => path,
        _ => any_path(rng, oracle),
    }
}

/// A path that leads somewhere in most cases.
fn old_path(rng: &mut SmallRng, oracle: &Oracle) -> String {
    match pick(rng, &paths(oracle, |_, _| true)) {
        Some(path) if !once_in(rng, 12) => path,
        _ => any_path(rng, oracle),
    }
}

/// A position in a file of `size` bytes, or somewhat behind its end.
fn position(rng: &mut SmallRng, size: usize) -> usize {
    let near = |rng: &mut SmallRng, at: usize| (at + 2).saturating_sub(rng.random_range(0..5));
    let at = match rng.random_range(0..6) {
        0 => 0,
        1 => near(rng, size),
        2 => rng.random_range(0..=FILE_MAX / GRAIN) * GRAIN,
        3 => {
            let border = rng.random_range(0..=size / GRAIN + 1) * GRAIN;
            near(rng, border)
        }
        4 => rng.random_range(0..FILE_MAX),
        _ => rng.random_range(0..=size),
    };
    at.min(FILE_MAX)
}

fn length(rng: &mut SmallRng) -> usize {
    match rng.random_range(0..8) {
        0 => rng.random_range(1..10),
        1 => GRAIN,
        2 => GRAIN * rng.random_range(1..8),
        3 => rng.random_range(1..100_000),
        _ => rng.random_range(1..2 * GRAIN),
    }
}

fn fill(rng: &mut SmallRng, len: usize) -> Fill {
    let seed = rng.random_range(0..1 << 40);
    Fill { seed, len }
}

fn slot<T>(rng: &mut SmallRng, slots: &[Option<T>], open: bool) -> Option<usize> {
    let fitting: Vec<usize> = (0..slots.len())
        .filter(|&slot| slots[slot].is_some() == open)
        .collect();
    pick(rng, &fitting)
}

/// What a program on the mount calls next.
pub fn local(rng: &mut SmallRng, oracle: &Oracle, view: &LocalView) -> LocalCall {
    match rng.random_range(0..100) {
        0..30 => names(rng, oracle),
        30..42 => match slot(rng, &view.slots, false) {
            Some(slot) => LocalCall::Open {
                slot,
                path: file_path(rng, oracle),
                how: local::How {
                    create: once_in(rng, 2),
                    exclusive: once_in(rng, 8),
                    truncate: once_in(rng, 10),
                    append: once_in(rng, 6),
                    dsync: once_in(rng, 8),
                },
            },
            None => LocalCall::Close(rng.random_range(0..local::SLOTS)),
        },
        _ => match slot(rng, &view.slots, true) {
            Some(slot) => data(rng, oracle, view, slot),
            None => names(rng, oracle),
        },
    }
}

/// A call about names.
fn names(rng: &mut SmallRng, oracle: &Oracle) -> LocalCall {
    let many = paths(oracle, |_, _| true).len() > PATHS_MAX;
    if many && once_in(rng, 4) {
        return LocalCall::Unlink(file_path(rng, oracle));
    }
    match rng.random_range(0..24) {
        0..5 => LocalCall::Rename {
            from: old_path(rng, oracle),
            to: match once_in(rng, 3) {
                true => old_path(rng, oracle),
                false => any_path(rng, oracle),
            },
            mode: match rng.random_range(0..4) {
                0 => Mode::NoReplace,
                1 => Mode::Exchange,
                _ => Mode::Replace,
            },
        },
        5..8 => LocalCall::Link {
            from: file_path(rng, oracle),
            to: any_path(rng, oracle),
        },
        8..11 => LocalCall::Unlink(old_path(rng, oracle)),
        11..13 => LocalCall::MakeDir(any_path(rng, oracle)),
        13..15 => {
            let dirs = paths(oracle, |oracle, node| oracle.is_dir(node));
            LocalCall::RemoveDir(pick(rng, &dirs).unwrap_or_else(|| any_path(rng, oracle)))
        }
        15..18 => LocalCall::List(match once_in(rng, 2) {
            true => String::new(),
            false => old_path(rng, oracle),
        }),
        18..22 => LocalCall::Stat(old_path(rng, oracle)),
        _ => {
            let path = file_path(rng, oracle);
            let node = oracle.find(&path);
            let file = node.ok().filter(|&node| !oracle.is_dir(node));
            let size = position(rng, file.map_or(0, |node| oracle.size(node)));
            LocalCall::Truncate { path, size }
        }
    }
}

/// A call about an open file.
fn data(rng: &mut SmallRng, oracle: &Oracle, view: &LocalView, slot: usize) -> LocalCall {
    let OpenFile { node, mapped, .. } = view.slots[slot].expect("it is open");
    let size = oracle.size(node);
    let offset = position(rng, size);
    let len = length(rng);
    match rng.random_range(0..40) {
        0..2 => LocalCall::Close(slot),
        2..9 => LocalCall::Read { slot, offset, len },
        9..18 => LocalCall::Write {
            slot,
            offset,
            fill: fill(rng, len),
        },
        18..20 => LocalCall::Resize { slot, size: offset },
        20..24 => LocalCall::Space {
            slot,
            how: pick(rng, &Space::ALL).expect("there are some"),
            offset,
            len: if once_in(rng, 50) { 0 } else { len },
        },
        24..27 => {
            let (source, from) = copy_source(rng, oracle, view, offset);
            LocalCall::Copy {
                from: (source, from),
                to: (slot, offset),
                len,
            }
        }
        27 => LocalCall::Sync(slot),
        28..30 => LocalCall::Examine(slot),
        _ => match mapped {
            None if size > 0 => LocalCall::Map(slot),
            // Beyond the end there is SIGBUS.
            Some(mapped) if mapped.min(size) > 0 => {
                let there = mapped.min(size);
                let offset = offset.min(there - 1);
                let len = len.min(there - offset);
                match once_in(rng, 2) {
                    true => LocalCall::Load { slot, offset, len },
                    false => LocalCall::Store {
                        slot,
                        offset,
                        fill: fill(rng, len),
                    },
                }
            }
            _ => LocalCall::Examine(slot),
        },
    }
}

/// Where to copy from: in half of the cases so that grains can be cloned.
fn copy_source(rng: &mut SmallRng, oracle: &Oracle, view: &LocalView, to: usize) -> (usize, usize) {
    let source = slot(rng, &view.slots, true).expect("there is one");
    let node = view.slots[source].expect("it is open").node;
    let from = position(rng, oracle.size(node));
    match once_in(rng, 2) {
        true => (source, from / GRAIN * GRAIN + to % GRAIN),
        false => (source, from),
    }
}

/// What a peer does next.
pub fn remote(rng: &mut SmallRng, oracle: &Oracle, view: &RemoteView) -> RemoteCall {
    let open = slot(rng, &view.slots, true);
    match (rng.random_range(0..100), open) {
        (0..4, _) => RemoteCall::List(match once_in(rng, 2) {
            true => String::new(),
            false => old_path(rng, oracle),
        }),
        (4..12, _) => RemoteCall::Stat(old_path(rng, oracle)),
        (12, _) => RemoteCall::Reconnect,
        (13..20, Some(slot)) => RemoteCall::Close(slot),
        (20..23, Some(slot)) => RemoteCall::Sync(slot),
        (40..100, Some(slot)) => access(rng, view.slots[slot].expect("it is open"), slot),
        _ => match slot(rng, &view.slots, false) {
            Some(slot) => region(rng, oracle, slot),
            None => RemoteCall::Close(rng.random_range(0..remote::SLOTS)),
        },
    }
}

fn region(rng: &mut SmallRng, oracle: &Oracle, slot: usize) -> RemoteCall {
    let path = file_path(rng, oracle);
    let how = remote::How {
        write: !once_in(rng, 4),
        create: once_in(rng, 3),
        exclusive: once_in(rng, 15),
        truncate: once_in(rng, 12),
    };
    let node = oracle.find(&path).ok();
    let size = node.filter(|&node| !oracle.is_dir(node));
    let size = size.map_or(0, |node| oracle.size(node));
    let (offset, length) = match rng.random_range(0..6) {
        _ if how.truncate => (0, length(rng)),
        0 => (position(rng, size), length(rng)),
        1 if size > 0 => (rng.random_range(0..size), 0),
        _ => (0, 0),
    };
    RemoteCall::Open {
        slot,
        path,
        how,
        offset,
        length,
    }
}

/// A one-sided operation, inside its region but for a few.
fn access(rng: &mut SmallRng, region: Region, slot: usize) -> RemoteCall {
    if region.len == 0 {
        return RemoteCall::Close(slot);
    }
    // What begins inside may be carried out up to the end.
    let (at, len) = match once_in(rng, 200) {
        true => (region.len, length(rng)),
        false => {
            let at = position(rng, region.len).min(region.len - 1);
            (at, length(rng).min(region.len - at))
        }
    };
    let may_write = region.how.write || once_in(rng, 100);
    match may_write && !once_in(rng, 3) {
        true => RemoteCall::Write {
            slot,
            at,
            fill: fill(rng, len),
            sync: once_in(rng, 3),
        },
        false => RemoteCall::Read { slot, at, len },
    }
}
