//! The reactor threads of a target.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use softrdma::{Config, RegionTable};
use tracing::warn;

use super::core::{Core, CoreParts};
use super::job::Job;
use super::lane::Lanes;
use super::media::Media;
use super::pages::FlashPages;
use super::reception::{self, Reception};
use super::settings::Settings;
use crate::client::WINDOW_MAX;
use crate::credentials::ANONYMOUS;
use crate::reactor::Inbox;

/// Pages that a connection pins at most, to read ahead of what its socket takes.
const READ_WINDOW_PAGES: usize = 64;

/// Reactors that run. They use the descriptors of the volume by number, so they end before these are closed: at the latest when
/// this is dropped, which does not close the volume.
#[derive(Debug)]
pub(super) struct Reactors {
    inboxes: Vec<Arc<Inbox<Job>>>,
    connections: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Reactors {
    /// Starts them, one for each inbox.
    pub(super) fn start(
        settings: &Settings,
        pages: &dyn Fn(usize) -> FlashPages,
        (media, lanes): (&Media, Option<&Arc<Lanes>>),
        stags: &Arc<RegionTable>,
        inboxes: Vec<Arc<Inbox<Job>>>,
        reception: &dyn Fn(usize) -> Reception,
        epoch: Instant,
    ) -> Result<Self> {
        let connections = Arc::new(AtomicUsize::new(0));
        let mut reactors = Self {
            inboxes,
            connections: Arc::clone(&connections),
            threads: Vec::new(),
        };
        for index in 0..settings.reactors {
            let pages = pages(index);
            let inboxes = &reactors.inboxes;
            let waker = inboxes[index].waker().clone();
            let wake = Box::new(move || waker.wake());
            pages.ftl.set_waker(pages.port, wake);
            let parts = CoreParts {
                index,
                pages,
                inbox: Arc::clone(&inboxes[index]),
                peers: inboxes.to_vec(),
                media: media.clone(),
                lanes: lanes.filter(|_| index == 0).cloned(),
                table: Arc::clone(stags),
                reception: reception(index),
                config: Config {
                    protection_domain: ANONYMOUS,
                    // CRCs are used when the peer asks; beyond loopback they always are.
                    crc: settings.listen.is_some_and(|at| !at.ip().is_loopback()),
                    read_window_pages: READ_WINDOW_PAGES,
                    private_profile: true,
                    atomics_kept: WINDOW_MAX,
                    ..reception::config()
                },
                connections: Arc::clone(&connections),
                poll: settings.poll,
                spin: settings.spin,
                epoch,
            };
            // The ring belongs to the thread that made it, so the core is made there; its failure is told here.
            let (made, outcome) = sync_channel(1);
            let thread = Builder::new()
                .name(format!("reactor-{index}"))
                .spawn(move || match Core::new(parts) {
                    Ok(core) => {
                        let _ = made.send(Ok(()));
                        core.run()
                    }
                    Err(error) => {
                        let _ = made.send(Err(error));
                        Ok(())
                    }
                })?;
            outcome
                .recv()
                .context("a reactor ended while starting")?
                .context(
                    "cannot set up io_uring (Linux 6.1 or later is needed, and it must be allowed)",
                )?;
            reactors.threads.push(thread);
        }
        Ok(reactors)
    }

    pub(super) fn inboxes(&self) -> &[Arc<Inbox<Job>>] {
        &self.inboxes
    }

    /// How many connections all of them have.
    pub(super) fn connections(&self) -> &Arc<AtomicUsize> {
        &self.connections
    }

    /// Whether one has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends them; what came of each.
    pub(super) fn end(&mut self) -> Vec<Result<()>> {
        for inbox in &self.inboxes {
            let _ = inbox.send(Job::End);
        }
        let ended = self.threads.drain(..).map(|thread| {
            let result = thread.join();
            let result = result.map_err(|_| anyhow!("a reactor panicked"));
            result.and_then(|result| result.context("a reactor failed"))
        });
        ended.collect()
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        // What has ended in order has none left.
        for error in self.end().into_iter().filter_map(Result::err) {
            warn!("{error:#}");
        }
    }
}
