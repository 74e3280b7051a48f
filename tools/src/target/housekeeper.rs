//! What has to happen now and then, whether or not anybody asks for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use contigfs::{BlockStore, Fs};
use ftl::Ftl;
use ftl::device::MediaError;
use tracing::warn;

use crate::credentials::{Registry, unix_now};
use crate::devices::MediaPlaces;

/// Sizes and times of files, which nobody waits for, are written out after this long at the latest.
const PERIOD: Duration = Duration::from_secs(5);

/// A thread that writes out what the file system holds back, says what the media have lost, and looks after stored
/// registrations. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Housekeeper {
    stop: Option<Sender<()>>,
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
        let (stop, stopped) = channel();
        let thread = Builder::new().name("housekeeper".into()).spawn(move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
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
            stop: Some(stop),
            thread: Some(thread),
        })
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
            Some(MediaError::Gone) => *gone.entry(device).or_default() += 1,
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
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}
