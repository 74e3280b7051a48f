//! `Volume`: a thread-safe blocking front end over an engine and its device, on a port of its own.
//!
//! Whoever has to wait drives the device: submits what the engine wants, waits for a completion, hands out answers.
//! Threads take turns at that. A volume is the only driver of its engine.

use crate::addr::{GRAIN_BYTES, Lba, LbaRange, SegmentId};
use crate::batch::AtomicBatch;
use crate::device::{Device, MediaError};
use crate::engine::{Ftl, Get};
use crate::error::{CommitError, DurableError, GetError, OpenError, ResizeError};
use crate::ids::{Intent, Port, Time, Token};
use crate::open::OpenOptions;
use crate::page::PageRef;
use crate::port::Event;
use crate::recover::RecoveryReport;
use crate::snapshot::SnapshotChange;
use crate::space::Space;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Why an operation on a volume failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The volume is full.
    #[error("volume full")]
    NoSpace,
    /// An account has reached its limit.
    #[error("limit of an account reached")]
    Quota,
    /// A grain is damaged on the media.
    #[error("{lba} is damaged on the media")]
    Damaged {
        /// The grain.
        lba: Lba,
    },
    /// What lies in a segment can not be read.
    #[error("what lies in {segment} can not be read, so it can not be relocated")]
    Unreadable {
        /// The segment.
        segment: SegmentId,
    },
    /// The size can not be had.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// A grain can not be read.
    #[error("{lba} can not be read: {error}")]
    Media {
        /// The grain.
        lba: Lba,
        /// What the device said.
        error: MediaError,
    },
    /// An earlier write or flush failed: no more changes.
    #[error("volume failed: {0}")]
    Failed(MediaError),
    /// Shut down.
    #[error("volume is shut down")]
    Shutdown,
    /// More than one batch may hold.
    #[error("batch too large")]
    BatchTooLarge,
    /// What is to go along with a batch can not: sync it first, then commit the batch without it.
    #[error("too much goes along with the batch")]
    ManyAlong,
    /// A range that is moved or cloned overlaps another part of its batch.
    #[error("a remap or clone overlaps another part of the batch")]
    Overlap,
    /// Beyond the address space.
    #[error("address out of range")]
    OutOfRange,
}

impl From<GetError> for VolumeError {
    fn from(error: GetError) -> Self {
        match error {
            GetError::NoSpace => Self::NoSpace,
            GetError::Quota => Self::Quota,
            GetError::Damaged { lba } => Self::Damaged { lba },
            GetError::Media { lba, error } => Self::Media { lba, error },
            GetError::Failed(error) => Self::Failed(error),
            GetError::Shutdown => Self::Shutdown,
            GetError::OutOfRange => Self::OutOfRange,
        }
    }
}

impl From<DurableError> for VolumeError {
    fn from(error: DurableError) -> Self {
        match error {
            DurableError::NoSpace => Self::NoSpace,
            DurableError::Quota => Self::Quota,
            DurableError::Damaged { lba } => Self::Damaged { lba },
            DurableError::Media { lba, error } => Self::Media { lba, error },
            DurableError::Lost { lba } => Self::Media {
                lba,
                error: MediaError::Gone,
            },
            DurableError::Unreadable { segment } => Self::Unreadable { segment },
            DurableError::Failed(error) => Self::Failed(error),
            DurableError::Shutdown => Self::Shutdown,
        }
    }
}

impl From<CommitError> for VolumeError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::TooLarge => Self::BatchTooLarge,
            CommitError::OutOfRange => Self::OutOfRange,
            CommitError::Overlap => Self::Overlap,
            CommitError::ManyAlong => Self::ManyAlong,
        }
    }
}

#[derive(Debug)]
struct Driver<D> {
    device: D,
    answers: HashMap<Token, Answer>,
}

#[derive(Debug)]
enum Answer {
    Page(Result<PageRef, GetError>),
    Durable(Result<(), DurableError>),
}

/// A volume with its device.
#[derive(Debug)]
pub struct Volume<D: Device> {
    // The device goes before the engine, whose memory it may still be using.
    driver: Mutex<Driver<D>>,
    ftl: Arc<Ftl>,
    tokens: AtomicU64,
    origin: Instant,
}

const PORT: Port = Port(0);

impl<D: Device> Volume<D> {
    /// Opens the volume on `device`. Of the options, `ports` and both clocks are chosen here.
    pub fn open(mut device: D, options: OpenOptions) -> Result<(Self, RecoveryReport), OpenError> {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let options = OpenOptions {
            ports: 1,
            now: Time(0),
            wall_clock_ns: unix.map_or(0, |d| d.as_nanos() as u64),
            ..options
        };
        let (ftl, report) = Ftl::open(&mut device, options)?;
        Ok((Self::new(ftl, device), report))
    }

    /// Puts an engine and its device together. The engine's port 0 is driven here and nowhere else.
    pub fn new(ftl: Arc<Ftl>, device: D) -> Self {
        let driver = Driver {
            device,
            answers: HashMap::new(),
        };
        Self {
            ftl,
            driver: Mutex::new(driver),
            tokens: AtomicU64::new(0),
            origin: Instant::now(),
        }
    }

    /// The engine.
    pub fn ftl(&self) -> &Arc<Ftl> {
        &self.ftl
    }

    fn driver(&self) -> MutexGuard<'_, Driver<D>> {
        self.driver.lock().expect("volume poisoned by a panic")
    }

    fn token(&self) -> Token {
        Token(self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    fn now(&self) -> Time {
        Time(self.origin.elapsed().as_nanos() as u64)
    }

    /// Runs `f` on the device, while nothing is in flight on its behalf. For tests that count or inject.
    pub fn with_device<R>(&self, f: impl FnOnce(&mut D) -> R) -> R {
        f(&mut self.driver().device)
    }

    /// Submits what the engine wants and collects what has completed; with `wait`, at least one thing.
    fn turn(&self, driver: &mut Driver<D>, wait: bool) -> bool {
        while let Some(action) = self.ftl.poll_action(PORT) {
            driver.device.submit(action);
        }
        let mut moved = false;
        while let Some((id, result)) = driver.device.poll(wait && !moved) {
            moved = true;
            self.ftl.handle_done(PORT, self.now(), id, result);
            while let Some(action) = self.ftl.poll_action(PORT) {
                driver.device.submit(action);
            }
        }
        while let Some(event) = self.ftl.poll_event(PORT) {
            moved = true;
            match event {
                Event::Page { token, result } => {
                    driver.answers.insert(token, Answer::Page(result));
                }
                Event::Durable { token, result } => {
                    driver.answers.insert(token, Answer::Durable(result));
                }
            }
        }
        moved
    }

    fn wait(&self, token: Token) -> Answer {
        loop {
            let mut driver = self.driver();
            if let Some(answer) = driver.answers.remove(&token) {
                return answer;
            }
            if self.turn(&mut driver, false) {
                continue;
            }
            if !self.turn(&mut driver, true) {
                // Nothing in flight: another thread holds what we wait for (pages of the pool), or the device rests.
                drop(driver);
                self.ftl.handle_timeout(PORT, self.now());
                std::thread::yield_now();
            }
        }
    }

    fn wait_durable(&self, token: Token) -> Result<(), VolumeError> {
        match self.wait(token) {
            Answer::Durable(result) => Ok(result?),
            Answer::Page(_) => unreachable!("token of a durability wait"),
        }
    }

    /// Carries on with background work without waiting: due timers, submissions, completions.
    pub fn tick(&self) {
        self.ftl.handle_timeout(PORT, self.now());
        self.turn(&mut self.driver(), false);
    }

    /// Pins a page.
    pub fn page(&self, lba: Lba, intent: Intent) -> Result<PageRef, VolumeError> {
        let token = self.token();
        match self.ftl.get(PORT, lba, intent, token) {
            Get::Ready(page) => Ok(page),
            Get::Failed(error) => Err(error.into()),
            Get::Pending => match self.wait(token) {
                Answer::Page(result) => Ok(result?),
                Answer::Durable(_) => unreachable!("token of a page"),
            },
        }
    }

    /// Reads bytes at a byte address of the logical space.
    pub fn read(&self, at: u64, mut buf: &mut [u8]) -> Result<(), VolumeError> {
        check(at, buf.len())?;
        let mut at = at;
        while !buf.is_empty() {
            let (lba, offset) = split(at);
            let len = buf.len().min(GRAIN_BYTES - offset);
            let (now, rest) = buf.split_at_mut(len);
            self.page(lba, Intent::Read)?.copy_out(offset, now);
            buf = rest;
            at += len as u64;
        }
        Ok(())
    }

    /// Writes bytes at a byte address of the logical space; visible on return, durable after a sync.
    pub fn write(&self, at: u64, mut data: &[u8]) -> Result<(), VolumeError> {
        check(at, data.len())?;
        let mut at = at;
        while !data.is_empty() {
            let (lba, offset) = split(at);
            let len = data.len().min(GRAIN_BYTES - offset);
            let whole = len == GRAIN_BYTES;
            let intent = if whole {
                Intent::Overwrite
            } else {
                Intent::Write
            };
            self.page(lba, intent)?.copy_in(offset, &data[..len]);
            data = &data[len..];
            at += len as u64;
        }
        if let Some(due) = self.ftl.poll_timeout()
            && due <= self.now()
        {
            self.tick();
        }
        Ok(())
    }

    /// Carries out a batch; atomic and durable on return.
    pub fn commit(&self, batch: AtomicBatch) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.commit(PORT, batch, token)?;
        self.wait_durable(token)
    }

    /// Carries out a batch; visible on return, and durable with the next sync of any range: see
    /// [`Ftl::commit_relaxed`].
    pub fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.commit_relaxed(PORT, batch, token)?;
        self.wait_durable(token)
    }

    /// As [`Ftl::commit_snapshot`]; durable on return.
    pub(crate) fn commit_snapshot(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.commit_snapshot(PORT, batch, change, token)?;
        self.wait_durable(token)
    }

    /// As [`Ftl::admit_images`]; so on return.
    pub(crate) fn admit_images(&self) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.admit_images(PORT, token);
        self.wait_durable(token)
    }

    /// Makes everything written in the range before durable.
    pub fn sync(&self, range: LbaRange) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.sync(PORT, range, token);
        self.wait_durable(token)
    }

    /// Forgets a range; durable on return.
    pub fn trim(&self, range: LbaRange) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.trim(PORT, range, token)?;
        self.wait_durable(token)
    }

    /// Moves a range without writing its data; durable on return. Nobody may hold a page of it, see [`Ftl::remap`].
    pub fn remap(&self, from: Lba, to: Lba, count: u64) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.remap(PORT, from, to, count, token)?;
        self.wait_durable(token)
    }

    /// Clones a range without writing its data; durable on return. Nobody may hold a page of it, see
    /// [`Ftl::clone_range`].
    pub fn clone_range(&self, from: Lba, to: Lba, count: u64) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.clone_range(PORT, from, to, count, token)?;
        self.wait_durable(token)
    }

    /// Reserves the unmapped grains of a range; durable on return.
    pub fn zero(&self, range: LbaRange) -> Result<(), VolumeError> {
        let mut batch = AtomicBatch::new();
        batch.zero(range);
        self.commit(batch)
    }

    /// Brings the map of a range into memory; the engine reads the rest as it is needed.
    pub fn load(&self, range: LbaRange) -> Result<(), VolumeError> {
        if self.ftl.is_map_loaded() {
            return Ok(());
        }
        let token = self.token();
        self.ftl.load(PORT, range, token);
        self.wait_durable(token)
    }

    /// First mapped grain of a range. What can not be read of the map seems unmapped; then the volume has failed.
    pub fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        // Whatever is wrong with the map, the volume says so to everybody who wants to change something.
        let _ = self.load(range);
        self.ftl.next_mapped(range)
    }

    /// Number of mapped grains in a range, with the same restriction.
    pub fn mapped_count(&self, range: LbaRange) -> u64 {
        let _ = self.load(range);
        self.ftl.mapped_count(range)
    }

    /// Gives the volume the size of a device of so many grains; durable on return. See [`Ftl::resize`].
    pub fn resize(&self, device_grains: u64) -> Result<(), VolumeError> {
        self.load(LbaRange::SPACE)?;
        let token = self.token();
        self.ftl.resize(PORT, device_grains, token)?;
        self.wait_durable(token)
    }

    /// Capacity and use.
    pub fn space(&self) -> Space {
        self.ftl.space()
    }

    /// Writes everything out and marks the volume clean. Nothing can be changed afterwards.
    pub fn shutdown(&self) -> Result<(), VolumeError> {
        let token = self.token();
        self.ftl.shutdown(PORT, token);
        self.wait_durable(token)
    }

    /// Gives the device back, waiting for what is in flight. What has not been synced is lost.
    pub fn into_device(self) -> D {
        let mut driver = self
            .driver
            .into_inner()
            .expect("volume poisoned by a panic");
        // The engine's memory must outlive what the device does with it.
        while driver.device.poll(true).is_some() {}
        driver.answers.clear();
        driver.device
    }
}

fn split(at: u64) -> (Lba, usize) {
    let grain = GRAIN_BYTES as u64;
    (Lba(at / grain), (at % grain) as usize)
}

fn check(at: u64, len: usize) -> Result<(), VolumeError> {
    let end = at.checked_add(len as u64);
    end.map(|_| ()).ok_or(VolumeError::OutOfRange)
}
