//! The devices of the volume as a reactor uses them: open files for its ring, and what is known of them together.

use std::os::fd::RawFd;
use std::sync::Arc;

use ftl::device::array::Splitter;
use ftl::{ArrayDevice, Device, FileDevice, Members};

use super::status::MediaMeters;

/// Open files, which whoever has the devices keeps open.
#[derive(Clone, Debug)]
pub(super) struct Media {
    files: Vec<Option<RawFd>>,
    members: Option<Arc<Members>>,
    meters: MediaMeters,
}

impl Media {
    /// Those of a volume.
    pub(super) fn of(device: &ArrayDevice<FileDevice>) -> Self {
        let files = device.devices().map(|file| file.map(FileDevice::raw_fd));
        Self {
            files: files.collect(),
            members: device.members().cloned(),
            meters: MediaMeters::new(device.devices().count()),
        }
    }

    /// What they were asked for.
    pub(super) fn meters(&self) -> &MediaMeters {
        &self.meters
    }

    /// A splitter for one reactor, if there are several devices.
    pub(super) fn splitter(&self) -> Option<Splitter> {
        self.members.clone().map(Splitter::new)
    }

    /// The file of the device, if there is only one.
    pub(super) fn only_fd(&self) -> Option<RawFd> {
        match (&self.members, self.files.as_slice()) {
            (None, [file]) => *file,
            _ => None,
        }
    }

    /// The file of a device that is there.
    pub(super) fn fd(&self, device: usize) -> RawFd {
        self.files[device].expect("nothing is asked of a device that is missing")
    }
}
