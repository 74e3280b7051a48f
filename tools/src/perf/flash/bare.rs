//! The bare side: a device driven with nothing in between.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;

use ftl::{Action, ActionId, Device, FileDevice, IoBuf, MediaOp};
use memmap2::MmapMut;

use super::slots::Slots;
use super::{Access, BLOCK, CHUNK, Run};
use crate::perf::figures::Figures;
use crate::perf::shape::Offsets;

/// Appends in flight: as many as the engine has staging buffers for users.
pub const APPENDS: usize = 8;

/// A file accessed directly.
#[derive(Debug)]
pub struct Bare<'a> {
    path: &'a Path,
}

impl<'a> Bare<'a> {
    /// The file at `path`.
    pub fn new(path: &'a Path) -> Self {
        Self { path }
    }

    /// Carries out a run.
    pub fn run(&self, run: &Run) -> io::Result<Figures> {
        match run.access {
            Access::Read { depth } => self.read(run, depth),
            Access::Append => self.append(run),
            Access::Sync { .. } => self.overwrite(run),
        }
    }

    fn open(&self) -> io::Result<FileDevice> {
        FileDevice::open_read_only(self.path).map_err(io::Error::other)
    }

    fn read(&self, run: &Run, depth: usize) -> io::Result<Figures> {
        // Dropped in this order: the device drains before the buffers go.
        let mut buffers = buffers(depth, BLOCK)?;
        let mut device = self.open()?;
        let mut offsets = Offsets::over(run.bytes, BLOCK, run.seed);
        let mut slots = Slots::new(depth);
        let mut post = |device: &mut FileDevice, slots: &mut Slots, slot: usize| {
            slots.begin(slot);
            let buf = lend(&mut buffers[slot]);
            let op = MediaOp::Read {
                offset: offsets.draw(),
                buf,
            };
            device.submit(Action {
                id: ActionId(slot as u64),
                op,
            });
        };
        for slot in 0..depth {
            post(&mut device, &mut slots, slot);
        }
        while !slots.is_over(run) {
            let mut wait = true;
            while let Some((ActionId(slot), result)) = device.poll(wait) {
                result.map_err(io::Error::other)?;
                slots.end(slot as usize);
                post(&mut device, &mut slots, slot as usize);
                wait = false;
            }
        }
        while device.poll(true).is_some() {}
        slots.figures(BLOCK)
    }

    fn append(&self, run: &Run) -> io::Result<Figures> {
        let mut buffers = buffers(APPENDS, CHUNK)?;
        let mut device = FileDevice::open(self.path).map_err(io::Error::other)?;
        let mut slots = Slots::at_once(APPENDS);
        let mut at = 0;
        let mut post = |device: &mut FileDevice, slots: &mut Slots, slot: usize| {
            let over = at + CHUNK as u64 > run.bytes || slots.is_over(run);
            if over {
                return;
            }
            slots.begin(slot);
            let op = MediaOp::Write {
                offset: at,
                buf: lend(&mut buffers[slot]),
                durable: false,
            };
            at += CHUNK as u64;
            device.submit(Action {
                id: ActionId(slot as u64),
                op,
            });
        };
        for slot in 0..APPENDS {
            post(&mut device, &mut slots, slot);
        }
        while let Some((ActionId(slot), result)) = device.poll(true) {
            result.map_err(io::Error::other)?;
            slots.end(slot as usize);
            post(&mut device, &mut slots, slot as usize);
        }
        device.submit(Action {
            id: ActionId(0),
            op: MediaOp::Flush,
        });
        if let Some((_, result)) = device.poll(true) {
            result.map_err(io::Error::other)?;
        }
        slots.figures(CHUNK)
    }

    /// `O_DIRECT|O_DSYNC` at depth 1: what a program without a log would do.
    fn overwrite(&self, run: &Run) -> io::Result<Figures> {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(self.path)?;
        let mut block = MmapMut::map_anon(BLOCK)?;
        block.fill(0x5a);
        let mut offsets = Offsets::over(run.bytes, BLOCK, run.seed);
        let mut slots = Slots::new(1);
        while !slots.is_over(run) {
            slots.begin(0);
            file.write_all_at(&block, offsets.draw())?;
            slots.end(0);
        }
        slots.figures(BLOCK)
    }
}

/// Page-aligned buffers of ordinary memory, as `fio` has it, one for each operation in flight.
fn buffers(count: usize, bytes: usize) -> io::Result<Vec<MmapMut>> {
    let map = |n| {
        let mut map = MmapMut::map_anon(bytes)?;
        // Bytes that differ between the buffers: nothing on the way may take them for the same.
        map.fill(n as u8 | 0x40);
        Ok(map)
    };
    (0..count).map(map).collect()
}

fn lend(buffer: &mut MmapMut) -> IoBuf {
    let ptr = NonNull::from(&mut buffer[..]).cast();
    // SAFETY: the buffers outlive the device, which drains when dropped, and each belongs to one operation at a time.
    unsafe { IoBuf::new(ptr, buffer.len()) }
}
