//! `ibv_reg_mr` for memory of this process that may be a mapped file of a flashnet volume (Listing 2 of the FlashNet paper).
//!
//! A program maps a file of a ContigFS mount and registers the mapping. What its peers then read and write one-sided is the
//! file on the *target*, not the memory of the program: a *flash region*. Registering any other memory makes an ordinary region
//! of the program's own endpoint. `tools/examples/listing2.rs` is the listing, line by line.
//!
//! ```text
//!   address ──/proc/self/maps──► (device, inode), offset in the file
//!   device ──/proc/self/mountinfo──► mount of a ContigFS ──xattr user.contigfs.target──► address of the target
//!   path of the mapping, below the mount ──open──► region of the target, inode ──must be──► inode of the mapping
//! ```
//!
//! # How the file is named to the target
//!
//! A mapping is known by its (device, inode). The target serves *paths*, because what a tenant may use is said in paths, and
//! opening by inode would pass by that. So the path is the name, and the inode is the proof: the kernel tells where the mapped
//! file is now, also when it has been renamed since; the target opens that path, and says which inode it has opened. If that
//! is another than the mapping's, somebody has renamed files between the two, and nothing is registered. The number proves it
//! because a mapping holds its file: the file is not freed while it is mapped, and so its number is not used again. A deleted file has
//! no path, and cannot be registered.
//!
//! # Whom to believe
//!
//! The address comes from the mount, and the client will present its token there. A mount of FUSE can be made by any user, so
//! only mounts that root or this process's user has made are believed ([`RegistrationError::ForeignMount`]).

mod maps;
mod mounts;

use std::collections::HashMap;
use std::ffi::CString;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::{fmt, fs, io};

use softrdma::verbs::{MemoryRegion, ProtectionDomain};
use softrdma::{Buffer, RegisterError, Rights, TaggedOffset};
use thiserror::Error;

use crate::client::{Client, ClientBuilder};
use crate::error::ClientError;
use crate::file::File;
use maps::Mapping;
use mounts::Mount;

/// Extended attribute of a mount that says where its target listens.
const TARGET_XATTR: &str = "user.contigfs.target";
/// Longest address.
const ADDRESS_BYTES_MAX: usize = 64;

/// Number of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Device {
    major: u32,
    minor: u32,
}

/// Why memory was not registered.
#[derive(Debug, Error)]
pub enum RegistrationError {
    /// Nothing is mapped at some of the addresses.
    #[error("nothing is mapped at {0:#x}")]
    Unmapped(u64),
    /// A file of a volume, and something else or not the bytes that follow.
    #[error(
        "the range from {start:#x} to {end:#x} is not one piece of one file: register the pieces"
    )]
    Mixed {
        /// First address.
        start: u64,
        /// Behind the last.
        end: u64,
    },
    /// Of a file, no bytes would mean all that follow.
    #[error("no bytes of {0} were to be registered")]
    Empty(PathBuf),
    /// What is stored does not reach the file.
    #[error("{0} is mapped privately: map it shared")]
    Private(PathBuf),
    /// Peers could write what the program cannot.
    #[error("{0} is mapped for reading only, and peers shall write: map it for writing")]
    ReadOnly(PathBuf),
    /// The access of a peer would be one of this program, and end it.
    #[error(
        "the memory at {start:#x} may not be {what} by the program, and peers shall: map it so, or register it with fewer rights"
    )]
    Protected {
        /// First address of the piece.
        start: u64,
        /// What the program may not do with it.
        what: &'static str,
    },
    /// The file has no name any more, or another one by now, or is covered by another mount.
    #[error(
        "{0} is not the file that is mapped: it has been deleted, replaced or covered by another mount"
    )]
    Replaced(PathBuf),
    /// Paths are UTF-8 on the wire.
    #[error("the path {0:?} is not UTF-8")]
    NotUtf8(PathBuf),
    /// The mount does not say where its target is.
    #[error("{0} does not say where its target listens: is it served with --listen?")]
    NoTarget(PathBuf),
    /// It may be anybody's program that answers there.
    #[error("{0} was mounted by another user: its target is not to be trusted")]
    ForeignMount(PathBuf),
    /// The tables of this process cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The target said no.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The region table said no.
    #[error(transparent)]
    Region(#[from] RegisterError),
}

/// Registered memory; ends when dropped.
#[derive(Debug)]
pub enum Region {
    /// Bytes of a file: peers use them at the target.
    Flash(FlashRegion),
    /// Memory of this process: peers use it at the program's own endpoint. Its tagged offsets are its addresses.
    Memory(MemoryRegion),
}

/// A region of a target.
#[derive(Debug)]
pub struct FlashRegion {
    file: File,
    target: SocketAddr,
}

impl FlashRegion {
    /// Where peers connect to.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// The region as a file, to read and write it without the mapping; its STags and address are its
    /// [`credentials`](File::credentials).
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// What a range of addresses is.
#[derive(Debug)]
enum Found {
    Memory,
    File {
        mount: Mount,
        mapping: Mapping,
        /// Of the first address, in the file.
        offset: u64,
    },
}

/// Registers memory of this process.
pub struct Registrar {
    domain: ProtectionDomain,
    builder: ClientBuilder,
    clients: HashMap<SocketAddr, Client>,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registrar").finish_non_exhaustive()
    }
}

impl Registrar {
    /// Plain memory becomes regions of `domain`; targets are connected to as `builder` says.
    #[must_use]
    pub fn new(domain: &ProtectionDomain, builder: ClientBuilder) -> Self {
        Self {
            domain: domain.clone(),
            builder,
            clients: HashMap::new(),
        }
    }

    /// `ibv_reg_mr`: registers `len` bytes from `start` on.
    ///
    /// # Errors
    /// See [`RegistrationError`]; nothing was registered.
    ///
    /// # Safety
    /// Unless it is a flash region, the memory has to stay mapped until the region is dropped, and nobody may hold a Rust
    /// reference to it that does not allow for changes (or, with rights to read only, for readers) at any moment.
    pub unsafe fn register(
        &mut self,
        start: NonNull<u8>,
        len: usize,
        rights: Rights,
    ) -> Result<Region, RegistrationError> {
        let first = start.as_ptr().addr() as u64;
        let addresses = first..first.saturating_add(len as u64);
        let maps = maps::parse(&fs::read("/proc/self/maps")?);
        let mounts = mounts::parse(&fs::read("/proc/self/mountinfo")?);
        match classify(&addresses, &maps, &mounts)? {
            Found::Memory => {
                check_protection(&addresses, &maps, rights)?;
                let skipped = start.as_ptr().addr() % 8;
                let aligned = start.as_ptr().wrapping_sub(skipped);
                let aligned = NonNull::new(aligned).expect("the first page is never mapped");
                // SAFETY: the caller keeps the memory; the bytes before it are in the same page.
                let buffer = unsafe { Buffer::adopt(aligned, skipped + len) };
                let (bytes, base) = (skipped..skipped + len, TaggedOffset(first));
                let region = self.domain.register_range(&buffer, bytes, base, rights)?;
                Ok(Region::Memory(region))
            }
            Found::File {
                mount,
                mapping,
                offset,
            } => self
                .open(&mount, &mapping, offset, len as u64, rights)
                .map(Region::Flash),
        }
    }

    fn open(
        &mut self,
        mount: &Mount,
        mapping: &Mapping,
        offset: u64,
        length: u64,
        rights: Rights,
    ) -> Result<FlashRegion, RegistrationError> {
        let path = &mapping.path;
        if length == 0 {
            return Err(RegistrationError::Empty(path.clone()));
        }
        let write = rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC);
        if !mapping.shared {
            return Err(RegistrationError::Private(path.clone()));
        }
        if write && !mapping.writable {
            return Err(RegistrationError::ReadOnly(path.clone()));
        }
        // SAFETY: no arguments.
        let own = unsafe { libc::geteuid() };
        if mount.owner.is_none_or(|owner| owner != 0 && owner != own) {
            return Err(RegistrationError::ForeignMount(mount.point.clone()));
        }
        let replaced = || RegistrationError::Replaced(path.clone());
        // A deleted file is shown with a mark behind its name, which may be the name of another one. And another file system, with
        // another target, may have been mounted over that of the mapping.
        let here = fs::metadata(path).map_err(|_| replaced())?;
        let mounted = fs::metadata(&mount.point).map_err(|_| replaced())?;
        let is_covered = [&here, &mounted].map(device_of) != [mapping.device; 2];
        if is_covered || here.ino() != mapping.inode {
            return Err(replaced());
        }
        let there = mount.path_in_volume(path).ok_or_else(replaced)?;
        let there = there.to_str().map(str::to_owned);
        let there = there.ok_or_else(|| RegistrationError::NotUtf8(path.clone()))?;

        let target = target_of(&mount.point)?;
        let open = |client: &Client| {
            let options = client.options().write(write).range(offset, length);
            options.open(&there)
        };
        let file = match self.clients.get(&target).map(open) {
            // The client has given the target up, which may be back since.
            None | Some(Err(ClientError::Ended(_))) => {
                let client = self.builder.clone().connect(target)?;
                let file = open(&client);
                self.clients.insert(target, client);
                file?
            }
            Some(opened) => opened?,
        };
        if file.credentials().inode != mapping.inode {
            return Err(replaced());
        }
        Ok(FlashRegion { file, target })
    }
}

/// Whether the program itself may do with its memory what peers may.
fn check_protection(
    addresses: &Range<u64>,
    maps: &[Mapping],
    rights: Rights,
) -> Result<(), RegistrationError> {
    let read = rights.intersects(Rights::REMOTE_READ | Rights::REMOTE_ATOMIC);
    let written = rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC);
    let touched = maps.iter().filter(|mapping| {
        mapping.addresses.start < addresses.end && addresses.start < mapping.addresses.end
    });
    for mapping in touched {
        let what = match mapping {
            _ if written && !mapping.writable => "written",
            _ if read && !mapping.readable => "read",
            _ => continue,
        };
        let start = mapping.addresses.start.max(addresses.start);
        return Err(RegistrationError::Protected { start, what });
    }
    Ok(())
}

/// What lies at `addresses`: one piece of one file of a volume, or nothing of any.
fn classify(
    addresses: &Range<u64>,
    maps: &[Mapping],
    mounts: &[Mount],
) -> Result<Found, RegistrationError> {
    let mount_of = |mapping: &Mapping| {
        // A volume may be mounted at several places: the one where the kernel says the file is.
        let here = |mount: &&Mount| {
            mount.device == mapping.device && mount.path_in_volume(&mapping.path).is_some()
        };
        let same = |mount: &&Mount| mount.device == mapping.device;
        mounts
            .iter()
            .find(here)
            .or_else(|| mounts.iter().find(same))
    };
    let mut found: Option<Found> = None;
    let mut at = addresses.start;
    while at < addresses.end || found.is_none() {
        let mapping = maps
            .iter()
            .find(|mapping| mapping.addresses.contains(&at))
            .ok_or(RegistrationError::Unmapped(at))?;
        let offset = mapping.offset + (at - mapping.addresses.start);
        let piece = match mount_of(mapping) {
            Some(mount) if mapping.inode != 0 => Found::File {
                mount: mount.clone(),
                mapping: mapping.clone(),
                offset,
            },
            _ => Found::Memory,
        };
        found = match (found.take(), piece) {
            (None, piece) => Some(piece),
            (Some(Found::Memory), Found::Memory) => Some(Found::Memory),
            (
                Some(Found::File {
                    mount,
                    mapping: mut before,
                    offset: first,
                }),
                Found::File { mapping, .. },
            ) if before.device == mapping.device
                && before.inode == mapping.inode
                && offset == first + (at - addresses.start) =>
            {
                before.writable &= mapping.writable;
                before.shared &= mapping.shared;
                Some(Found::File {
                    mount,
                    mapping: before,
                    offset: first,
                })
            }
            _ => {
                return Err(RegistrationError::Mixed {
                    start: addresses.start,
                    end: addresses.end,
                });
            }
        };
        at = mapping.addresses.end;
    }
    found.ok_or(RegistrationError::Unmapped(at))
}

/// The file system that a file is in.
fn device_of(file: &fs::Metadata) -> Device {
    Device {
        major: libc::major(file.dev()),
        minor: libc::minor(file.dev()),
    }
}

/// Where the target of a mount listens.
fn target_of(point: &Path) -> Result<SocketAddr, RegistrationError> {
    let no_target = || RegistrationError::NoTarget(point.to_path_buf());
    let path = CString::new(point.as_os_str().as_bytes()).map_err(|_| no_target())?;
    let name = CString::new(TARGET_XATTR).expect("it has no NUL");
    let mut value = [0_u8; ADDRESS_BYTES_MAX];
    // SAFETY: two strings that end with NUL, and as many writable bytes as said.
    let len = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    let bytes = usize::try_from(len).ok().and_then(|len| value.get(..len));
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.and_then(|text| text.parse().ok())
        .ok_or_else(no_target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLASH: Device = Device { major: 0, minor: 9 };

    fn mapping(addresses: Range<u64>, device: Device, inode: u64, offset: u64) -> Mapping {
        Mapping {
            addresses,
            readable: true,
            writable: true,
            shared: true,
            offset,
            device,
            inode,
            path: PathBuf::from("/mnt/file"),
        }
    }

    /// Every way in which two neighbours can belong together, or not.
    #[test]
    fn neighbours() {
        let mounts = [Mount {
            device: FLASH,
            root: PathBuf::from("/"),
            point: PathBuf::from("/mnt"),
            owner: Some(0),
        }];
        let none = Device { major: 0, minor: 0 };
        let disk = Device { major: 8, minor: 1 };
        let first = || mapping(0x1000..0x2000, FLASH, 5, 0x4000);
        let look = |addresses: Range<u64>, second: Mapping| {
            classify(&addresses, &[first(), second], &mounts)
        };
        let goes_on = mapping(0x2000..0x3000, FLASH, 5, 0x5000);
        match look(0x1800..0x2800, goes_on.clone()).unwrap() {
            Found::File { offset, .. } => assert_eq!(offset, 0x4800),
            Found::Memory => panic!("a file"),
        }
        let others = [
            mapping(0x2000..0x3000, FLASH, 5, 0x6000),
            mapping(0x2000..0x3000, FLASH, 6, 0x5000),
            mapping(0x2000..0x3000, none, 0, 0),
            mapping(0x2000..0x3000, disk, 5, 0x5000),
        ];
        for other in others {
            let alone = look(0x2000..0x3000, other.clone()).unwrap();
            assert_eq!(
                matches!(alone, Found::File { .. }),
                other.device == FLASH,
                "{other:?}"
            );
            let mixed = look(0x1fff..0x2001, other);
            assert!(matches!(mixed, Err(RegistrationError::Mixed { .. })));
        }
        let hole = look(0x1800..0x2800, mapping(0x2001..0x3000, none, 0, 0));
        assert!(matches!(hole, Err(RegistrationError::Unmapped(0x2000))));
        let beyond = look(0x2800..0x3001, goes_on);
        assert!(matches!(beyond, Err(RegistrationError::Unmapped(0x3000))));
        let memory = classify(
            &(0x2800..0x3800),
            &[
                mapping(0x2000..0x3000, none, 0, 0),
                mapping(0x3000..0x4000, disk, 7, 0),
            ],
            &mounts,
        );
        assert!(matches!(memory, Ok(Found::Memory)));
    }
}
