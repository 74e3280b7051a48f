//! What a target has of the system before it opens the volume.

use std::fs::File;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use socket2::Socket;
use tracing::warn;

use super::ready_file::ReadyFile;
use crate::descriptors;
use crate::target::handover::Sockets;
use crate::target::listening::{address_of, listen_on, listen_unless_taken, listens_at, port_of};
use crate::target::mounting;
use crate::target::settings::Settings;

/// Descriptors that a target takes beside those it has been prepared with, its devices, its reactors and the threads of its mount.
const DESCRIPTORS: usize = 16;
/// For each device: it is opened once more where it can be made larger.
const DESCRIPTORS_PER_DEVICE: usize = 2;
/// For each reactor: its ring, and what wakes it.
const DESCRIPTORS_PER_REACTOR: usize = 2;
/// What names the address for metrics.
const METRICS_OPTION: &str = "--metrics";

/// What a target has of the system before it opens the volume.
#[derive(Debug)]
pub struct Prepared {
    sockets: Sockets,
    /// Where monitoring systems ask; none also if somebody had the port, and it may be whom this target replaces.
    metrics: Option<Socket>,
    ready_file: Option<ReadyFile>,
    /// In the place of those that it opens: out of descriptors it would fail when whom it replaces has ended.
    descriptors: Vec<File>,
}

/// Where a target listens: sockets that are bound, and their addresses.
#[derive(Debug)]
pub(super) struct Listeners {
    pub sockets: Sockets,
    pub metrics: Option<Socket>,
    pub address: Option<SocketAddr>,
    pub tls_address: Option<SocketAddr>,
    pub metrics_address: Option<SocketAddr>,
}

impl Prepared {
    /// What a target with these settings needs of the system beside the volume, as far as it can be had while another one runs, whose
    /// sockets are `offered`: whoever is to be replaced goes on if this fails.
    ///
    /// The port for metrics is not handed over, and whether the one to be replaced has it or a stranger can not be told. So what is an
    /// error if nobody is replaced is left for later here: the port is free when the other has ended, and if it is not, that is no
    /// reason for not serving a volume that was served.
    pub fn new(settings: &Settings, offered: Option<Sockets>) -> Result<Self> {
        if let Some(dir) = &settings.mount {
            mounting::check(dir)?;
        }
        let ready_file = settings.ready_file.as_deref().map(ReadyFile::at);
        let ready_file = ready_file.transpose()?;
        let is_fresh = offered.is_none();
        let Sockets { plain, tls } = offered.unwrap_or_default();
        let ports: Vec<u16> = [&plain, &tls]
            .into_iter()
            .flatten()
            .filter_map(port_of)
            .collect();
        let listen = |at: Option<SocketAddr>, socket: Option<Socket>, option| {
            match socket.filter(|socket| listens_at(socket, at)) {
                // Its own, for another address or the other kind: when that has ended.
                None if at.is_some_and(|at| ports.contains(&at.port())) => Ok(None),
                taken => listen_on(at, taken, option),
            }
        };
        let sockets = Sockets {
            plain: listen(settings.listen, plain, "--listen")?,
            tls: listen(tls_listen(settings), tls, "--tls-listen")?,
        };
        let metrics = match settings.metrics {
            Some(at) if !is_fresh => listen_unless_taken(at, METRICS_OPTION)?,
            at => listen_on(at, None, METRICS_OPTION)?,
        };
        let descriptors = descriptors::set_aside(descriptors_of(settings))
            .context("a target needs more descriptors than it may have (`ulimit -n`)")?;
        Ok(Self {
            sockets,
            metrics,
            ready_file,
            descriptors,
        })
    }

    /// Whoever was replaced has ended: what could not be had beside it is had now, and descriptors are free for what is opened.
    pub(super) fn listen(self, settings: &Settings) -> Result<(Listeners, Option<ReadyFile>)> {
        let Self {
            sockets,
            metrics,
            ready_file,
            descriptors,
        } = self;
        drop(descriptors);
        let sockets = Sockets {
            plain: listen_on(settings.listen, sockets.plain, "--listen")?,
            tls: listen_on(tls_listen(settings), sockets.tls, "--tls-listen")?,
        };
        let metrics =
            listen_on(settings.metrics, metrics, METRICS_OPTION).unwrap_or_else(|error| {
                warn!("there are no metrics of this target: {error:#}");
                None
            });
        let listeners = Listeners {
            address: address_of(sockets.plain.as_ref())?,
            tls_address: address_of(sockets.tls.as_ref())?,
            metrics_address: address_of(metrics.as_ref())?,
            sockets,
            metrics,
        };
        Ok((listeners, ready_file))
    }
}

fn tls_listen(settings: &Settings) -> Option<SocketAddr> {
    settings.tls.as_ref().map(|tls| tls.listen)
}

/// Descriptors that a target opens when it starts, at most.
fn descriptors_of(settings: &Settings) -> usize {
    let threads = (settings.mount.as_ref()).map_or(0, |_| settings.fuse.threads_max());
    DESCRIPTORS
        + settings.devices.len() * DESCRIPTORS_PER_DEVICE
        + settings.reactors * DESCRIPTORS_PER_REACTOR
        + threads
}
