//! A store in a file, for the processes of one machine.
//!
//! The file is one line of magic and checksum, and one of JSON. Each request locks a second file beside it, reads the
//! state, applies the request, and, if that changed anything, writes the state to a third file, makes it durable and renames
//! it into place. So a crash leaves the state before or after a request, and nothing else.
//!
//! Leases, and keys that have one, are in a file of their own, `.leases`, which is never made durable: a heartbeat is no write to
//! media. While another change is made durable it waits for the lock, which under load may take longer than a lease lasts; so all leases
//! last longer by that time. They are counted in the clock of the machine since it booted, suspended or
//! not, which all processes share and nobody can set. The file says which boot it was; in another one, or if it is damaged, all
//! leases are over; their numbers are not given again. A key that a crash leaves in both files is what was put last, and so is that put.
//!
//! The group's token is in the file. What replaces a file has its permissions; a new store is its owner's only.
//!
//! # Failure
//! A process that is stopped while it has the lock holds up all others that use the store, until it goes on or is killed. It has it for
//! some microseconds, and longer only while it makes a change of what has no lease durable.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::since_boot;

use super::notice::Notice;
use super::{Event, Ledger, REQUESTS_MAX, Request, Revision, Store, StoreError, Ticket, Wake};

const MAGIC: &str = "flashnet-store-1";
const BYTES_MAX: u64 = 64 << 20;
/// Between looks at files that have not changed, as far as their times tell.
const LOOK: Duration = Duration::from_millis(20);

/// What is in the file with the leases.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Leases {
    /// Boot of the machine that they are counted in.
    boot: String,
    ledger: Ledger,
}

/// Which file it is, and when it was written: seconds and nanoseconds.
type Stamp = (u64, i64, i64);

/// Whether a file has to be there after a crash of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Survives {
    Machine,
    Process,
}

/// Why a file is no store.
#[derive(Debug, thiserror::Error)]
pub enum FileStoreError {
    /// The system refused.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It is something else, or damaged.
    #[error(
        "{path} is not a store, or is damaged ({why}); restore it, or move it away to start without configuration"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Now, in a clock that all processes share.
type Clock = Box<dyn Fn() -> Duration + Send>;

/// A store in a file.
pub struct FileStore {
    path: PathBuf,
    lock: File,
    clock: Clock,
    boot: String,
    tickets: u64,
    events: VecDeque<Event>,
    watches: Vec<(String, (Revision, usize))>,
    /// The file as it was when last looked at, and when that was.
    seen: ([Option<Stamp>; 2], Duration),
    wake: Option<(Wake, Notice)>,
}

impl FileStore {
    /// Opens the store, or makes an empty one.
    ///
    /// # Errors
    /// If the system refuses, or the file is something else.
    pub fn open(path: &Path) -> Result<Self, FileStoreError> {
        let boot = "/proc/sys/kernel/random/boot_id";
        let boot = fs::read_to_string(boot).map_err(|error| io_error("read", boot, error))?;
        Self::open_with(path, boot.trim(), Box::new(since_boot))
    }

    /// Opens it with another clock: of this boot, the same for all who open the file.
    ///
    /// # Errors
    /// If the system refuses, or the file is something else.
    pub fn open_with(path: &Path, boot: &str, clock: Clock) -> Result<Self, FileStoreError> {
        // Before files are made beside it, which nobody would look for.
        if path.file_name().is_none() || path.is_dir() {
            let error = match path.as_os_str().is_empty() {
                true => io::ErrorKind::NotFound,
                false => io::ErrorKind::IsADirectory,
            };
            return Err(io_error("open", path, error.into()));
        }
        // A device may have no end, and a pipe nobody who writes to it.
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let error = io::Error::other("it is no regular file");
            return Err(io_error("open", path, error));
        }
        // What is renamed into place would take the place of a link, and leave others with what it led to.
        let path = &match fs::read_link(path) {
            Ok(_) => fs::canonicalize(path).map_err(|error| io_error("open", path, error))?,
            Err(_) => path.to_owned(),
        };
        let lock_path = beside(path, "lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(mode_of(path))
            .open(&lock_path)
            .map_err(|error| io_error("open", &lock_path, error))?;
        let store = Self {
            path: path.to_owned(),
            lock,
            clock,
            boot: boot.to_owned(),
            tickets: 0,
            events: VecDeque::new(),
            watches: Vec::new(),
            seen: ([None; 2], Duration::ZERO),
            wake: None,
        };
        store.locked(|_| ((), false))?;
        Ok(store)
    }

    /// Reads, lets `change` work on it, and writes if it says that there is something to write.
    fn locked<T>(
        &self,
        change: impl FnOnce(&mut Ledger) -> (T, bool),
    ) -> Result<T, FileStoreError> {
        let failed = |what| move |error| io_error(what, &self.path, error);
        self.lock.lock().map_err(failed("lock"))?;
        let result = self.locked_now(change);
        self.lock.unlock().map_err(failed("unlock"))?;
        result
    }

    fn locked_now<T>(
        &self,
        change: impl FnOnce(&mut Ledger) -> (T, bool),
    ) -> Result<T, FileStoreError> {
        let durable: Ledger = self.read(&self.path)?.unwrap_or_default();
        let fleeting = match self.read::<Leases>(&self.leases()) {
            Ok(Some(leases)) if leases.boot == self.boot => leases.ledger,
            Err(error @ FileStoreError::Io { .. }) => return Err(error),
            // Somebody may go on keeping a lease alive that was lost, and nobody else's may have its number: there were fewer than nanoseconds.
            _ => Ledger::granting_after((self.clock)().as_nanos() as i64),
        };
        let mut ledger = Ledger::joined(durable.clone(), fleeting);
        let expired = ledger.expire((self.clock)());
        let (result, changed) = change(&mut ledger);
        if changed || expired {
            let survives = ledger.durable();
            // Where a key is new it is written first.
            let moved = survives.len() < durable.len();
            if moved {
                self.write_leases(&ledger)?;
            }
            let begun = (self.clock)();
            if survives != durable {
                self.write(&self.path, &survives, Survives::Machine)?;
            }
            // Others had to wait for the lock with their heartbeats.
            let spent = (self.clock)().saturating_sub(begun);
            ledger.prolong(spent);
            if !moved || spent > Duration::ZERO {
                self.write_leases(&ledger)?;
            }
        }
        Ok(result)
    }

    fn leases(&self) -> PathBuf {
        beside(&self.path, "leases")
    }

    fn write_leases(&self, ledger: &Ledger) -> Result<(), FileStoreError> {
        let leases = Leases {
            boot: self.boot.clone(),
            ledger: ledger.fleeting(),
        };
        self.write(&self.leases(), &leases, Survives::Process)
    }

    /// What is in a file, if there is one.
    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, FileStoreError> {
        let bytes = match fs::metadata(path) {
            Ok(file) if file.len() > BYTES_MAX => Err(io::Error::other("larger than any store")),
            _ => fs::read(path),
        };
        let bytes = match bytes {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(|error| io_error("read", path, error))?,
        };
        let damaged = |why: String| FileStoreError::Damaged {
            path: path.to_owned(),
            why,
        };
        let text = String::from_utf8(bytes).map_err(|_| damaged("it is no text".into()))?;
        let (first, json) = text.split_once('\n').unwrap_or((&text, ""));
        let Some(crc) = first.strip_prefix(MAGIC) else {
            return Err(damaged(format!("it does not start with {MAGIC}")));
        };
        if crc.trim() != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
            return Err(damaged("the checksum is wrong".into()));
        }
        let contents = serde_json::from_str(json);
        contents
            .map(Some)
            .map_err(|error| damaged(error.to_string()))
    }

    fn write(
        &self,
        path: &Path,
        contents: &impl Serialize,
        survives: Survives,
    ) -> Result<(), FileStoreError> {
        let json = serde_json::to_string(contents).map_err(|error| {
            let error = io::Error::other(error);
            io_error("write", path, error)
        })?;
        let temporary = beside(path, "new");
        let write = || -> io::Result<()> {
            let mode = mode_of(&self.path);
            // What a crash left must not be opened as it is.
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = File::options()
                .create_new(true)
                .write(true)
                .mode(mode)
                .open(&temporary)?;
            // Whatever is taken from new files of this process.
            file.set_permissions(Permissions::from_mode(mode))?;
            let crc = crc32fast::hash(json.as_bytes());
            file.write_all(format!("{MAGIC} {crc:08x}\n{json}").as_bytes())?;
            if survives == Survives::Process {
                return fs::rename(&temporary, path);
            }
            file.sync_all()?;
            fs::rename(&temporary, path)?;
            File::open(directory_of(path))?.sync_all()
        };
        write().map_err(|error| io_error("write", path, error))
    }

    fn look(&mut self) {
        if self.watches.is_empty() {
            return;
        }
        // Each change is another file. Leases end without one, until somebody looks.
        let now = (self.clock)();
        let files = [self.path.clone(), self.leases()].map(|path| {
            let file = fs::metadata(path).ok();
            file.map(|file| (file.ino(), file.mtime(), file.mtime_nsec()))
        });
        let noticed = self.wake.as_ref().is_some_and(|(_, notice)| notice.take());
        if !noticed && files == self.seen.0 && now < self.seen.1 + LOOK {
            return;
        }
        self.seen = (files, now);
        let prefixes: Vec<String> = self.watches.iter().map(|watch| watch.0.clone()).collect();
        let digests = self.locked(|ledger| {
            let digests = prefixes.iter().map(|prefix| ledger.digest(prefix));
            (digests.collect::<Vec<_>>(), false)
        });
        // A store that cannot be read tells nothing; requests will say why.
        for ((prefix, seen), digest) in self.watches.iter_mut().zip(digests.into_iter().flatten()) {
            if *seen != digest {
                *seen = digest;
                self.events.push_back(Event::Changed {
                    prefix: prefix.clone(),
                });
            }
        }
    }
}

impl Store for FileStore {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let now = (self.clock)();
        let answer = if self.events.len() >= REQUESTS_MAX {
            Err(StoreError::Busy)
        } else {
            let reads = matches!(request, Request::List { .. } | Request::Watch { .. });
            let applied = self.locked(|ledger| {
                let reply = ledger.apply(now, &request);
                let changed = reply.is_ok() && !reads;
                let digest = match &request {
                    Request::Watch { prefix } => Some((prefix.clone(), ledger.digest(prefix))),
                    _ => None,
                };
                ((reply, digest), changed)
            });
            match applied {
                Ok((reply, watch)) => {
                    if let Some((prefix, digest)) = watch {
                        // What is watched already is told of once.
                        self.watches.retain(|(watched, _)| *watched != prefix);
                        self.watches.push((prefix, digest));
                    }
                    reply
                }
                Err(error) => Err(StoreError::Unavailable(error.to_string())),
            }
        };
        self.events.push_back(Event::Answer(ticket, answer));
        if let Some((wake, _)) = &self.wake {
            wake();
        }
        ticket
    }

    fn poll(&mut self) -> Option<Event> {
        if self.events.is_empty() {
            self.look();
        }
        self.events.pop_front()
    }

    fn wake_by(&mut self, wake: Wake) -> bool {
        let names = [self.path.clone(), self.leases()];
        let names = names.iter().filter_map(|path| path.file_name());
        let names = names.map(ToOwned::to_owned).collect();
        let notice = Notice::start(directory_of(&self.path), names, Arc::clone(&wake));
        // There may be too many users of inotify.
        self.wake = notice.ok().map(|notice| (wake, notice));
        self.wake.is_some()
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|path| path.as_os_str() != "");
    directory.unwrap_or(Path::new("."))
}

/// Permissions of a store, also of one that is to be made.
fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |file| file.mode() & 0o666)
}

fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn io_error(what: &'static str, path: impl Into<PathBuf>, error: io::Error) -> FileStoreError {
    FileStoreError::Io {
        what,
        path: path.into(),
        error,
    }
}
