//! Repairs that are cut off, and repairs of any mixture of two states.

use std::sync::Arc;

use crate::repaired::{
    GRAIN, MemFs, ROOT, ROOT_DIR, cured, file, lose_place, mount, prepare, put_back, tree, twice,
};
use contigfs::{BlockStore, ByteAddr, Care, InodeNo, MemStore, NewNode, RenameMode, check, repair};
use ftl::Lba;
use support::{Dice, name};

/// Repairs that are cut off at any write end the same way when they are done again.
#[test]
fn power_cuts_during_a_repair() {
    let damaged = || {
        let (store, fs) = prepare();
        let before = store.duplicate();
        file(&fs, ROOT, "lost");
        fs.create(ROOT, name("tree"), &NewNode::directory())
            .unwrap();
        let ino = fs.lookup_path("/d/a").unwrap();
        fs.link(ino, ROOT, name("second")).unwrap();
        drop(fs);
        put_back(&store, &before, ROOT_DIR);
        store
    };
    let whole = damaged();
    cured(&whole, Care::Full);
    let wanted = tree(&mount(&whole));
    for calls in 0.. {
        let store = damaged();
        let first = store.calls();
        store.cut_power_after(calls);
        let finished = repair(&store, Care::Full).is_ok();
        let left = Arc::new(store.after_power_cut(|n| n - 1));
        twice(&left, Care::Full);
        assert!(check(&left).is_clean());
        assert_eq!(tree(&mount(&left)), wanted, "cut after {calls} calls");
        if finished {
            assert!(store.calls() > first);
            return;
        }
    }
}

/// The same with places that are looked for: whatever is cut off, the directory is found, and no file's content is lost.
#[test]
fn power_cuts_while_places_are_found() {
    let damaged = || {
        let (store, fs) = prepare();
        let lost = ["/d", "/d/a", "/d/b"].map(|path| fs.lookup_path(path).unwrap());
        drop(fs);
        lost.into_iter().for_each(|ino| lose_place(&store, ino));
        store
    };
    for calls in 0.. {
        let store = damaged();
        store.cut_power_after(calls);
        let finished = repair(&store, Care::Full).is_ok();
        let left = Arc::new(store.after_power_cut(|n| n - 1));
        // Whoever mounts it in between frees nothing of what is missing.
        drop(mount(&left));
        twice(&left, Care::Full);
        assert!(check(&left).is_clean(), "cut after {calls} calls");
        let tree = tree(&mount(&left));
        assert!(tree.contains_key("/d"), "cut after {calls} calls");
        let text = |text: &String| text.trim_end_matches('\0').to_owned();
        let mut contents: Vec<String> = tree.values().map(text).collect();
        contents.retain(|text| !text.is_empty());
        contents.sort();
        assert_eq!(contents, ["a", "b", "keep"], "cut after {calls} calls");
        if finished {
            return;
        }
    }
}

/// Any mixture of two states of the metadata: what the repair calls clean can be used, and it comes to an end.
#[test]
fn mixtures_of_two_states() {
    for seed in 0..2000 {
        let mut dice = Dice::new(seed);
        let (store, fs) = prepare();
        change(&fs, &mut dice);
        let before = store.duplicate();
        change(&fs, &mut dice);
        drop(fs);
        let mut metadata: Vec<Lba> = before.mapped();
        metadata.extend(store.mapped());
        metadata.retain(|lba| is_metadata(&store, &before, *lba));
        metadata.sort_unstable();
        metadata.dedup();
        for _ in 0..=dice.below(3) {
            put_back(&store, &before, *dice.pick(&metadata));
        }
        if dice.below(4) == 0 {
            let lba = *dice.pick(&metadata);
            let at = dice.below(500);
            store.poke(ByteAddr::new(lba, at), |byte| byte ^ 0x21);
        }
        let report = twice(&store, Care::Full);
        if report.after.is_clean() {
            let fs = mount(&store);
            tree(&fs);
            let new = file(&fs, ROOT, "new");
            fs.unlink(ROOT, name("new")).unwrap();
            let _ = new;
            drop(fs);
            assert!(check(&store).is_clean(), "seed {seed}");
        }
    }
}

/// Table or directory; data would only make contents differ.
fn is_metadata(now: &MemStore, before: &MemStore, lba: Lba) -> bool {
    let is_dir = |store: &MemStore| {
        let mut grain = [0; GRAIN];
        store.read(ByteAddr::new(lba, 0), &mut grain).unwrap();
        grain[8] > 0 && grain[8] < 64 && [4, 8].contains(&grain[9])
    };
    lba.0 < ROOT_DIR.0 && lba.0 > 1 || is_dir(now) || is_dir(before)
}

fn change(fs: &MemFs, dice: &mut Dice) {
    let label = |n: u64| format!("f{n}");
    for _ in 0..1 + dice.below(6) {
        let dirs: Vec<InodeNo> = ["/", "/d", "/e", "/d/f1", "/e/f1"]
            .iter()
            .filter_map(|path| fs.lookup_path(path).ok())
            .collect();
        let (dir, other) = (*dice.pick(&dirs), *dice.pick(&dirs));
        let (one, two) = (label(dice.below(4)), label(dice.below(4)));
        let ino = fs.lookup(dir, name(&one)).map(|attr| attr.ino);
        let _ = match dice.below(6) {
            0 => fs.create(dir, name(&one), &NewNode::directory()).map(drop),
            1 | 2 => fs.create(dir, name(&one), &NewNode::file()).map(drop),
            3 => fs
                .unlink(dir, name(&one))
                .or_else(|_| fs.rmdir(dir, name(&one))),
            4 => fs.rename(dir, name(&one), other, name(&two), RenameMode::Replace),
            _ => ino.and_then(|ino| fs.link(ino, other, name(&two)).map(drop)),
        };
    }
    let _ = fs.sync_all();
}
