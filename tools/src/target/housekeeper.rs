//! What has to happen now and then, whether or not anybody asks for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use contigfs::{BlockStore, Fs};
use ftl::Ftl;
use ftl::device::MediaError;
use tracing::{info, warn};

use super::volume;
use crate::credentials::{Registry, unix_now};
use crate::devices::MediaPlaces;

/// Sizes and times of files, which nobody waits for, are written out after this long at the latest.
const PERIOD: Duration = Duration::from_secs(5);
/// Between looks whether a device of an array is lost.
const PERIOD_OF_ARRAY: Duration = Duration::from_secs(1);

/// A thread that writes out what the file system holds back, says what the media have lost, and looks after stored
/// registrations. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Housekeeper {
    /// Who asks it to write again what may be lost waits until what was sent is dropped.
    asks: Option<Sender<Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts to look after `fs` and the volume below it.
    pub(super) fn start<S: BlockStore + 'static>(
        fs: Arc<Fs<S>>,
        ftl: Arc<Ftl>,
        registry: Arc<Registry<S>>,
        places: MediaPlaces,
    ) -> io::Result<Self> {
        let (asks, asked) = channel::<Sender<()>>();
        let mut known = Known::of(&ftl);
        let period = match ftl.devices().is_empty() {
            true => PERIOD,
            false => PERIOD_OF_ARRAY,
        };
        let thread = Builder::new().name("housekeeper".into()).spawn(move || {
            let mut since = Instant::now();
            loop {
                let asked = asked.recv_timeout(period);
                known.renew(&fs, &ftl);
                match asked {
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(_) => continue,
                    Err(RecvTimeoutError::Timeout) if since.elapsed() < PERIOD => continue,
                    Err(RecvTimeoutError::Timeout) => {}
                }
                since = Instant::now();
                if let Err(error) = fs.sync_all() {
                    warn!(%error, "cannot write out sizes and times of files");
                }
                registry.tick(unix_now());
                tell_faults(&ftl, &places);
            }
            // Those since the last time.
            tell_faults(&ftl, &places);
        })?;
        Ok(Self {
            asks: Some(asks),
            thread: Some(thread),
        })
    }

    /// Writes again what may have been lost with a device since the last look; returns when that is done.
    pub(super) fn renew(&self) {
        let (asks, done) = channel();
        if let Some(housekeeper) = &self.asks
            && housekeeper.send(asks).is_ok()
        {
            // It says nothing: its end is the answer.
            let _ = done.recv();
        }
    }
}

/// What the file system is found by, as far as it is known, which may have been lost with a device.
#[derive(Debug)]
struct Known {
    /// Devices that were lost before it was known: what else they had nobody knows.
    before: usize,
    /// It was written again when so many devices were lost.
    lost: usize,
    /// It was said that it can not be, with so many lost.
    told: usize,
}

impl Known {
    /// What there is to know of a volume that has just been opened.
    fn of(ftl: &Ftl) -> Self {
        Self {
            before: volume::lost_devices(ftl),
            lost: 0,
            told: 0,
        }
    }

    /// Writes it again if another device is lost since: the target knows what it said, and when it has ended nobody does.
    fn renew<S: BlockStore>(&mut self, fs: &Fs<S>, ftl: &Ftl) {
        let lost = volume::lost_devices(ftl);
        if lost == self.lost || ftl.failure().is_some() {
            return;
        }
        let renewed = fs.renew_root().and_then(|()| match lost > self.before {
            true => fs.renew_what_is_known(),
            false => Ok(0),
        });
        match renewed {
            Ok(grains) => {
                self.lost = lost;
                if grains > 0 {
                    info!(
                        grains,
                        "what files are found by was written again, as far as it is known"
                    );
                }
            }
            // Later, perhaps.
            Err(_) if self.told == lost => {}
            Err(error) => {
                self.told = lost;
                warn!(%error, "cannot write again what the file system is found by");
            }
        }
    }
}

/// Says where the media have failed, and how often they have altogether: not each fault of very many is remembered.
fn tell_faults(ftl: &Ftl, places: &MediaPlaces) {
    let faults = ftl.take_media_faults();
    // A device that has failed was reported as such, and all that lies on it has.
    let mut gone: BTreeMap<String, u64> = BTreeMap::new();
    for fault in &faults {
        let (device, grain) = places.find(fault.place);
        match fault.error {
            Some(MediaError::Gone | MediaError::Missing) => *gone.entry(device).or_default() += 1,
            _ => warn!(device, grain, %fault, "a grain cannot be read as it was written"),
        }
    }
    for (device, grains) in gone {
        warn!(
            device,
            grains, "grains were asked for that lie on a device that is gone"
        );
    }
    if !faults.is_empty() {
        let stats = ftl.stats();
        warn!(
            damaged = stats.damaged,
            failed = stats.fills_failed,
            "reads of grains that failed since the volume was opened"
        );
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}
