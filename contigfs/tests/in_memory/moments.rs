//! What happens just between two calls of the store: another operation, or a refusal.

use std::sync::{Arc, Mutex};

use contigfs::{BlockStore, Fs, InodeNo, NewNode, SetAttr, StoreError, SyncScope, WriteOptions};
use ftl::GRAIN_BYTES;
use support::{assert_clean, content, name};

use crate::harness::tapped::{Call, Tapped};

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = GRAIN_BYTES as u64;

fn file(fs: &Fs<Arc<Tapped>>, bytes: &[u8]) -> InodeNo {
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let written = fs.write(ino, 0, bytes, WriteOptions::default());
    assert_eq!(written, Ok(bytes.len()));
    ino
}

fn resize(fs: &Fs<Arc<Tapped>>, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).unwrap();
}

/// While a file is being synced it is cut off and written anew. What was written then is not durable, so its size is not
/// either: no hole shows where there never was one.
#[test]
fn cut_off_and_written_while_it_is_synced() {
    type Sync = fn(&Fs<Arc<Tapped>>, InodeNo);
    let syncs: [(&str, Sync); 3] = [
        ("fsync", |fs, ino| fs.fsync(ino, SyncScope::All).unwrap()),
        ("O_DSYNC", |fs, ino| {
            let durable = WriteOptions {
                durable: true,
                ..WriteOptions::default()
            };
            fs.write(ino, 0, &[1; 10], durable).unwrap();
        }),
        ("sync", |fs, _| fs.sync_all().unwrap()),
    ];
    for (what, sync) in syncs {
        let (store, fs) = Tapped::formatted(1000);
        let size = 8 * GRAIN;
        let ino = file(&fs, &vec![1; size as usize]);
        let other = Arc::clone(&fs);
        let mut is_first = true;
        store.tap(move |inner, call| match call {
            Call::Sync(range) if std::mem::take(&mut is_first) => {
                let synced = inner.sync(range);
                resize(&other, ino, 0);
                let anew = vec![2; size as usize];
                other.write(ino, 0, &anew, WriteOptions::default()).unwrap();
                Some(synced)
            }
            _ => None,
        });
        sync(&fs, ino);
        store.untap();
        let bytes = content(&fs, ino).unwrap();
        assert!(bytes == vec![2; size as usize], "{what}");
        // Nothing survives that need not.
        let cut = Arc::new(store.inner.after_power_cut(|_| 0));
        let fs = Fs::mount(Arc::clone(&cut)).unwrap();
        let left = content(&fs, ino).unwrap();
        assert!(left.iter().all(|&byte| byte == 2), "{what}: a hole");
        assert_clean(&cut);
    }
}

/// Who asks for attributes while what was cut off is being freed, piece by piece, has counted part of it; who asks
/// afterwards gets the number of what is left.
#[test]
fn counted_while_it_is_freed() {
    let (store, fs) = Tapped::formatted(1000);
    let ino = file(&fs, &[1; 8 * GRAIN_BYTES]);
    let other = Arc::clone(&fs);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let answers = Arc::clone(&asked);
    store.tap(move |_, call| match call {
        // As a volume that has to keep all of it for a snapshot.
        Call::Commit(batch) if !batch.trims.is_empty() && !batch.patches.is_empty() => {
            Some(Err(StoreError::NoSpace))
        }
        Call::Commit(batch) if !batch.trims.is_empty() => {
            answers
                .lock()
                .unwrap()
                .push(other.attr(ino).unwrap().grains);
            None
        }
        _ => None,
    });
    resize(&fs, ino, GRAIN);
    store.untap();
    assert_eq!(*asked.lock().unwrap(), [8]);
    assert_eq!(fs.attr(ino).unwrap().grains, 1);
}

/// A write that finds no space gets further the first time than the second. What it left behind the end that it tells of does not
/// show when the file becomes longer.
#[test]
fn less_than_was_written() {
    let (store, fs) = Tapped::formatted(1000);
    let ino = file(&fs, &[1; GRAIN_BYTES]);
    let mut calls = 0;
    store.tap(move |inner, call| {
        let Call::Write(at, data) = call else {
            return None;
        };
        calls += 1;
        match calls {
            1 => {
                inner.write(at, &data[..3 * GRAIN_BYTES]).unwrap();
                Some(Err(StoreError::NoSpace))
            }
            2 => None,
            _ => Some(Err(StoreError::NoSpace)),
        }
    });
    let longer = [2; 4 * GRAIN_BYTES];
    let written = fs.write(ino, GRAIN, &longer, WriteOptions::default());
    assert_eq!(written, Ok(GRAIN_BYTES));
    store.untap();
    assert_eq!(fs.attr(ino).unwrap().size, 2 * GRAIN);
    resize(&fs, ino, 5 * GRAIN);
    let bytes = content(&fs, ino).unwrap();
    assert!(bytes[2 * GRAIN_BYTES..].iter().all(|&byte| byte == 0));
}
