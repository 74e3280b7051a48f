//! Replacing a running target: the new process gets the listening sockets from the old one, which then ends.
//!
//! ```text
//!   new                                         old
//!    │ ── "FNH1" ─────────────────────────────► │ both look at each other's user
//!    │ ◄──────────── "FNH1" + the sockets ───── │ goes on serving
//!    │ ── "go" ───────────────────────────────► │ drains, closes the volume
//!    │ ◄────────────────────── end of stream ── │
//!    │ opens the volume, accepts                ╵
//! ```
//!
//! Who says another word than the first is an [`operator`](super::operator) with a question.
//!
//! The name of the socket is made of the numbers of the device, so that everybody finds it, and everybody can take it first. A target
//! whose name is taken adds to it what nobody can guess; who looks for one asks the kernel which names there are, and
//! passes over those of users whom he would not believe.
//!
//! Connections that are made in between wait in the queues of the sockets. Until "go" the end of either changes nothing; after it
//! the new one opens the volume however the old one ended.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, park_timeout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg, sockopt,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tracing::{info, warn};

use super::operator::{self, Operator, Silent};

const HELLO: &[u8; 4] = b"FNH1";
/// The same of one whose last socket is that for TLS.
const HELLO_TLS: &[u8; 4] = b"FNHT";
/// Sockets at most.
const SOCKETS_MAX: usize = 2;
const GO: &[u8; 2] = b"go";
/// Longest wait for a word of the other.
const WORD: Duration = Duration::from_secs(10);
/// Longest wait for one whom others keep busy.
const BUSY: Duration = Duration::from_secs(2);
/// Between questions whether the old target is still waited for.
const TURN: Duration = Duration::from_millis(200);
/// Whom the kernel names instead of users that have no number in the namespace of who asks.
const UNKNOWN_USER: u32 = 65_534;
/// Wait after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the names begin with under which the target of these devices can be found on this machine.
fn name(devices: &[PathBuf]) -> io::Result<String> {
    let identity = |path: &PathBuf| {
        let meta = std::fs::metadata(path)?;
        Ok(match meta.file_type().is_block_device() {
            true => (0, meta.rdev()),
            false => (meta.dev(), meta.ino()),
        })
    };
    // In whatever order they are named.
    let all: Vec<(u64, u64)> = devices.iter().map(identity).collect::<io::Result<_>>()?;
    let (dev, ino) = all.into_iter().min().unwrap_or_default();
    Ok(format!("flashnet-target-{dev:x}-{ino:x}"))
}

/// Listens by this name or, if somebody has it, by one that begins so and that nobody can have.
fn bind(name: &str) -> io::Result<UnixListener> {
    match UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let other = format!("{name}-{:032x}", rand::random::<u128>());
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(other)?)
        }
        bound => bound,
    }
}

/// Those who listen by this name or one that begins so, in no order.
fn listeners(name: &str) -> Vec<String> {
    // Where this can not be read, the name is likely to be the right one.
    let table = std::fs::read("/proc/net/unix").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    let found = table.lines().filter_map(|line| {
        // Address, users, protocol, flags, type, state, inode, name.
        let mut fields = line.split_ascii_whitespace();
        let accepts = fields.nth(3) == Some("00010000");
        let at = fields.nth(3)?.strip_prefix('@')?;
        let more = at.strip_prefix(name)?;
        let is_ours = more.is_empty() || more.starts_with('-');
        (accepts && is_ours).then(|| at.to_owned())
    });
    let mut found: Vec<String> = found.collect();
    if found.is_empty() {
        found.push(name.to_owned());
    }
    found
}

/// Whom the process at the other end belongs to.
fn user_of(stream: &UnixStream) -> io::Result<u32> {
    Ok(getsockopt(stream, sockopt::PeerCredentials)?.uid())
}

fn own_user() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Whether that is the same user, or root.
fn is_ours(user: u32) -> bool {
    user == 0 || user == own_user()
}

/// What somebody wants of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Its answer to a question.
    Question,
    /// Its place, and its sockets.
    Replacement,
}

/// Whether a target may belong to this user.
///
/// Anybody can take a name like that of a target, and answer in its place. So this is one's own user or root; for
/// root, who asks about the volumes of others, also the user who owns all devices: what he says of a volume is worth
/// what the volume is worth, for he can write to it what he likes. That does not go for sockets: he may keep copies of those
/// that he hands over, and hear what clients of root's target say.
fn may_answer(user: u32, devices: &[PathBuf], purpose: Purpose) -> io::Result<bool> {
    if is_ours(user) || own_user() != 0 || purpose == Purpose::Replacement || user == UNKNOWN_USER {
        return Ok(is_ours(user));
    }
    for device in devices {
        if std::fs::metadata(device)?.uid() != user {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The listening sockets of a target.
#[derive(Debug, Default)]
pub struct Sockets {
    /// For connections as they are.
    pub plain: Option<Socket>,
    /// For connections by TLS.
    pub tls: Option<Socket>,
}

impl Sockets {
    /// The same once more.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let again = |socket: &Option<Socket>| socket.as_ref().map(Socket::try_clone).transpose();
        Ok(Self {
            plain: again(&self.plain)?,
            tls: again(&self.tls)?,
        })
    }
}

/// A target that wants to take over, and has said so. Dropping it tells it that the volume is closed.
#[derive(Debug)]
pub struct Replacement(#[allow(dead_code, reason = "its end is what is said")] UnixStream);

/// The offer of a running target to be replaced.
#[derive(Debug)]
pub(super) struct Handover {
    listener: UnixListener,
    asked: Receiver<Replacement>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Handover {
    /// Waits for whoever wants to take over the target of these devices, and its listening sockets; meanwhile `operator` is
    /// asked.
    pub(super) fn offer(
        devices: &[PathBuf],
        sockets: Sockets,
        operator: Operator,
    ) -> io::Result<Self> {
        let listener = bind(&name(devices)?)?;
        let (sender, asked) = channel();
        let accepting = listener.try_clone()?;
        let ending = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ending);
        let thread = Builder::new()
            .name("handover".into())
            .spawn(move || wait(&accepting, &end, (&sockets, &operator), &sender))?;
        Ok(Self {
            listener,
            asked,
            ending,
            thread: Some(thread),
        })
    }

    /// Waits that long for somebody who wants to take over.
    pub(super) fn asked(&self, patience: Duration) -> Option<Replacement> {
        match self.asked.recv_timeout(patience) {
            Ok(replacement) => Some(replacement),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // It has ended: then this is a wait like any other.
                std::thread::sleep(patience);
                None
            }
        }
    }

    /// Nobody is waited for any more. Who has asked to take over meanwhile is kept until the volume is closed.
    pub(super) fn end(mut self) -> Option<Replacement> {
        self.stop();
        self.asked.try_recv().ok()
    }

    fn stop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // SAFETY: the descriptor is open. This wakes the thread that accepts, which then ends.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.stop();
    }
}

fn wait(
    listener: &UnixListener,
    ending: &AtomicBool,
    (sockets, operator): (&Sockets, &Operator),
    asked: &Sender<Replacement>,
) {
    let mut is_in_trouble = false;
    while !ending.load(Ordering::Acquire) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(_) if ending.load(Ordering::Acquire) => return,
            // Out of descriptors, most likely, which passes: whoever connects meanwhile waits.
            Err(error) => {
                if !std::mem::replace(&mut is_in_trouble, true) {
                    warn!(%error, "cannot hear operators at the moment");
                }
                park_timeout(ACCEPT_PAUSE);
                continue;
            }
        };
        is_in_trouble = false;
        match serve(stream, sockets, operator) {
            Ok(Some(replacement)) => {
                let _ = asked.send(replacement);
                return;
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%error, "somebody wanted something of this target, and did not get it")
            }
        }
    }
}

/// Does what somebody wants: one that takes over is answered.
fn serve(
    mut stream: UnixStream,
    sockets: &Sockets,
    operator: &Operator,
) -> io::Result<Option<Replacement>> {
    stream.set_read_timeout(Some(WORD))?;
    stream.set_write_timeout(Some(WORD))?;
    if !is_ours(user_of(&stream)?) {
        return Err(io::Error::other("it belongs to another user"));
    }
    let mut hello = [0; 4];
    stream.read_exact(&mut hello)?;
    match &hello {
        HELLO => hand_over(stream, sockets).map(Some),
        operator::HELLO => operator.answer(stream).map(|()| None),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn hand_over(mut stream: UnixStream, sockets: &Sockets) -> io::Result<Replacement> {
    let all = sockets.plain.iter().chain(&sockets.tls);
    let all: Vec<RawFd> = all.map(|socket| socket.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&all)];
    let rights = if all.is_empty() { &[] } else { &rights[..] };
    let word = sockets.tls.as_ref().map_or(HELLO, |_| HELLO_TLS);
    let said = [IoSlice::new(word)];
    sendmsg::<()>(stream.as_raw_fd(), &said, rights, MsgFlags::empty(), None)?;
    let mut go = [0; 2];
    stream.read_exact(&mut go)?;
    if &go != GO {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Replacement(stream))
}

/// Connects to the target that has these devices, if there is one, and it belongs to somebody whom this can be wanted of.
pub(super) fn connect(devices: &[PathBuf], purpose: Purpose) -> Result<Option<UnixStream>> {
    let name =
        name(devices).with_context(|| format!("cannot find {}", crate::devices::names(devices)))?;
    let begun = Instant::now();
    loop {
        let (mut others, mut behind) = (None, false);
        for at in listeners(&name) {
            let stream = match connect_now(&at) {
                Ok(stream) => stream,
                // It has gone since.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    behind = true;
                    continue;
                }
                Err(error) => return Err(error).context("cannot reach the running target"),
            };
            let user = user_of(&stream)?;
            if may_answer(user, devices, purpose)? {
                return Ok(Some(stream));
            }
            others = Some(user);
        }
        // Somebody whom others keep busy may be the one; whoever it is, he is not waited for without end.
        if behind && begun.elapsed() < BUSY {
            std::thread::sleep(TURN);
            continue;
        }
        return match others {
            // Who uses the volume tells a target from somebody who has taken its name.
            Some(user) if are_used(devices) => bail!(
                "the running target belongs to user {user}: this can only be done as that user"
            ),
            _ => Ok(None),
        };
    }
}

/// Connects without waiting for somebody who does not accept.
fn connect_now(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    socket.set_nonblocking(false)?;
    Ok(OwnedFd::from(socket).into())
}

/// Whether somebody has one of these devices open for writing, as far as this user can find out.
fn are_used(devices: &[PathBuf]) -> bool {
    let is_used = |path: &PathBuf| {
        let Ok(file) = File::open(path) else {
            return true;
        };
        // SAFETY: the descriptor is open. The lock goes with it.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
        locked != 0
    };
    devices.iter().any(is_used)
}

/// A target that runs and can be replaced.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
    sockets: Sockets,
}

impl Predecessor {
    /// The target that has these devices, if there is one.
    pub fn find(devices: &[PathBuf]) -> Result<Option<Self>> {
        let Some(mut stream) = connect(devices, Purpose::Replacement)? else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(WORD))?;
        stream.write_all(HELLO)?;
        let sockets = match receive(&stream) {
            Err(error) if operator::is_silence(&error) => return Err(Silent(WORD).into()),
            sockets => sockets.context("the running target does not hand over")?,
        };
        Ok(Some(Self { stream, sockets }))
    }

    /// Its listening sockets.
    pub fn sockets(&self) -> io::Result<Sockets> {
        self.sockets.try_clone()
    }

    /// Lets it end, and waits until it has closed the volume: what is in its memory has to be written, however long that takes. It
    /// ends in any case, so who gives up leaves the volume to nobody. `waits` is asked now and then, with the time that has
    /// passed, whether to go on.
    pub fn replace(mut self, mut waits: impl FnMut(Duration) -> bool) -> Result<()> {
        let told = self.stream.write_all(GO);
        let told = told.and_then(|()| self.stream.shutdown(Shutdown::Write));
        match told {
            // It is gone already.
            Err(error) if is_gone(&error) => return Ok(()),
            told => told.context("cannot tell the running target to end")?,
        }
        self.stream.set_read_timeout(Some(TURN))?;
        let begun = Instant::now();
        while let Err(error) = self.stream.read(&mut [0; 1]) {
            match error.kind() {
                // However it ended: the lock of the device tells whether it has.
                _ if is_gone(&error) => break,
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                _ => return Err(error).context("the running target does not end"),
            }
            if !waits(begun.elapsed()) {
                bail!(
                    "given up while the running target was closing the volume: it ends, and nobody serves the volume then"
                );
            }
        }
        info!("the running target has closed the volume");
        Ok(())
    }
}

/// Whether that says that there is nobody at the other end any more.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

fn receive(stream: &UnixStream) -> io::Result<Sockets> {
    let mut word = [0; 4];
    let mut space = nix::cmsg_space!([RawFd; SOCKETS_MAX]);
    let mut slices = [IoSliceMut::new(&mut word)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut space), flags)?;
    let mut sockets = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: the kernel has just made it for this process, and nobody else has it.
                let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
                sockets.push(Socket::from(owned));
            }
        }
    }
    let tls = match &word {
        HELLO => None,
        HELLO_TLS => sockets.pop(),
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    Ok(Sockets {
        plain: sockets.pop(),
        tls,
    })
}
