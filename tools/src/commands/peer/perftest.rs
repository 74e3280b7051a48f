//! `ib_write_bw`, `ib_read_bw` and `ib_send_bw` with `-R`: one connection to agree, one for the data.
//!
//! The first carries exchanges, in each of which the client speaks first: version, two sizes and MTU, then four times the
//! [`Keys`] of both sides (five times for SEND), the second connection being made after the first of these. When the client
//! has done its work, further exchanges tell so, and what it measured. Versions 5.70 to 6.x speak like this.
//!
//! These programs check nothing. We look at what can be known: that the bytes of WRITEs have arrived, that READs of the same
//! place give the same, that messages have their length.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use softrdma::{RemoteAddr, Rights, Stag, TaggedOffset};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::link::{Link, Plan, Shared};
use super::program::{Place, Task};
use crate::cli::peer::Program;

const VERSION: [u8; 16] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Operations below half of this go to places one after the other in as many bytes.
const CYCLE_BYTES: usize = 4096;
const CACHE_LINE: usize = 64;
/// `IBV_MTU_1024`, in text.
const MTU: &[u8] = b"3\0";
/// Receives on the first connection.
const RECEIVES: usize = 8;
/// Longest message on it.
const MESSAGE_BYTES: usize = 256;
/// READs that a client of `ib_read_bw` keeps outstanding, and a server holds.
const READS: u16 = 128;
/// Receives that the server of `ib_send_bw` posts at most, and that we need no credits for.
pub(super) const SENDS_MAX: usize = 512;

/// What the sides tell each other about their memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
struct Keys {
    lid: U32,
    out_reads: U32,
    qpn: U32,
    psn: U32,
    rkey: U32,
    padding: U32,
    vaddr: U64,
    gid: [u8; 16],
    srqn: U32,
    gid_index: U32,
}
const _: () = assert!(size_of::<Keys>() == 56);

impl Keys {
    fn of(shared: &Shared) -> Self {
        Self {
            out_reads: U32::new(1),
            qpn: U32::new(2),
            rkey: U32::new(shared.region.stag.0),
            vaddr: U64::new(shared.region.base.0),
            ..Self::default()
        }
    }

    fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr {
            stag: Stag(self.rkey.get()),
            to: TaggedOffset(self.vaddr.get()).wrapping_add(offset as u64),
        }
    }
}

/// The first connection.
struct Control {
    link: Link,
    is_client: bool,
}

impl Control {
    /// Tells the peer `mine` and gives what it told.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        if self.is_client {
            self.link.send(mine)?;
            self.link.recv()
        } else {
            let theirs = self.link.recv()?;
            self.link.send(mine)?;
            Ok(theirs)
        }
    }

    fn exchange_keys(&mut self, mine: &Keys) -> Result<Keys> {
        let theirs = self.exchange(mine.as_bytes())?;
        Keys::read_from_bytes(&theirs)
            .map_err(|_| anyhow::anyhow!("keys of {} bytes", theirs.len()))
    }

    /// Everything before the second connection.
    fn greet(&mut self) -> Result<()> {
        let theirs = self.exchange(&VERSION).context("versions")?;
        ensure!(
            theirs.len() == VERSION.len(),
            "a version of {} bytes",
            theirs.len()
        );
        for size in [CYCLE_BYTES, CACHE_LINE] {
            let theirs = self.exchange(&(size as u32).to_be_bytes())?;
            ensure!(
                theirs == (size as u32).to_be_bytes(),
                "the peer has another buffer or cache line: {theirs:?}"
            );
        }
        self.exchange(MTU).context("MTUs")?;
        self.exchange_keys(&Keys::default())?;
        Ok(())
    }
}

pub(super) fn run(task: &Task<'_>, place: &Place<'_>) -> Result<()> {
    let plan = Plan {
        receives: RECEIVES,
        message_bytes: MESSAGE_BYTES,
        ..task.plan()
    };
    match place {
        Place::Connect(address) => {
            let mut control = Control {
                link: task.connect(*address, &plan)?,
                is_client: true,
            };
            control.greet()?;
            client(task, *address, control)
        }
        Place::Listen(listener) => {
            let mut control = Control {
                link: task.accept(listener, &plan)?,
                is_client: false,
            };
            control.greet()?;
            let data = task.accept(listener, &data_plan(task))?;
            server(task, control, data)
        }
    }
}

fn data_plan<'a>(task: &'a Task<'_>) -> Plan<'a> {
    Plan {
        receives: match task.program {
            Program::SendBw => task.count.min(SENDS_MAX),
            _ => 0,
        },
        message_bytes: task.size,
        ..task.plan()
    }
}

/// Keys of both sides, as often as the programs exchange them.
fn meet(task: &Task<'_>, control: &mut Control, shared: &Shared) -> Result<Keys> {
    let mine = Keys::of(shared);
    control.exchange_keys(&Keys::default())?;
    let theirs = control.exchange_keys(&mine)?;
    let more = if task.program == Program::SendBw {
        3
    } else {
        2
    };
    for _ in 0..more {
        control.exchange_keys(&mine)?;
    }
    Ok(theirs)
}

fn client(task: &Task<'_>, address: SocketAddr, mut control: Control) -> Result<()> {
    let mut manner = task.manner.clone();
    if task.program == Program::ReadBw {
        manner.reads = READS;
    }
    let plan = Plan {
        manner: &manner,
        ..data_plan(task)
    };
    let mut data = task.connect(address, &plan)?;
    data.settle()?;
    // The server of `ib_send_bw` WRITEs here how many messages it has taken.
    let shared = Shared::new(task.table(), CYCLE_BYTES, Rights::REMOTE_WRITE)?;
    let theirs = meet(task, &mut control, &shared)?;
    match task.program {
        Program::WriteBw => write_all(task, &mut data, &theirs)?,
        Program::ReadBw => read_all(task, &mut data, &theirs)?,
        _ => {
            for number in 0..task.count {
                data.send(&filling(number, task.size))?;
            }
        }
    }
    let mine = Keys::of(&shared);
    control.exchange_keys(&mine)?;
    if task.program != Program::SendBw {
        let none = 0.0_f64.to_bits();
        for figure in [task.size as u64, task.count as u64, none, none, none] {
            control.exchange(&figure.to_be_bytes())?;
        }
        control.exchange_keys(&mine)?;
    }
    data.close().context("data connection")?;
    control.link.close()
}

fn server(task: &Task<'_>, mut control: Control, mut data: Link) -> Result<()> {
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let shared = Shared::new(task.table(), task.size.max(CYCLE_BYTES), rights)?;
    if task.program == Program::ReadBw {
        shared.buffer.write(0, &filling(7, shared.buffer.len()));
    }
    let theirs = meet(task, &mut control, &shared)?;
    let mine = Keys::of(&shared);
    match task.program {
        Program::SendBw => {
            for number in 1..=task.count {
                let message = data.recv().with_context(|| format!("message {number}"))?;
                ensure!(
                    message.len() == task.size,
                    "a message of {} bytes",
                    message.len()
                );
                data.write(&(number as u32).to_le_bytes(), theirs.remote(0))?;
            }
            control.exchange_keys(&mine)?;
        }
        _ => {
            serve_until_told(&mut control, &mut data, &mine)?;
            let mut figures = [0_u64; 5];
            for figure in &mut figures {
                let told = control.exchange(&[0; 8])?;
                *figure = u64::read_from_bytes(&told).map_or(0, u64::from_be);
            }
            let wanted = [task.size as u64, task.count as u64];
            ensure!(
                figures[..2] == wanted,
                "the client did {figures:?}, not {wanted:?}"
            );
            control.exchange_keys(&mine)?;
        }
    }
    data.close().context("data connection")?;
    control.link.close()?;
    if task.program == Program::WriteBw {
        let untouched = shared.bytes()[..task.size].iter().all(|&byte| byte == 0);
        ensure!(!untouched || task.size < CACHE_LINE, "no WRITE has arrived");
    }
    Ok(())
}

/// Lets the client work on the data connection until it says on the other that it is done.
fn serve_until_told(control: &mut Control, data: &mut Link, mine: &Keys) -> Result<()> {
    while !control.link.has_message()? {
        data.idle().context("data connection")?;
    }
    control.exchange_keys(mine).map(drop)
}

fn write_all(task: &Task<'_>, data: &mut Link, theirs: &Keys) -> Result<()> {
    for number in 0..task.count {
        let remote = theirs.remote(offset(number, task.size));
        data.write(&filling(number, task.size), remote)?;
    }
    // Not what the program does: it asks for no READs. If some were agreed on, they show that the bytes are there.
    if data.agreed()?.revision == 2
        && data.reads() > 0
        && let Some(last) = task.count.checked_sub(1)
    {
        let found = data.read(task.size, theirs.remote(offset(last, task.size)))?;
        ensure!(
            found == filling(last, task.size),
            "other bytes than those written"
        );
    }
    Ok(())
}

fn read_all(task: &Task<'_>, data: &mut Link, theirs: &Keys) -> Result<()> {
    let mut first: Vec<Option<Vec<u8>>> = vec![None; CYCLE_BYTES / CACHE_LINE];
    for number in 0..task.count {
        let offset = offset(number, task.size);
        let found = data.read(task.size, theirs.remote(offset))?;
        match &first[offset / CACHE_LINE] {
            Some(before) if *before != found => bail!("offset {offset} gave other bytes before"),
            Some(_) => {}
            None => first[offset / CACHE_LINE] = Some(found),
        }
    }
    Ok(())
}

/// Where the operation goes: as the programs step through their buffer.
fn offset(number: usize, size: usize) -> usize {
    if size > CYCLE_BYTES / 2 {
        return 0;
    }
    let step = size.next_multiple_of(CACHE_LINE).max(CACHE_LINE);
    number % (CYCLE_BYTES / step) * step
}

fn filling(number: usize, size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| (at * 31 + number * 7 + 1) as u8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_in_the_cycle() {
        for size in [1, 13, 64, 65, 1000, 2048, 2049, 65536] {
            for number in 0..200 {
                let offset = offset(number, size);
                assert!(offset + size <= CYCLE_BYTES.max(size), "{size} {number}");
                assert_eq!(offset % CACHE_LINE, 0);
            }
        }
    }
}
