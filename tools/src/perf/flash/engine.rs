//! The engine's side: one thread that drives an engine and its device, and the programs that use it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ftl::{
    Device, Event, FileDevice, FormatOptions, Ftl, Get, Intent, Lba, LbaRange, OpenOptions, Port,
    Time, Token,
};

use super::slots::Slots;
use super::{Access, BLOCK, Run};
use crate::perf::figures::Figures;
use crate::perf::shape::Offsets;

const PORT: Port = Port(0);
/// Sequential writes ahead of what has a frame.
const APPENDS: usize = 64;

/// A volume on an image file, open.
#[derive(Debug)]
pub struct Engine {
    // Goes before the engine, whose memory it may be using.
    device: FileDevice,
    ftl: Arc<Ftl>,
    origin: Instant,
}

impl Engine {
    /// Makes a volume of the file at `path`, with memory for so many pages.
    pub fn create(path: &Path, frames: usize) -> io::Result<Self> {
        let mut device = FileDevice::open(path).map_err(io::Error::other)?;
        Ftl::format(&mut device, &FormatOptions::default()).map_err(io::Error::other)?;
        let options = OpenOptions {
            pool_frames: frames,
            ..OpenOptions::default()
        };
        let (ftl, _) = Ftl::open(&mut device, options).map_err(io::Error::other)?;
        Ok(Self {
            device,
            ftl,
            origin: Instant::now(),
        })
    }

    /// Bytes that users may write.
    pub fn capacity(&self) -> u64 {
        self.ftl.space().capacity * BLOCK as u64
    }

    /// Carries out a run. What is in flight at the end of the time is abandoned; dropping the engine waits for it.
    pub fn run(&mut self, run: &Run) -> io::Result<Figures> {
        match run.access {
            Access::Read { depth } => self.read(run, depth),
            Access::Append => self.append(run),
            Access::Sync { writers } => self.overwrite(run, writers),
        }
    }

    fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    /// Hands over what the engine wants, takes one thing that the device has done.
    fn step(&mut self, wait: bool) -> bool {
        while let Some(action) = self.ftl.poll_action(PORT) {
            self.device.submit(action);
        }
        let Some((id, result)) = self.device.poll(wait) else {
            return false;
        };
        let now = self.now();
        self.ftl.handle_done(PORT, now, id, result);
        true
    }

    /// Hands over what the engine wants, takes what the device has done; with `wait`, at least one thing.
    fn turn(&mut self, wait: bool) {
        let now = self.now();
        if self.ftl.poll_timeout().is_some_and(|due| due <= now) {
            self.ftl.handle_timeout(PORT, now);
        }
        while let Some(action) = self.ftl.poll_action(PORT) {
            self.device.submit(action);
        }
        let mut wait = wait;
        while let Some((id, result)) = self.device.poll(wait) {
            wait = false;
            let now = self.now();
            self.ftl.handle_done(PORT, now, id, result);
            while let Some(action) = self.ftl.poll_action(PORT) {
                self.device.submit(action);
            }
        }
    }

    fn read(&mut self, run: &Run, depth: usize) -> io::Result<Figures> {
        let mut offsets = Offsets::over(run.bytes, BLOCK, run.seed);
        let mut slots = Slots::new(depth);
        let mut idle: Vec<usize> = (0..depth).collect();
        while !slots.is_over(run) {
            // One at a time: what goes out next does not wait for all that came in.
            let mut wait = true;
            loop {
                while let Some(slot) = idle.pop() {
                    slots.begin(slot);
                    let lba = Lba(offsets.draw() / BLOCK as u64);
                    match self.ftl.get(PORT, lba, Intent::Read, Token(slot as u64)) {
                        Get::Pending => {}
                        Get::Failed(error) => return Err(io::Error::other(error)),
                        Get::Ready(_) => {
                            slots.end(slot);
                            idle.push(slot);
                            if slots.is_over(run) {
                                break;
                            }
                        }
                    }
                }
                if !self.step(wait) {
                    break;
                }
                wait = false;
                while let Some(event) = self.ftl.poll_event(PORT) {
                    let Event::Page { token, result } = event else {
                        continue;
                    };
                    result.map_err(io::Error::other)?;
                    slots.end(token.0 as usize);
                    idle.push(token.0 as usize);
                }
            }
        }
        slots.figures(BLOCK)
    }

    /// Writes block behind block; a new volume takes them at its first addresses.
    fn append(&mut self, run: &Run) -> io::Result<Figures> {
        let source = vec![0x5a; BLOCK];
        let grains = run.bytes / BLOCK as u64;
        let mut slots = Slots::at_once(APPENDS);
        let mut idle: Vec<usize> = (0..APPENDS).collect();
        let mut next = 0;
        let mut over = false;
        loop {
            while !over && let Some(slot) = idle.pop() {
                slots.begin(slot);
                let got = self
                    .ftl
                    .get(PORT, Lba(next), Intent::Overwrite, Token(slot as u64));
                next += 1;
                match got {
                    Get::Pending => {}
                    Get::Failed(error) => return Err(io::Error::other(error)),
                    Get::Ready(page) => {
                        page.copy_in(0, &source);
                        slots.end(slot);
                        idle.push(slot);
                    }
                }
                over = next == grains || next.is_multiple_of(64) && slots.is_over(run);
            }
            if over && idle.len() == APPENDS {
                break;
            }
            self.turn(true);
            while let Some(event) = self.ftl.poll_event(PORT) {
                if let Event::Page { token, result } = event {
                    let page = result.map_err(io::Error::other)?;
                    page.copy_in(0, &source);
                    slots.end(token.0 as usize);
                    idle.push(token.0 as usize);
                }
            }
        }
        self.sync_all()?;
        slots.figures(BLOCK)
    }

    /// Makes everything durable.
    fn sync_all(&mut self) -> io::Result<()> {
        self.ftl.sync(PORT, LbaRange::ALL, Token(u64::MAX));
        loop {
            while let Some(event) = self.ftl.poll_event(PORT) {
                if let Event::Durable { token, result } = event
                    && token == Token(u64::MAX)
                {
                    return result.map_err(io::Error::other);
                }
            }
            self.turn(true);
        }
    }

    fn overwrite(&mut self, run: &Run, writers: usize) -> io::Result<Figures> {
        let source = vec![0x5a; BLOCK];
        let mut offsets = Offsets::over(run.bytes, BLOCK, run.seed);
        let mut slots = Slots::new(writers);
        let mut idle: Vec<usize> = (0..writers).collect();
        let write = |ftl: &Ftl, page: ftl::PageRef, slot: usize| {
            page.copy_in(0, &source);
            ftl.put_durable(PORT, page, Token(slot as u64));
        };
        while !slots.is_over(run) {
            while let Some(slot) = idle.pop() {
                slots.begin(slot);
                let lba = Lba(offsets.draw() / BLOCK as u64);
                match self
                    .ftl
                    .get(PORT, lba, Intent::Overwrite, Token(slot as u64))
                {
                    Get::Pending => {}
                    Get::Failed(error) => return Err(io::Error::other(error)),
                    Get::Ready(page) => write(&self.ftl, page, slot),
                }
            }
            self.turn(true);
            while let Some(event) = self.ftl.poll_event(PORT) {
                match event {
                    Event::Page { token, result } => {
                        let page = result.map_err(io::Error::other)?;
                        write(&self.ftl, page, token.0 as usize);
                    }
                    Event::Durable { token, result } => {
                        result.map_err(io::Error::other)?;
                        slots.end(token.0 as usize);
                        idle.push(token.0 as usize);
                    }
                }
            }
        }
        slots.figures(BLOCK)
    }
}
