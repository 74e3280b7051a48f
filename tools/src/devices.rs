//! The devices of a volume by their paths: opening them, in any order, and naming them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use ftl::device::DeviceOpenError;
use ftl::{ArrayDevice, Device, DeviceUse, FileDevice, Ftl, Pba};
use serde_json::{Value, json};

/// What is to be done with the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is written.
    Read,
    /// Everything.
    Write,
    /// The same, although devices of the volume may be missing.
    Degraded,
    /// Nothing is written, although devices may be missing.
    ReadDegraded,
}

impl Access {
    /// Whether devices may be missing.
    const fn is_degraded(self) -> bool {
        matches!(self, Self::Degraded | Self::ReadDegraded)
    }
}

/// Opens the devices of a volume.
///
/// # Errors
/// Names the device that can not be opened, is missing, or does not belong to the others, and the way out.
pub fn open(paths: &[PathBuf], access: Access) -> Result<ArrayDevice<FileDevice>> {
    // What stands between commas may be nothing at all.
    if paths.is_empty() {
        bail!("no device given");
    }
    refuse_twice(paths)?;
    let mut devices = Vec::new();
    for path in paths {
        let device = match access {
            Access::Read | Access::ReadDegraded => FileDevice::open_read_only(path),
            Access::Write | Access::Degraded => FileDevice::open(path),
        };
        let device = device.map_err(|error| match error {
            DeviceOpenError::NotFound { .. } => {
                let error = anyhow::Error::from(error);
                let name = path.display();
                anyhow!("{error} (`flashnet mkfs --size 1GiB {name}` makes an image)")
            }
            error => error.into(),
        })?;
        devices.push((path.display().to_string(), device));
    }
    match ArrayDevice::assemble(devices, access.is_degraded()) {
        Ok(device) => Ok(device),
        Err(error) if error.is_missing() => bail!(
            "{error}; serve goes on without it if told so by --degraded, and what is on it is lost then (fsck --degraded tells what that is)"
        ),
        Err(error) => Err(error.into()),
    }
}

/// The devices that a volume lacks, by the paths that they had when it was formatted.
pub fn missing<D: Device>(device: &D) -> Vec<PathBuf> {
    let all = device.members().map_or(&[][..], |members| members.list());
    let missing = all.iter().filter(|member| !member.is_live());
    missing.map(|member| member.name().into()).collect()
}

/// One path twice would only be told as being in use.
pub fn refuse_twice(paths: &[PathBuf]) -> Result<()> {
    let same = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    for (n, path) in paths.iter().enumerate() {
        if paths[..n].iter().any(|other| same(other) == same(path)) {
            bail!("{} is named twice", path.display());
        }
    }
    Ok(())
}

/// Whether all of them are block devices.
pub fn are_blocks(paths: &[PathBuf]) -> bool {
    let is_block = |path: &PathBuf| {
        let known = std::fs::metadata(path);
        known.is_ok_and(|known| known.file_type().is_block_device())
    };
    paths.iter().all(is_block)
}

/// For people: `a.img, b.img`.
pub fn names(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}

/// As fstab and the mount table have them: `a.img,b.img`.
pub fn spec(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(",")
}

/// The devices of an entry of fstab or of the mount table; a file whose name has a comma is itself.
pub fn from_spec(spec: &Path) -> Vec<PathBuf> {
    if spec.exists() {
        return vec![spec.to_owned()];
    }
    let parts = spec.as_os_str().as_bytes().split(|&byte| byte == b',');
    parts
        .filter(|part| !part.is_empty())
        .map(|part| PathBuf::from(OsStr::from_bytes(part)))
        .collect()
}

/// For machines: a path, or a list of several. JSON has no bytes that are no text; U+FFFD stands for them.
pub fn names_json(paths: &[PathBuf]) -> Value {
    let name = |path: &PathBuf| path.display().to_string();
    match paths {
        [path] => json!(name(path)),
        several => several.iter().map(name).collect(),
    }
}

/// Where a grain of a volume lies, for people.
#[derive(Debug)]
pub struct MediaPlaces {
    /// Of all of them.
    pub paths: Vec<PathBuf>,
    /// None if there is only one.
    devices: Vec<DeviceUse>,
    places: ftl::Places,
}

impl MediaPlaces {
    /// Those of a volume on `paths`.
    pub fn of(ftl: &Ftl, paths: &[PathBuf]) -> Self {
        Self {
            paths: paths.to_vec(),
            devices: ftl.devices(),
            places: ftl.info().geometry.places,
        }
    }

    /// The device, and the grain on it.
    pub fn find(&self, at: Pba) -> (String, u64) {
        match self.places.device_of(at) {
            Some(device) if device < self.devices.len() => {
                let start = self.places.start(device).0;
                (self.devices[device].name.clone(), at.0 - start)
            }
            _ => (names(&self.paths), at.0),
        }
    }
}
