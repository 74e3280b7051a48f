//! Work requests as types: each kind has the fields and flags that it has in the verbs, and no others.
//!
//! Every kind has `wr_id` (0 unless set), `unsignaled` (no completion on success) and `fenced` (wait for all earlier
//! READs and atomic operations).

use std::ops::Range;

use super::region::{DomainWindow, MemoryRegion, MemoryWindow};
use crate::addr::{Immediate, RemoteAddr, Stag, WrId};
use crate::mem::{ATOMIC_BYTES, Atomic, DomainBind, Rights, WindowBind};
use crate::wire::profile::{Placement, Selectivity};
use crate::wqe::{INLINE_BYTES_MAX, LocalSlice, Operation, Source, WorkRequest};

mod sealed {
    pub trait Sealed {}
}

/// Kinds of requests that every iWARP peer knows.
pub trait SendRequest: sealed::Sealed + Into<WorkRequest> {}

/// Kinds of requests that only a peer with the [private profile](crate::wire::profile) knows.
pub trait PrivateRequest: sealed::Sealed + Into<WorkRequest> {}

impl From<LocalSlice> for Source {
    fn from(slice: LocalSlice) -> Self {
        Self::Local(slice)
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// Eight bytes of a peer on which atomic operations work: an address that is a multiple of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word(RemoteAddr);

impl Word {
    /// The word at an address; none if that is no multiple of eight.
    #[must_use]
    pub const fn new(remote: RemoteAddr) -> Option<Self> {
        match remote.to.0.is_multiple_of(ATOMIC_BYTES as u64) {
            true => Some(Self(remote)),
            false => None,
        }
    }

    /// Where it is.
    #[must_use]
    pub const fn remote(self) -> RemoteAddr {
        self.0
    }
}

/// Fields that every kind has.
#[derive(Clone, Copy, Debug, Default)]
struct Common {
    wr_id: WrId,
    is_unsignaled: bool,
    is_fenced: bool,
}

impl Common {
    fn request(self, op: Operation) -> WorkRequest {
        WorkRequest {
            wr_id: self.wr_id,
            signaled: !self.is_unsignaled,
            fence: self.is_fenced,
            op,
        }
    }
}

macro_rules! kinds {
    ($kind:ident: $($name:ident)+) => {$(
        impl sealed::Sealed for $name {}
        impl $kind for $name {}

        impl $name {
            /// Sets the number that comes back in the completion.
            #[must_use]
            pub const fn wr_id(mut self, wr_id: u64) -> Self {
                self.common.wr_id = WrId(wr_id);
                self
            }

            /// Does not report success. Errors are always reported.
            #[must_use]
            pub const fn unsignaled(mut self) -> Self {
                self.common.is_unsignaled = true;
                self
            }

            /// Holds it, and all behind it, until all earlier READs and atomic operations have completed.
            #[must_use]
            pub const fn fenced(mut self) -> Self {
                self.common.is_fenced = true;
                self
            }
        }
    )+};
}

kinds!(SendRequest: Write WriteImmediate Read SendMessage SendImmediate FetchAdd CompareSwap LocalInvalidate BindWindow BindDomainWindow);
kinds!(PrivateRequest: Flush AtomicWrite Verify);

/// `RDMA_WRITE`.
#[derive(Clone, Debug)]
pub struct Write {
    common: Common,
    source: Source,
    remote: RemoteAddr,
}

impl Write {
    /// Writes a [`LocalSlice`], which must stay unchanged until the completion, or a vector.
    #[must_use]
    pub fn new(source: impl Into<Source>, remote: RemoteAddr) -> Self {
        Self {
            common: Common::default(),
            source: source.into(),
            remote,
        }
    }

    /// `IBV_SEND_INLINE`: the bytes are in the request. At most [`INLINE_BYTES_MAX`]; more do not compile.
    #[must_use]
    pub fn inline<const N: usize>(bytes: [u8; N], remote: RemoteAddr) -> Self {
        Self::new(inline(&bytes), remote)
    }

    /// `RDMA_WRITE_WITH_IMM`: the peer's receive completes with these data when the WRITE is placed.
    #[must_use]
    pub fn immediate(self, immediate: impl Into<Immediate>) -> WriteImmediate {
        WriteImmediate {
            common: self.common,
            write: self,
            immediate: immediate.into(),
            is_solicited: false,
        }
    }
}

fn inline<const N: usize>(bytes: &[u8; N]) -> Source {
    const { assert!(N <= INLINE_BYTES_MAX, "too many bytes for a request") }
    Source::inline(bytes).expect("its length was checked when it was compiled")
}

impl From<Write> for WorkRequest {
    fn from(write: Write) -> Self {
        let Write { source, remote, .. } = write;
        write.common.request(Operation::Write { source, remote })
    }
}

/// `RDMA_WRITE_WITH_IMM`; made by [`Write::immediate`].
#[derive(Clone, Debug)]
pub struct WriteImmediate {
    common: Common,
    write: Write,
    immediate: Immediate,
    is_solicited: bool,
}

impl WriteImmediate {
    /// Asks for a solicited event at the peer.
    #[must_use]
    pub const fn solicited(mut self) -> Self {
        self.is_solicited = true;
        self
    }
}

impl From<WriteImmediate> for WorkRequest {
    fn from(request: WriteImmediate) -> Self {
        request.common.request(Operation::WriteImmediate {
            source: request.write.source,
            remote: request.write.remote,
            immediate: request.immediate,
            solicited: request.is_solicited,
        })
    }
}

/// `RDMA_READ`.
#[derive(Clone, Debug)]
pub struct Read {
    common: Common,
    sink: LocalSlice,
    remote: RemoteAddr,
}

impl Read {
    /// Reads as many bytes as `sink` has. Of no bytes, its completion says that all earlier WRITEs are placed.
    #[must_use]
    pub fn new(sink: LocalSlice, remote: RemoteAddr) -> Self {
        Self {
            common: Common::default(),
            sink,
            remote,
        }
    }
}

impl From<Read> for WorkRequest {
    fn from(read: Read) -> Self {
        let Read { sink, remote, .. } = read;
        read.common.request(Operation::Read { sink, remote })
    }
}

/// `SEND` and `SEND_WITH_INV`.
#[derive(Clone, Debug)]
pub struct SendMessage {
    common: Common,
    source: Source,
    is_solicited: bool,
    invalidate: Option<Stag>,
}

impl SendMessage {
    /// Sends a [`LocalSlice`], which must stay unchanged until the completion, or a vector.
    #[must_use]
    pub fn new(source: impl Into<Source>) -> Self {
        Self {
            common: Common::default(),
            source: source.into(),
            is_solicited: false,
            invalidate: None,
        }
    }

    /// `IBV_SEND_INLINE`: the bytes are in the request. At most [`INLINE_BYTES_MAX`]; more do not compile.
    #[must_use]
    pub fn inline<const N: usize>(bytes: [u8; N]) -> Self {
        Self::new(inline(&bytes))
    }

    /// Asks for a solicited event at the peer.
    #[must_use]
    pub const fn solicited(mut self) -> Self {
        self.is_solicited = true;
        self
    }

    /// `SEND_WITH_INV`: the peer ends the access through this STag of its own, before it sees the message.
    #[must_use]
    pub const fn invalidating(mut self, stag: Stag) -> Self {
        self.invalidate = Some(stag);
        self
    }
}

impl From<SendMessage> for WorkRequest {
    fn from(send: SendMessage) -> Self {
        send.common.request(Operation::Send {
            source: send.source,
            solicited: send.is_solicited,
            invalidate: send.invalidate,
        })
    }
}

/// Immediate data alone (RFC 7306 §6).
#[derive(Clone, Debug)]
pub struct SendImmediate {
    common: Common,
    immediate: Immediate,
    is_solicited: bool,
}

impl SendImmediate {
    /// The peer's receive completes with these data.
    #[must_use]
    pub fn new(immediate: impl Into<Immediate>) -> Self {
        Self {
            common: Common::default(),
            immediate: immediate.into(),
            is_solicited: false,
        }
    }

    /// Asks for a solicited event at the peer.
    #[must_use]
    pub const fn solicited(mut self) -> Self {
        self.is_solicited = true;
        self
    }
}

impl From<SendImmediate> for WorkRequest {
    fn from(request: SendImmediate) -> Self {
        request.common.request(Operation::Immediate {
            immediate: request.immediate,
            solicited: request.is_solicited,
        })
    }
}

/// `ATOMIC_FETCH_AND_ADD`, also with a mask (RFC 7306 §5).
#[derive(Clone, Debug)]
pub struct FetchAdd {
    common: Common,
    word: Word,
    add: u64,
    mask: u64,
}

impl FetchAdd {
    /// Adds to the word; the completion has what it was before.
    #[must_use]
    pub fn new(word: Word, add: u64) -> Self {
        Self {
            common: Common::default(),
            word,
            add,
            mask: 0,
        }
    }

    /// Splits the word behind each bit set here: carries go no further.
    #[must_use]
    pub const fn masked(mut self, mask: u64) -> Self {
        self.mask = mask;
        self
    }
}

impl From<FetchAdd> for WorkRequest {
    fn from(request: FetchAdd) -> Self {
        let FetchAdd { add, mask, .. } = request;
        let op = Atomic::FetchAdd { add, mask };
        let remote = request.word.remote();
        request.common.request(Operation::Atomic { remote, op })
    }
}

/// `ATOMIC_CMP_AND_SWP`, also with masks (RFC 7306 §5).
#[derive(Clone, Debug)]
pub struct CompareSwap {
    common: Common,
    word: Word,
    compare: u64,
    compare_mask: u64,
    swap: u64,
    swap_mask: u64,
}

impl CompareSwap {
    /// Stores `swap` if the word is `compare`; the completion has what it was before.
    #[must_use]
    pub fn new(word: Word, compare: u64, swap: u64) -> Self {
        Self {
            common: Common::default(),
            word,
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        }
    }

    /// Compares and stores only the bits set in these masks.
    #[must_use]
    pub const fn masked(mut self, compare_mask: u64, swap_mask: u64) -> Self {
        (self.compare_mask, self.swap_mask) = (compare_mask, swap_mask);
        self
    }
}

impl From<CompareSwap> for WorkRequest {
    fn from(request: CompareSwap) -> Self {
        let op = Atomic::CompareSwap {
            compare: request.compare,
            compare_mask: request.compare_mask,
            swap: request.swap,
            swap_mask: request.swap_mask,
        };
        let remote = request.word.remote();
        request.common.request(Operation::Atomic { remote, op })
    }
}

/// `LOCAL_INV`.
#[derive(Clone, Debug)]
pub struct LocalInvalidate {
    common: Common,
    stag: Stag,
}

impl LocalInvalidate {
    /// Ends the remote access through an STag of a region or window of ours, when everything before it has been sent. Not
    /// through one of a window of type 1: [`BindDomainWindow::unbind`].
    #[must_use]
    pub fn new(stag: Stag) -> Self {
        let common = Common::default();
        Self { common, stag }
    }
}

impl From<LocalInvalidate> for WorkRequest {
    fn from(request: LocalInvalidate) -> Self {
        let stag = request.stag;
        request.common.request(Operation::LocalInvalidate { stag })
    }
}

/// `BIND_MW`, type 2.
#[derive(Clone, Debug)]
pub struct BindWindow {
    common: Common,
    bind: WindowBind,
}

impl BindWindow {
    /// Lets the peer of this queue pair use `bytes` of the region, from its first byte on, through
    /// [`window.stag(key)`](MemoryWindow::stag). Take another key each time. The region needs
    /// [`Rights::WINDOW_BIND`].
    #[must_use]
    pub fn new(
        window: &MemoryWindow,
        key: u8,
        region: &MemoryRegion,
        bytes: Range<u64>,
        rights: Rights,
    ) -> Self {
        let bind = WindowBind {
            window: window.inner(),
            key,
            region: region.stag(),
            to: region.remote(bytes.start).to,
            len: bytes.end.saturating_sub(bytes.start),
            rights,
        };
        let common = Common::default();
        Self { common, bind }
    }
}

impl From<BindWindow> for WorkRequest {
    fn from(request: BindWindow) -> Self {
        request.common.request(Operation::BindWindow(request.bind))
    }
}

/// `ibv_bind_mw`: `BIND_MW`, type 1.
///
/// ```
/// # use softrdma::verbs::request::{BindDomainWindow, Read};
/// # use softrdma::verbs::{Cable, CompletionQueue, Context, Step};
/// # use softrdma::{Buffer, Config, LocalSlice, RemoteAddr, Rights, Status};
/// # let (ours, theirs) = (Context::new([1; 32]).allocate_domain(), Context::new([2; 32]).allocate_domain());
/// # let (completions, their_completions) = (CompletionQueue::new(), CompletionQueue::new());
/// # let client = ours.queue_pair(Config::default(), &completions).connect(b"")?;
/// # let server = theirs.queue_pair(Config::default(), &their_completions).listen();
/// # let mut cable = Cable::new(client.transport(), server.transport());
/// # cable.run();
/// # let Step::Ready(request) = server.poll() else { panic!() };
/// # let server = request.accept(b"")?;
/// # cable.run();
/// # let (Step::Ready(mut client), Step::Ready(mut server)) = (client.poll(), server.poll()) else { panic!() };
/// let memory = Buffer::from_bytes(b"nothing here is for everybody but this");
/// let region = theirs.register(&memory, Rights::REMOTE_READ | Rights::WINDOW_BIND)?;
/// let mut window = theirs.allocate_domain_window()?;
/// let bind = BindDomainWindow::new(&mut window, &region, 34..38, Rights::REMOTE_READ);
/// // For any peer of the domain, once the bind has completed. Behind it on this queue pair a SEND may tell the peer.
/// let remote = RemoteAddr { stag: bind.stag(), to: region.remote(34).to };
/// server.post_send(bind)?;
/// # cable.run();
/// # assert_eq!(their_completions.poll().unwrap().result.status, Status::Success);
///
/// let sink = Buffer::zeroed(4);
/// client.post_send(Read::new(LocalSlice::whole(&sink), remote))?;
/// # cable.run();
/// assert_eq!(sink.to_vec(0, 4), b"this");
///
/// // When this has completed, nobody comes in through the old STag any more.
/// server.post_send(BindDomainWindow::unbind(&mut window))?;
/// # cable.run();
/// # assert_eq!(their_completions.poll().unwrap().result.status, Status::Success);
/// # while completions.poll().is_some() {}
/// # client.post_send(Read::new(LocalSlice::whole(&sink), remote))?;
/// # cable.run();
/// # assert_eq!(completions.poll().unwrap().result.status, Status::RemoteAccess);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BindDomainWindow {
    common: Common,
    bind: DomainBind,
}

impl BindDomainWindow {
    /// Lets all peers of the domain use `bytes` of the region, from its first byte on, through [`stag`](Self::stag), and
    /// through no earlier STag of the window any more. The region needs [`Rights::WINDOW_BIND`];
    /// [`Rights::REMOTE_INVALIDATE`] cannot be granted. Of no bytes: as [`unbind`](Self::unbind).
    ///
    /// Binds are carried out in the order in which they were made: one that is overtaken on another queue pair is refused.
    /// STags come back after [`KEYS`](crate::mem::window::KEYS) binds.
    #[must_use]
    pub fn new(
        window: &mut DomainWindow,
        region: &MemoryRegion,
        bytes: Range<u64>,
        rights: Rights,
    ) -> Self {
        let len = bytes.end.saturating_sub(bytes.start);
        let to = region.remote(bytes.start).to;
        Self {
            common: Common::default(),
            bind: window.inner().bind(region.stag(), to, len, rights),
        }
    }

    /// Lets nobody use the window any more.
    #[must_use]
    pub fn unbind(window: &mut DomainWindow) -> Self {
        Self {
            common: Common::default(),
            bind: window.inner().unbind(),
        }
    }

    /// The STag of the window when this has been carried out.
    #[must_use]
    pub const fn stag(&self) -> Stag {
        self.bind.stag()
    }
}

impl From<BindDomainWindow> for WorkRequest {
    fn from(request: BindDomainWindow) -> Self {
        request
            .common
            .request(Operation::BindDomainWindow(request.bind))
    }
}

/// `FLUSH` of the private profile.
#[derive(Clone, Debug)]
pub struct Flush {
    common: Common,
    remote: RemoteAddr,
    selectivity: Selectivity,
    placement: Placement,
}

impl Flush {
    /// Persists `len` bytes from `remote` on, and what earlier requests of this connection wrote there.
    #[must_use]
    pub fn range(remote: RemoteAddr, len: u32) -> Self {
        Self::new(remote, Selectivity::Range(len))
    }

    /// Persists all of the region in which `remote` is.
    #[must_use]
    pub fn region(remote: RemoteAddr) -> Self {
        Self::new(remote, Selectivity::Region)
    }

    fn new(remote: RemoteAddr, selectivity: Selectivity) -> Self {
        Self {
            common: Common::default(),
            remote,
            selectivity,
            placement: Placement::Persistent,
        }
    }

    /// Only up to visibility.
    #[must_use]
    pub const fn to_visibility(mut self) -> Self {
        self.placement = Placement::Visible;
        self
    }
}

impl From<Flush> for WorkRequest {
    fn from(flush: Flush) -> Self {
        flush.common.request(Operation::Flush {
            remote: flush.remote,
            selectivity: flush.selectivity,
            placement: flush.placement,
        })
    }
}

/// `ATOMIC_WRITE` of the private profile.
#[derive(Clone, Debug)]
pub struct AtomicWrite {
    common: Common,
    word: Word,
    value: u64,
}

impl AtomicWrite {
    /// Stores the word, after every earlier FLUSH.
    #[must_use]
    pub fn new(word: Word, value: u64) -> Self {
        Self {
            common: Common::default(),
            word,
            value,
        }
    }
}

impl From<AtomicWrite> for WorkRequest {
    fn from(request: AtomicWrite) -> Self {
        let (remote, value) = (request.word.remote(), request.value);
        request
            .common
            .request(Operation::AtomicWrite { remote, value })
    }
}

/// VERIFY of the private profile.
#[derive(Clone, Debug)]
pub struct Verify {
    common: Common,
    remote: RemoteAddr,
    len: u32,
}

impl Verify {
    /// The completion has the CRC-32C of these bytes of the peer. At most
    /// [`VERIFY_BYTES_MAX`](crate::wire::profile::VERIFY_BYTES_MAX).
    #[must_use]
    pub fn new(remote: RemoteAddr, len: u32) -> Self {
        Self {
            common: Common::default(),
            remote,
            len,
        }
    }
}

impl From<Verify> for WorkRequest {
    fn from(verify: Verify) -> Self {
        let Verify { remote, len, .. } = verify;
        verify.common.request(Operation::Verify { remote, len })
    }
}
