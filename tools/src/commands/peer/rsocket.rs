//! The stream protocol of `rsocket(7)`, as it is over iWARP.
//!
//! Each side has a receive buffer of two halves and a list of two entries that name them. Who sends WRITEs into the half at
//! hand and then SENDs a message of four bytes that says how much; who has taken a half names it anew by a WRITE into the
//! other's list, and SENDs how many messages the other may have sent altogether. A message's upper three bits say what it
//! is, the rest is a number. The connection's private data introduce list and first half; numbers are big-endian there, and
//! little-endian in lists and messages, which is said by a flag.

use std::collections::VecDeque;

use anyhow::{Result, anyhow, bail, ensure};
use softrdma::{RemoteAddr, Rights, Stag, TaggedOffset};
use zerocopy::big_endian::{U16 as BeU16, U32 as BeU32, U64 as BeU64};
use zerocopy::little_endian::{U32 as LeU32, U64 as LeU64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::link::{Link, Plan, Shared};
use super::program::{Place, Task};

/// Half of the receive buffer: that of `rstream`. It ends with a reset that takes its last bytes along if something of ours
/// comes late, so we had better not have to name halves all the time.
const HALF: usize = 512 << 10;
/// Messages that the peer may have sent and we have not taken.
const CREDITS: u16 = 384;
/// Receives posted: one for each credit, and some for what needs none.
const RECEIVES: usize = CREDITS as usize + 64;
const MESSAGE_BYTES: usize = 4;
/// Largest piece of one WRITE.
const PIECE: usize = 32 << 10;
const ENTRIES: usize = 2;

const OP_DATA: u32 = 0;
const OP_CREDITS: u32 = 4;
const OP_CONTROL: u32 = 7;
const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_SHUTDOWN: u32 = 2;

const PROTOCOL: u8 = 1;
/// Lists are big-endian.
const FLAG_NET: u8 = 1;
/// The peer knows mapped regions, which we do not use.
const FLAG_IOMAP: u8 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Named {
    addr: BeU64,
    key: BeU32,
    length: BeU32,
}

/// The private data.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Introduction {
    version: u8,
    flags: u8,
    credits: BeU16,
    reserved: [u8; 3],
    iomap_size: u8,
    list: Named,
    data: Named,
}
const _: () = assert!(size_of::<Introduction>() == 40);

/// One entry of a list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Entry {
    addr: LeU64,
    key: LeU32,
    length: LeU32,
}
const ENTRY_BYTES: usize = size_of::<Entry>();
const _: () = assert!(ENTRY_BYTES == 16);

/// A stream.
pub(super) struct RSocket {
    link: Link,
    /// Receive buffer.
    buffer: Shared,
    /// The peer names its halves here.
    list: Shared,
    /// Entry at hand.
    entry: usize,
    /// Data messages sent, and how many may have been.
    sent: u16,
    allowed: u16,
    /// The peer's list, and the entry to be written next.
    remote_list: RemoteAddr,
    remote_entries: usize,
    remote_entry: usize,
    /// Next byte of the receive buffer, and what was taken since a half was named last.
    at: usize,
    taken: usize,
    free_half: usize,
    received: u16,
    credits_due: u16,
    ready: VecDeque<u8>,
    disconnected: bool,
}

impl RSocket {
    pub(super) fn open(task: &Task<'_>, place: &Place<'_>) -> Result<Self> {
        let buffer = Shared::new(task.table(), 2 * HALF, Rights::REMOTE_WRITE)?;
        let list = Shared::new(task.table(), ENTRIES * ENTRY_BYTES, Rights::REMOTE_WRITE)?;
        let named = |shared: &Shared, length| Named {
            addr: BeU64::new(shared.region.base.0),
            key: BeU32::new(shared.region.stag.0),
            length: BeU32::new(length),
        };
        let mine = Introduction {
            version: PROTOCOL,
            flags: FLAG_IOMAP,
            credits: BeU16::new(CREDITS),
            reserved: [0; 3],
            iomap_size: 0,
            list: named(&list, ENTRIES as u32),
            data: named(&buffer, HALF as u32),
        };
        let plan = Plan {
            receives: RECEIVES,
            message_bytes: MESSAGE_BYTES,
            private_data: mine.as_bytes(),
            ..task.plan()
        };
        let link = match place {
            Place::Connect(address) => task.connect(*address, &plan)?,
            Place::Listen(listener) => task.accept(listener, &plan)?,
        };
        let theirs = Introduction::read_from_bytes(link.private_data())
            .map_err(|_| anyhow!("private data of {} bytes", link.private_data().len()))?;
        ensure!(
            theirs.version == PROTOCOL,
            "rsocket version {}",
            theirs.version
        );
        ensure!(
            theirs.flags & FLAG_NET == 0,
            "a big-endian peer, which we do not know"
        );
        ensure!(theirs.list.length.get() > 0, "a peer without a list");
        let first = Entry {
            addr: LeU64::new(theirs.data.addr.get()),
            key: LeU32::new(theirs.data.key.get()),
            length: LeU32::new(theirs.data.length.get()),
        };
        list.buffer.write(0, first.as_bytes());
        let mut socket = Self {
            link,
            buffer,
            list,
            entry: 0,
            sent: 0,
            allowed: theirs.credits.get(),
            remote_list: RemoteAddr {
                stag: Stag(theirs.list.key.get()),
                to: TaggedOffset(theirs.list.addr.get()),
            },
            remote_entries: theirs.list.length.get() as usize,
            remote_entry: 1 % theirs.list.length.get() as usize,
            at: 0,
            taken: HALF,
            free_half: HALF,
            received: 0,
            credits_due: CREDITS / 2,
            ready: VecDeque::new(),
            disconnected: false,
        };
        socket.give_credits()?;
        Ok(socket)
    }

    /// Sends all of `bytes`.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let entry = self.entry();
            if self.sent == self.allowed || entry.length.get() == 0 {
                self.take_message()?;
                continue;
            }
            let len = bytes.len().min(PIECE).min(entry.length.get() as usize);
            let (now, later) = bytes.split_at(len);
            self.set_entry(Entry {
                addr: LeU64::new(entry.addr.get().wrapping_add(len as u64)),
                key: entry.key,
                length: LeU32::new(entry.length.get() - len as u32),
            });
            if entry.length.get() as usize == len {
                self.entry = (self.entry + 1) % ENTRIES;
            }
            let to = TaggedOffset(entry.addr.get());
            let stag = Stag(entry.key.get());
            self.link.write(now, RemoteAddr { stag, to })?;
            self.sent = self.sent.wrapping_add(1);
            self.tell(OP_DATA, len as u32)?;
            bytes = later;
        }
        Ok(())
    }

    /// Receives exactly `len` bytes.
    pub(super) fn recv(&mut self, len: usize) -> Result<Vec<u8>> {
        while self.ready.len() < len {
            self.take_message()?;
        }
        Ok(self.ready.drain(..len).collect())
    }

    /// Ends both directions. The peer may end first and not read what we still say, which resets the connection.
    pub(super) fn close(mut self) -> Result<()> {
        match self.say_goodbye() {
            Err(_) if self.link.has_ended() => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.link.close_or_reset(),
        }
    }

    fn say_goodbye(&mut self) -> Result<()> {
        self.tell(OP_CONTROL, CONTROL_DISCONNECT)?;
        while !self.disconnected {
            self.take_message()?;
        }
        Ok(())
    }

    fn take_message(&mut self) -> Result<()> {
        let Some(message) = self.link.recv_or_end()? else {
            ensure!(!self.disconnected, "the stream has ended");
            self.disconnected = true;
            return Ok(());
        };
        let word = LeU32::read_from_bytes(&message)
            .map_err(|_| anyhow!("a message of {} bytes", message.len()))?
            .get();
        let number = word & 0x1fff_ffff;
        match word >> 29 {
            OP_DATA => self.take_data(number as usize)?,
            OP_CREDITS => self.allowed = number as u16,
            OP_CONTROL if [CONTROL_DISCONNECT, CONTROL_SHUTDOWN].contains(&number) => {
                self.disconnected = true;
            }
            OP_CONTROL => {}
            op => bail!("message {op} of rsocket is not known here"),
        }
        Ok(())
    }

    /// The peer has written so many bytes more.
    fn take_data(&mut self, len: usize) -> Result<()> {
        ensure!(len <= 2 * HALF, "{len} bytes at once");
        let head = len.min(2 * HALF - self.at);
        self.ready.extend(self.buffer.buffer.to_vec(self.at, head));
        self.ready.extend(self.buffer.buffer.to_vec(0, len - head));
        self.at = (self.at + len) % (2 * HALF);
        self.taken += len;
        self.received = self.received.wrapping_add(1);
        if self.taken >= HALF || (self.received.wrapping_sub(self.credits_due) as i16) >= 0 {
            self.give_credits()?;
        }
        Ok(())
    }

    /// Names a half that has been taken, if there is one, and says how many messages may come.
    fn give_credits(&mut self) -> Result<()> {
        self.credits_due = self.received.wrapping_add(CREDITS / 2);
        if self.taken >= HALF {
            let half = Entry {
                addr: LeU64::new(self.buffer.region.base.0 + self.free_half as u64),
                key: LeU32::new(self.buffer.region.stag.0),
                length: LeU32::new(HALF as u32),
            };
            let to = RemoteAddr {
                stag: self.remote_list.stag,
                to: self
                    .remote_list
                    .to
                    .wrapping_add((self.remote_entry * ENTRY_BYTES) as u64),
            };
            self.link.write(half.as_bytes(), to)?;
            self.taken -= HALF;
            self.free_half = (self.free_half + HALF) % (2 * HALF);
            self.remote_entry = (self.remote_entry + 1) % self.remote_entries;
        }
        let credits = self.received.wrapping_add(CREDITS);
        self.tell(OP_CREDITS, u32::from(credits))
    }

    fn tell(&mut self, op: u32, number: u32) -> Result<()> {
        self.link.send(&(op << 29 | number).to_le_bytes())
    }

    fn entry(&self) -> Entry {
        let bytes = self
            .list
            .buffer
            .to_vec(self.entry * ENTRY_BYTES, ENTRY_BYTES);
        Entry::read_from_bytes(&bytes).unwrap_or_default()
    }

    fn set_entry(&self, entry: Entry) {
        self.list
            .buffer
            .write(self.entry * ENTRY_BYTES, entry.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The private data of two `rstream`s that talked to each other.
    #[test]
    fn introduction_golden() {
        let bytes: [u8; 40] = [
            0x01, 0x02, 0x01, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0x59, 0x26, 0xed, 0x70, 0, 0xd3, 0x5f,
            0xc2, 0, 0, 0, 0, 2, 0, 0, 0x7f, 0xfa, 0x08, 0x99, 0xc0, 0, 0xd3, 0xed, 0x6b, 0, 0, 8,
            0, 0,
        ];
        let told = Introduction::read_from_bytes(&bytes).unwrap();
        assert_eq!((told.version, told.flags, told.credits.get()), (1, 2, 384));
        assert_eq!(told.list.addr.get(), 0x5559_26ed_7000);
        assert_eq!(
            (told.list.key.get(), told.list.length.get()),
            (0xd35f_c200, 2)
        );
        assert_eq!(told.data.addr.get(), 0x7ffa_0899_c000);
        assert_eq!(
            (told.data.key.get(), told.data.length.get()),
            (0xd3ed_6b00, 0x8_0000)
        );
        assert_eq!(told.as_bytes(), bytes);
    }
}
