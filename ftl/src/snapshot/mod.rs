//! Snapshots: what every grain was at a moment, with a name. See `docs/snapshots.md`.
//!
//! The engine keeps what grains were before they change. Here is the rest: the table that says which snapshots there are,
//! making and deleting them, and reading what they hold, for whoever can commit batches and read grains.

mod delete;
mod marks;
mod slot;
mod table;
mod volume;

pub use marks::Marks;
pub(crate) use marks::emit as emit_mark;
pub(crate) use slot::{MARKS_MAX, MARKS_PER_GRAIN, imaged};
pub use slot::{SNAPSHOTS_MAX, Slot};
pub use table::{NAME_MAX, Snapshot};

use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::core::Held;
use crate::engine::Ftl;
use crate::format::GrainBytes;
use std::sync::{Mutex, MutexGuard, PoisonError};
use table::{Entry, State, Table};

/// What becomes of a snapshot when a batch takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotChange {
    /// It is there: what grains are now is kept for it from now on.
    Make(Slot),
    /// Nothing more is kept for it, and what it has goes to the one before.
    Delete(Slot),
    /// Nothing is left of it.
    Forget(Slot),
}

/// Why something can not be done with a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// There is one of this name.
    #[error("there is a snapshot of this name")]
    Exists,
    /// There is none of this name.
    #[error("there is no snapshot of this name")]
    NotFound,
    /// As many as there may be.
    #[error(
        "there are {SNAPSHOTS_MAX} snapshots, which is as many as there may be: delete one, and wait until it is gone"
    )]
    TooMany,
    /// A name has 1 to [`NAME_MAX`] bytes, and none of them is a slash or zero.
    #[error("a name of a snapshot has 1 to {NAME_MAX} bytes without / and is not . or ..")]
    BadName,
    /// The volume is full.
    #[error("volume full")]
    NoSpace,
    /// A grain can not be read.
    #[error("{lba} is damaged on the media")]
    Damaged {
        /// The grain.
        lba: Lba,
    },
    /// The device gives an error instead of a grain, which may be whole.
    #[error("{lba} can not be read: error of the device")]
    Unreadable {
        /// The grain.
        lba: Lba,
    },
    /// The volume has failed, or is being closed.
    #[error("the volume has failed, or is being closed")]
    Failed,
}

impl SnapshotError {
    /// Whether something can not be read, and the volume can be used.
    const fn is_loss(self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Unreadable { .. })
    }
}

/// A volume on which there are snapshots, and whoever can wait for it.
pub trait Host: Send + Sync {
    /// The engine.
    fn engine(&self) -> &Ftl;

    /// Reads grains, images among them, to the pieces of `into`.
    fn read_grains(&self, lbas: &[Lba], into: &mut [&mut [u8]]) -> Result<(), SnapshotError>;

    /// As [`Ftl::commit_snapshot`]; durable on return.
    fn commit_images(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), SnapshotError>;

    /// As [`Ftl::admit_images`]; so on return.
    fn admit_images(&self) -> Result<(), SnapshotError>;

    /// Brings the map of a range into memory.
    fn load_map(&self, range: LbaRange) -> Result<(), SnapshotError>;

    /// What was written before is durable on return.
    fn sync_all(&self) -> Result<(), SnapshotError>;
}

/// The snapshots of a volume.
#[derive(Debug, Default)]
pub struct Snapshots {
    table: Mutex<Table>,
}

impl Snapshots {
    /// Reads what there is, and tells the engine to keep it. Before anybody changes anything.
    ///
    /// What can not be read costs the snapshots that it told of, and not the volume: they count as deleted.
    pub fn open(host: &dyn Host) -> Result<Self, SnapshotError> {
        if !host.engine().admits_images() {
            return Ok(Self::default());
        }
        let (mut table, mut is_less) = match read_surely(|| read(host, slot::TABLE)) {
            Ok(bytes) => (Table::parse(&bytes), Table::is_damaged(&bytes)),
            Err(error) if error.is_loss() => {
                tracing::error!(%error, "the table of snapshots can not be read: they are lost");
                (Table::lost(slots_in_use(host)?), true)
            }
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        let slots: Vec<Slot> = table.by_age().iter().map(|e| e.slot).collect();
        for slot in slots {
            let (marks, used) = match read_surely(|| read_marks(host, slot)) {
                Err(error) if error.is_loss() => {
                    tracing::error!(%error, "marks of a snapshot can not be read: it is lost, and so are older ones");
                    is_less |= table.give_up(slot);
                    Default::default()
                }
                read => read?,
            };
            found.push((slot, marks, used));
        }
        let is_dying = |slot: Slot| {
            let entry = table.entries[slot.index()].as_ref();
            entry.is_some_and(|e| e.state == State::Dying)
        };
        let found = found.into_iter();
        let found = found.map(|(slot, marks, used)| (slot, marks, used, is_dying(slot)));
        host.engine().set_snapshots(found.collect());
        if is_less {
            // Nothing is kept for them from now on, so they must not be there again if this can be read some day.
            let mut batch = AtomicBatch::new();
            batch.patch(slot::TABLE, 0, table.emit().to_vec());
            if let Err(error) = host.commit_images(batch, None) {
                tracing::warn!(%error, "that snapshots are lost can not be written");
            }
        }
        let table = Mutex::new(table);
        Ok(Self { table })
    }

    /// Whether something of snapshots is damaged, so that [`open`](Self::open) will give some up. Changes nothing.
    ///
    /// # Errors
    /// [`SnapshotError::Unreadable`], when opening would give up what may be whole; else if the volume can not be used.
    pub fn are_damaged(host: &dyn Host) -> Result<bool, SnapshotError> {
        if !host.engine().admits_images() {
            return Ok(false);
        }
        let table = match read_surely(|| read(host, slot::TABLE)) {
            Ok(bytes) if Table::is_damaged(&bytes) => return Ok(true),
            Ok(bytes) => Table::parse(&bytes),
            Err(SnapshotError::Damaged { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        for entry in table.by_age() {
            match read_surely(|| read_marks(host, entry.slot)) {
                Err(SnapshotError::Damaged { .. }) if entry.state == State::There => {
                    return Ok(true);
                }
                Ok(_) | Err(SnapshotError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that there are, oldest first.
    pub fn list(&self) -> Vec<Snapshot> {
        let table = self.table();
        let alive = table.by_age().into_iter();
        let alive = alive.filter(|e| e.state == State::There);
        alive.map(|e| e.shown()).collect()
    }

    /// The one of this name.
    pub fn find(&self, name: &[u8]) -> Option<Snapshot> {
        self.list().into_iter().find(|s| s.name == name)
    }

    /// Whether one is being deleted: [`Snapshots::sweep`] has something to do.
    pub fn is_sweeping(&self) -> bool {
        let table = self.table();
        table
            .entries
            .iter()
            .flatten()
            .any(|e| e.state == State::Dying)
    }

    /// Makes a snapshot of everything that was written before.
    ///
    /// # Errors
    /// [`SnapshotError`], and there is none.
    pub fn make(
        &self,
        host: &dyn Host,
        name: &[u8],
        now_ns: u64,
    ) -> Result<Snapshot, SnapshotError> {
        if !table::is_name(name) {
            return Err(SnapshotError::BadName);
        }
        host.admit_images()?;
        host.sync_all()?;
        let mut table = self.table();
        let there = |e: &Entry| e.state == State::There && e.name == name;
        if table.entries.iter().flatten().any(there) {
            return Err(SnapshotError::Exists);
        }
        let slot = table.free_slot().ok_or(SnapshotError::TooMany)?;
        let entry = Entry {
            number: table.next_number(),
            slot,
            created_ns: now_ns,
            state: State::There,
            name: name.to_vec(),
        };
        let shown = entry.shown();
        let mut next = table.clone();
        next.entries[slot.index()] = Some(entry);
        let mut batch = AtomicBatch::new();
        batch.patch(slot::TABLE, 0, next.emit().to_vec());
        host.commit_images(batch, Some(SnapshotChange::Make(slot)))?;
        // What was put between the sync and that moment is in it, and from now on also after a crash. Nobody sees it before.
        if let Err(error) = host.sync_all() {
            let mut without = next.clone();
            match delete_entry(host, &mut without, slot) {
                Ok(()) => {
                    *table = without;
                    return Err(error);
                }
                // The volume takes no changes any more, and when it is opened again the snapshot is there.
                Err(_) => {
                    tracing::warn!(%error, "what was written while a snapshot was made may be missing in it")
                }
            }
        }
        *table = next;
        Ok(shown)
    }

    /// Deletes a snapshot: it is gone on return, and what it holds is given back by [`Snapshots::sweep`].
    ///
    /// # Errors
    /// [`SnapshotError`]
    pub fn delete(&self, host: &dyn Host, name: &[u8]) -> Result<(), SnapshotError> {
        let mut table = self.table();
        let mut next = table.clone();
        let there = |e: &&Entry| e.state == State::There && e.name == name;
        let entry = next.entries.iter().flatten().find(there);
        let slot = entry.ok_or(SnapshotError::NotFound)?.slot;
        delete_entry(host, &mut next, slot)?;
        *table = next;
        Ok(())
    }

    /// Reads bytes as they were at a snapshot, from `at` on.
    ///
    /// # Errors
    /// [`SnapshotError`]
    pub fn read(host: &dyn Host, slot: Slot, at: u64, buf: &mut [u8]) -> Result<(), SnapshotError> {
        /// Grains that are looked at together.
        const PORTION: usize = 64;
        let grain = GRAIN_BYTES as u64;
        let (mut first, mut offset) = (at / grain, (at % grain) as usize);
        let mut rest = buf;
        while !rest.is_empty() {
            let count = (offset + rest.len()).div_ceil(GRAIN_BYTES).min(PORTION);
            let len = (count * GRAIN_BYTES - offset).min(rest.len());
            let (portion, behind) = rest.split_at_mut(len);
            let lbas: Vec<Lba> = (first..first + count as u64).map(Lba).collect();
            read_portion(host, slot, &lbas, offset, portion)?;
            rest = behind;
            first += count as u64;
            offset = 0;
        }
        Ok(())
    }

    /// First grain of a range that was mapped at a snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`]
    pub fn next_mapped(
        &self,
        host: &dyn Host,
        slot: Slot,
        range: LbaRange,
    ) -> Result<Option<Lba>, SnapshotError> {
        self.load(host, range)?;
        Ok(host.engine().next_held(slot, range))
    }

    /// Number of grains of a range that were mapped at a snapshot.
    ///
    /// # Errors
    /// [`SnapshotError`]
    pub fn mapped_count(
        &self,
        host: &dyn Host,
        slot: Slot,
        range: LbaRange,
    ) -> Result<u64, SnapshotError> {
        self.load(host, range)?;
        let (mut count, mut rest) = (0, range);
        while rest.count > 0 {
            let (more, left) = host.engine().held_count(slot, rest);
            (count, rest) = (count + more, left);
        }
        Ok(count)
    }

    /// Brings the map of a range, and of all its images, into memory.
    fn load(&self, host: &dyn Host, range: LbaRange) -> Result<(), SnapshotError> {
        if host.engine().is_map_loaded() {
            return Ok(());
        }
        host.load_map(range)?;
        let slots: Vec<Slot> = self.table().by_age().iter().map(|e| e.slot).collect();
        for slot in slots {
            host.load_map(slot.images(range))?;
        }
        Ok(())
    }
}

/// Says in the table, and on the media, that a snapshot is being deleted.
fn delete_entry(host: &dyn Host, table: &mut Table, slot: Slot) -> Result<(), SnapshotError> {
    if let Some(entry) = &mut table.entries[slot.index()] {
        entry.state = State::Dying;
    }
    let mut batch = AtomicBatch::new();
    batch.patch(slot::TABLE, 0, table.emit().to_vec());
    host.commit_images(batch, Some(SnapshotChange::Delete(slot)))
}

/// Times that something is read before it counts as lost.
const TRIES: usize = 3;

/// Reads what is lost if that fails.
fn read_surely<T>(mut read: impl FnMut() -> Result<T, SnapshotError>) -> Result<T, SnapshotError> {
    let mut result = read();
    for _ in 1..TRIES {
        match result {
            Err(error) if error.is_loss() => result = read(),
            _ => break,
        }
    }
    result
}

/// Slots of which anything is mapped.
fn slots_in_use(host: &dyn Host) -> Result<Vec<Slot>, SnapshotError> {
    let mut used = Vec::new();
    for slot in (0..SNAPSHOTS_MAX).filter_map(Slot::new) {
        for range in [slot.images(LbaRange::ALL), slot.marks()] {
            host.load_map(range)?;
            if host.engine().next_mapped(range).is_some() && used.last() != Some(&slot) {
                used.push(slot);
            }
        }
    }
    Ok(used)
}

/// Reads a grain.
fn read(host: &dyn Host, lba: Lba) -> Result<Box<GrainBytes>, SnapshotError> {
    let mut bytes = Box::new([0; GRAIN_BYTES]);
    host.read_grains(&[lba], &mut [&mut bytes[..]])?;
    Ok(bytes)
}

/// The marks of a slot, and how many places are taken.
fn read_marks(host: &dyn Host, slot: Slot) -> Result<(Marks, u32), SnapshotError> {
    let all = slot.marks();
    host.load_map(all)?;
    let (mut found, mut used) = (Marks::default(), 0);
    let mut from = all.start;
    while from < all.end() {
        let rest = LbaRange::new(from, all.end().0 - from.0);
        let Some(lba) = host.engine().next_mapped(rest) else {
            break;
        };
        let first = (lba.0 - all.start.0) as u32 * slot::MARKS_PER_GRAIN;
        for (index, mark) in (first..).zip(marks::parse(&*read(host, lba)?)) {
            if let Some(range) = mark {
                found.add(range);
                used = index + 1;
            }
        }
        from = lba.offset(1);
    }
    Ok((found, used))
}

/// Reads what grains were, the first from `offset` on, into `buf`.
fn read_portion(
    host: &dyn Host,
    slot: Slot,
    lbas: &[Lba],
    offset: usize,
    buf: &mut [u8],
) -> Result<(), SnapshotError> {
    let engine = host.engine();
    let mut grain = vec![[0; GRAIN_BYTES]; lbas.len()];
    let mut todo: Vec<usize> = (0..lbas.len()).collect();
    while !todo.is_empty() {
        let asked: Vec<Lba> = todo.iter().map(|&n| lbas[n]).collect();
        let held = engine.held_all(slot, &asked);
        let cold = held.iter().find_map(|held| match held {
            Held::Cold(lba) => Some(*lba),
            Held::Grain(_) | Held::Zeros => None,
        });
        if let Some(lba) = cold {
            host.load_map(LbaRange::new(lba, 1))?;
            continue;
        }
        let mut from = Vec::new();
        let mut into: Vec<&mut [u8]> = Vec::new();
        let mut wanted = todo.iter().zip(&held).peekable();
        for (n, bytes) in grain.iter_mut().enumerate() {
            let Some((_, held)) = wanted.next_if(|(at, _)| **at == n) else {
                continue;
            };
            match held {
                Held::Grain(lba) => {
                    from.push(*lba);
                    into.push(&mut bytes[..]);
                }
                Held::Zeros | Held::Cold(_) => bytes.fill(0),
            }
        }
        host.read_grains(&from, &mut into)?;
        // What has been kept meanwhile may have been changed before it was read.
        let now = engine.held_all(slot, &asked);
        let changed = todo.iter().zip(held.iter().zip(&now));
        todo = changed
            .filter(|(_, (before, now))| before != now)
            .map(|(&n, _)| n)
            .collect();
    }
    buf.copy_from_slice(&grain.as_flattened()[offset..offset + buf.len()]);
    Ok(())
}
