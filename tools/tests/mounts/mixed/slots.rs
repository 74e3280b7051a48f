//! Clients that work at the same time in the same files, each on places of its own that change hands from round to round.
//! Places are not of the size of pages, so that several share one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tools::client::{ClientError, RemoteFile, Session, SessionOptions};
use tools::control::{FLAG_WRITE, Op, Request};

use crate::common::pattern;

const FILES: usize = 2;
const PLACES: usize = 48;
/// Bytes of a place: the largest spans two borders between pages.
const SIZES: [usize; 4] = [100, 1000, 3000, 5000];

/// Part of a file that one client at a time may write.
#[derive(Debug)]
struct Place {
    file: usize,
    offset: usize,
    len: usize,
    /// What was acknowledged last.
    now: Vec<u8>,
    /// What a crash may leave instead, byte by byte: since it was durable, and what is under way.
    others: Vec<Vec<u8>>,
}

/// What all clients share.
#[derive(Debug)]
pub struct Shared {
    root: PathBuf,
    places: Vec<Place>,
    lengths: [usize; FILES],
    round: u64,
    seed: u64,
    /// Calls that were answered.
    pub done: usize,
}

impl Shared {
    pub fn new(mount: &Path, seed: u64) -> Self {
        let mut lengths = [0; FILES];
        let places = (0..PLACES)
            .map(|n| {
                let (file, len) = (n % FILES, SIZES[n / FILES % SIZES.len()]);
                let offset = lengths[file];
                lengths[file] += len;
                Place {
                    file,
                    offset,
                    len,
                    now: vec![0; len],
                    others: Vec::new(),
                }
            })
            .collect();
        let root = mount.join("shared");
        fs::create_dir(&root).unwrap();
        for (n, len) in lengths.iter().enumerate() {
            fs::write(root.join(n.to_string()), vec![0; *len]).unwrap();
        }
        Self {
            root,
            places,
            lengths,
            round: 0,
            seed,
            done: 0,
        }
    }

    /// A round: two programs and two peers, `calls` each, or until `stop` and beyond: then errors are how it ends.
    pub fn work(&mut self, address: SocketAddr, calls: usize, killed: Option<&AtomicBool>) {
        self.round += 1;
        let mut rng = SmallRng::seed_from_u64(self.seed ^ self.round << 32);
        let mut hands: [Vec<&mut Place>; 4] = Default::default();
        for place in &mut self.places {
            hands[rng.random_range(0..4)].push(place);
        }
        let (root, lengths) = (&self.root, self.lengths);
        let done: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (hands.into_iter().enumerate())
                .map(|(n, places)| {
                    let rng = SmallRng::seed_from_u64(rng.random());
                    scope.spawn(move || {
                        let opened = match n {
                            0 | 1 => Way::program(root, killed.is_none()),
                            _ => Way::peer(address),
                        };
                        let mut client = match opened {
                            Ok(way) => Client { way, places, rng },
                            Err(error) => return gone(&error, killed, 0),
                        };
                        for call in 0..calls {
                            if let Err(error) = client.call(lengths) {
                                return gone(&error, killed, call);
                            }
                        }
                        calls
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .sum()
        });
        self.done += done;
    }

    /// After a round, or a crash; what is found counts from now on.
    pub fn judge(&mut self) {
        let files: Vec<_> = (0..FILES)
            .map(|n| fs::read(self.root.join(n.to_string())).unwrap())
            .collect();
        for (file, len) in files.iter().zip(self.lengths) {
            assert_eq!(file.len(), len, "nobody changes the size");
        }
        for (n, place) in self.places.iter_mut().enumerate() {
            let found = &files[place.file][place.offset..][..place.len];
            for (at, byte) in found.iter().enumerate() {
                let was = |state: &Vec<u8>| state[at] == *byte;
                assert!(
                    was(&place.now) || place.others.iter().any(was),
                    "seed {}, round {}: byte {at} of place {n} ({} in file {}) was never {byte}",
                    self.seed,
                    self.round,
                    place.offset + at,
                    place.file
                );
            }
            place.now = found.to_vec();
        }
    }

    /// Everything is durable.
    pub fn sync(&mut self) {
        for n in 0..FILES {
            File::open(self.root.join(n.to_string()))
                .unwrap()
                .sync_all()
                .unwrap();
        }
        self.places
            .iter_mut()
            .for_each(|place| place.others.clear());
    }

    /// There was no crash, nothing but what was acknowledged may be seen.
    pub fn settle(&mut self) {
        self.places
            .iter_mut()
            .for_each(|place| place.others.clear());
    }
}

/// The end of a client whose target was killed, after so many calls.
fn gone(error: &io::Error, killed: Option<&AtomicBool>, calls: usize) -> usize {
    let expected = killed.is_some_and(|killed| killed.load(Ordering::SeqCst));
    assert!(expected, "after {calls} calls: {error}");
    calls
}

/// How a client reaches the files.
enum Way {
    Program(Vec<(File, Option<MmapRaw>)>),
    Peer(Box<Session>, Vec<RemoteFile>),
}

impl Way {
    fn program(root: &Path, may_map: bool) -> io::Result<Self> {
        let files = (0..FILES).map(|n| {
            let path = root.join(n.to_string());
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            // When the target dies, mappings end in SIGBUS.
            let map = may_map.then(|| MmapOptions::new().map_raw(&file));
            Ok((file, map.transpose()?))
        });
        Ok(Self::Program(files.collect::<io::Result<_>>()?))
    }

    fn peer(address: SocketAddr) -> io::Result<Self> {
        let connect = Session::connect(address, SessionOptions::default());
        let mut session = connect.map_err(io::Error::other)?;
        let files = (0..FILES).map(|n| {
            let request = Request {
                flags: FLAG_WRITE,
                ..Request::new(Op::Open, format!("/shared/{n}"))
            };
            session.open(request).map_err(io::Error::other)
        });
        let files = files.collect::<io::Result<_>>()?;
        Ok(Self::Peer(Box::new(session), files))
    }
}

struct Client<'a> {
    way: Way,
    places: Vec<&'a mut Place>,
    rng: SmallRng,
}

impl Client<'_> {
    /// Writes a place, or part of it; or looks at one, which must hold what this client wrote; or at anything.
    fn call(&mut self, lengths: [usize; FILES]) -> io::Result<()> {
        let Some(last) = self.places.len().checked_sub(1) else {
            return Ok(());
        };
        let n = self.rng.random_range(0..=last);
        let place = &mut *self.places[n];
        match self.rng.random_range(0..8) {
            0..5 => {
                let from = self.rng.random_range(0..place.len);
                let len = self.rng.random_range(1..=place.len - from);
                let bytes = pattern(len, self.rng.random());
                let mut next = place.now.clone();
                next[from..from + len].copy_from_slice(&bytes);
                place.others.push(next.clone());
                let at = place.offset + from;
                let durable =
                    self.way
                        .write(place.file, at, &bytes, self.rng.random_range(0..4))?;
                let before = std::mem::replace(&mut place.now, next);
                if durable {
                    // These bytes can not be what they were any more.
                    for other in &mut place.others {
                        other[from..from + len].copy_from_slice(&bytes);
                    }
                } else {
                    place.others.push(before);
                }
            }
            5..7 => {
                let map = self.rng.random_range(0..2) == 0;
                let found = self.way.read(place.file, place.offset, place.len, map)?;
                let first = found.iter().zip(&place.now).position(|(a, b)| a != b);
                assert_eq!(
                    first, None,
                    "first wrong byte of a place that nobody else writes"
                );
            }
            _ => {
                let file = self.rng.random_range(0..FILES);
                let len = self.rng.random_range(1..20_000);
                let at = self.rng.random_range(0..lengths[file] - len);
                self.way.read(file, at, len, false)?;
            }
        }
        Ok(())
    }
}

impl Way {
    /// Answers whether the bytes are durable.
    fn write(&mut self, file: usize, at: usize, bytes: &[u8], how: u32) -> io::Result<bool> {
        match self {
            Self::Program(files) => match &files[file] {
                (_, Some(map)) if how < 2 => {
                    assert!(at + bytes.len() <= map.len());
                    // SAFETY: inside the mapping; nobody else in this process loads or stores here meanwhile.
                    unsafe {
                        let to = map.as_mut_ptr().add(at);
                        std::ptr::copy(bytes.as_ptr(), to, bytes.len());
                    }
                    map.flush_range(at, bytes.len())?;
                    Ok(true)
                }
                (file, _) => {
                    file.write_all_at(bytes, at as u64)?;
                    if how == 2 {
                        file.sync_data()?;
                    }
                    Ok(how == 2)
                }
            },
            Self::Peer(session, files) => {
                let fill = |offset: u64, to: &mut [u8]| {
                    to.copy_from_slice(&bytes[offset as usize - at..][..to.len()]);
                    Ok(())
                };
                let (file, len) = (&files[file], bytes.len() as u64);
                let written = session.write(file, at as u64, len, how == 0, fill);
                written.map_err(io::Error::other)?;
                Ok(how == 0)
            }
        }
    }

    fn read(&mut self, file: usize, at: usize, len: usize, map: bool) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            Self::Program(files) => match &files[file] {
                (_, Some(mapping)) if map => {
                    assert!(at + len <= mapping.len());
                    // SAFETY: inside the mapping; the bytes belong to this client, nobody stores meanwhile.
                    unsafe {
                        std::ptr::copy(mapping.as_ptr().add(at), bytes.as_mut_ptr(), len);
                    }
                }
                (file, _) => file.read_exact_at(&mut bytes, at as u64)?,
            },
            Self::Peer(session, files) => {
                let take = |offset: u64, piece: &[u8]| -> Result<(), ClientError> {
                    bytes[offset as usize - at..][..piece.len()].copy_from_slice(piece);
                    Ok(())
                };
                let read = session.read(&files[file], at as u64, len as u64, take);
                read.map_err(io::Error::other)?;
            }
        }
        Ok(bytes)
    }
}
