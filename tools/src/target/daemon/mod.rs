//! The target as a program: volume, file system, endpoint and mount are assembled ([`start`]), run, and are taken down in order.

mod engine;
mod files;
mod prepared;
mod ready_file;
mod start;

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use contigfs::fuse::Mounted;
use contigfs::{Fs, Sweeper};
use ftl::device::FileDevice;
use ftl::{ArrayDevice, Ftl};
use tracing::warn;

pub use self::prepared::Prepared;
use self::ready_file::ReadyFile;
use super::handover::{Handover, Replacement};
use super::housekeeper::Housekeeper;
use super::job::{Job, ask_all};
use super::lane::Lanes;
use super::mapped::Mapped;
use super::mounting;
use super::privileges::EnderThread;
use super::reactors::Reactors;
use super::readahead::Readahead;
use super::snapshots::SnapshotReaders;
use super::store::TargetStore;
use super::tls_door::TlsDoor;
use super::volume;
use crate::credentials::Registry;
use crate::exporter::Exporter;

/// How long connections may take to end in order.
const DRAIN: Duration = Duration::from_secs(2);
/// The same when another target goes on with them.
const DRAIN_FOR_ANOTHER: Duration = Duration::from_millis(300);

/// A running target.
#[derive(Debug)]
pub struct Target {
    address: Option<SocketAddr>,
    tls_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    tls_door: Option<TlsDoor>,
    exporter: Option<Exporter>,
    mounted: Option<Mounted>,
    mapped: Arc<Mapped>,
    fs: Arc<Fs<TargetStore>>,
    reactors: Reactors,
    ftl: Arc<Ftl>,
    device: ArrayDevice<FileDevice>,
    /// For whoever makes the volume larger; gone before the device is closed.
    file: Option<Arc<File>>,
    lanes: Option<Arc<Lanes>>,
    readahead: Option<Arc<Readahead>>,
    snapshots: Option<SnapshotReaders>,
    sweeper: Option<Sweeper>,
    control: Vec<JoinHandle<()>>,
    housekeeper: Option<Housekeeper>,
    privileges: Option<EnderThread>,
    /// What is told to the next target, and where; nothing if there is what it could not vouch for.
    farewell: Option<(Arc<Registry<TargetStore>>, u64)>,
    handover: Option<Handover>,
    ready_file: Option<ReadyFile>,
}

impl Target {
    /// Where clients connect, if they can.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Whether clients can connect.
    pub fn is_reachable(&self) -> bool {
        self.address.or(self.tls_address).is_some()
    }

    /// Where clients connect by TLS, if they can.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// Where monitoring systems ask, if they can.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// What clients need and has ended by itself, if something has: only what is broken does.
    pub fn failed(&self) -> Option<&'static str> {
        if self.reactors.has_ended() {
            return Some("a reactor");
        }
        if self.control.iter().any(JoinHandle::is_finished) {
            return Some("a thread that answers clients");
        }
        let door = self.tls_door.as_ref();
        door.filter(|door| door.has_ended())
            .map(|_| "the door for TLS")
    }

    /// Whether the mount has been removed from outside.
    pub fn has_lost_mount(&self) -> bool {
        self.mounted.as_ref().is_some_and(Mounted::is_finished)
    }

    /// Waits that long for another target that wants to take over.
    pub fn asked_to_end(&self, patience: Duration) -> Option<Replacement> {
        match &self.handover {
            Some(handover) => handover.asked(patience),
            None => {
                std::thread::sleep(patience);
                None
            }
        }
    }

    /// Ends in order, and lets another target go on.
    pub fn hand_over(self, to: Replacement) -> Result<()> {
        let result = self.end(DRAIN_FOR_ANOTHER);
        drop(to);
        result
    }

    /// Ends in order: mount, connections, file system, log. Afterwards the volume is clean.
    pub fn stop(mut self) -> Result<()> {
        // One that asks to take over just now waits for the end of this, too.
        let successor = self.handover.take().and_then(Handover::end);
        let result = self.end(DRAIN);
        drop(successor);
        result
    }

    /// Ends; connections may take so long to do so in order.
    fn end(mut self, drain: Duration) -> Result<()> {
        // First: a target that takes over wants this name.
        drop(self.handover.take());
        // Before the reactors: they get no more connections.
        drop(self.tls_door.take());
        // It knows what is closed below, and a target that takes over wants its port.
        drop(self.exporter.take());
        let mut first_error = None;
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                warn!("{error:#}");
                first_error.get_or_insert(error);
            }
        };
        // What is written out below may lie on a device that has just been lost.
        if let Some(housekeeper) = &self.housekeeper {
            housekeeper.renew();
        }
        if let Some(mounted) = self.mounted.take() {
            note(mounting::unmount(mounted));
        }
        drop(self.sweeper.take());
        drop(self.housekeeper.take());
        note(
            self.fs
                .sync_all()
                .context("cannot write out the file system"),
        );
        if let Some(readahead) = &self.readahead {
            readahead.stop();
        }
        ask_all(self.reactors.inboxes(), |hung_up| {
            Job::HangUp(drain, hung_up)
        });
        for thread in self.control.drain(..) {
            note(
                thread
                    .join()
                    .map_err(|_| anyhow!("a control thread panicked")),
            );
        }
        // Only connections and control threads ask for these.
        drop(self.privileges.take());
        drop(self.snapshots.take());
        // Files that connections had open for writing got their new times when these ended.
        let settled = self.fs.sync_all();
        if let Some((registry, verifier)) = self.farewell.take()
            && settled.is_ok()
            && !volume::has_lost_devices(&self.ftl)
            && let Err(error) = registry.say_farewell(self.ftl.info().session, verifier)
        {
            // Clients will doubt more than they need to.
            warn!(%error, "cannot tell the next target that this one has ended in order");
        }
        note(settled.context("cannot write out the times of files that clients had open"));
        // Whoever is in the middle of using it keeps it for a moment longer.
        drop(self.file.take());
        // What threads of a mount or a client have set going without being waited for only the reactors carry out.
        let closed = volume::close(&self.reactors.inboxes()[0]);
        // Whoever waits for the volume waits for them, so they are the last to end.
        self.reactors.end().into_iter().for_each(&mut note);
        note(match closed {
            Some(closed) => closed.context("cannot close the volume"),
            None => volume::close_alone(self.ftl, self.device, self.lanes.as_deref()),
        });
        if let Some(file) = &self.ready_file {
            file.remove();
        }
        first_error.map_or(Ok(()), Err)
    }
}
