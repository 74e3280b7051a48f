//! `rping`: the client advertises a ping, the server READs it and WRITEs it back.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use softrdma::{RemoteAddr, Rights, Stag, TaggedOffset};

use super::link::{Link, Plan, Shared};
use super::program::{Place, Task};

/// Bytes of an advertisement: address, STag and length, each big-endian.
const ADVERTISEMENT: usize = 16;

pub(super) fn run(task: &Task<'_>, place: &Place<'_>) -> Result<()> {
    let plan = Plan {
        receives: 2,
        message_bytes: ADVERTISEMENT,
        ..task.plan()
    };
    match place {
        Place::Connect(address) => {
            for _ in 0..task.connections {
                ping(task, task.connect(*address, &plan)?)?;
            }
        }
        Place::Listen(listener) => {
            for _ in 0..task.connections {
                answer(task, task.accept(listener, &plan)?)?;
            }
        }
    }
    Ok(())
}

/// The client: what comes back must be what was sent, as with `rping -V`.
fn ping(task: &Task<'_>, mut link: Link) -> Result<()> {
    let source = Shared::new(task.table(), task.size, Rights::REMOTE_READ)?;
    let sink = Shared::new(task.table(), task.size, Rights::REMOTE_WRITE)?;
    for number in 0..task.count {
        let text = ping_text(number, task.size);
        source.buffer.write(0, &text);
        link.send(&advertise(&source))?;
        link.recv_array::<ADVERTISEMENT>().context("go-ahead")?;
        link.send(&advertise(&sink))?;
        link.recv_array::<ADVERTISEMENT>().context("go-ahead")?;
        ensure!(sink.bytes() == text, "ping {number} came back changed");
    }
    link.close()
}

/// The server: serves until the client ends, and knows what a ping must look like.
fn answer(task: &Task<'_>, mut link: Link) -> Result<()> {
    let mut number = 0;
    while let Some(advertised) = link.recv_or_end()? {
        let (remote, len) = parse(&advertised)?;
        let text = link.read(len, remote)?;
        ensure!(
            text == ping_text(number, len),
            "ping {number} is not what rping sends"
        );
        link.send(&[0; ADVERTISEMENT])?;
        let (remote, len) = parse(&link.recv()?)?;
        ensure!(
            len == text.len(),
            "the sink has {len} bytes, the source had {}",
            text.len()
        );
        link.write(&text, remote)?;
        link.send(&[0; ADVERTISEMENT])?;
        number += 1;
    }
    ensure!(
        number == task.count,
        "{number} pings instead of {}",
        task.count
    );
    link.until_closed()
}

fn advertise(shared: &Shared) -> [u8; ADVERTISEMENT] {
    let mut message = [0; ADVERTISEMENT];
    message[..8].copy_from_slice(&shared.region.base.0.to_be_bytes());
    message[8..12].copy_from_slice(&shared.region.stag.0.to_be_bytes());
    message[12..].copy_from_slice(&(shared.region.len as u32).to_be_bytes());
    message
}

fn parse(message: &[u8]) -> Result<(RemoteAddr, usize)> {
    let (Some(to), Some(stag), Some(len), ADVERTISEMENT) = (
        message.first_chunk(),
        message.get(8..).and_then(<[u8]>::first_chunk),
        message.get(12..).and_then(<[u8]>::first_chunk),
        message.len(),
    ) else {
        anyhow::bail!("an advertisement of {} bytes", message.len());
    };
    let remote = RemoteAddr {
        stag: Stag(u32::from_be_bytes(*stag)),
        to: TaggedOffset(u64::from_be_bytes(*to)),
    };
    let len = u32::from_be_bytes(*len) as usize;
    ensure!(len <= super::program::SIZE_MAX, "a buffer of {len} bytes");
    Ok((remote, len))
}

/// `rdma-ping-N: ` and letters from `A` to `z` round and round, each ping beginning one further; ends with NUL.
fn ping_text(number: usize, size: usize) -> Vec<u8> {
    const LETTERS: usize = (b'z' - b'A' + 1) as usize;
    let mut text = String::new();
    let _ = write!(text, "rdma-ping-{number}: ");
    let mut text = text.into_bytes();
    let head = text.len();
    text.extend((head..size).map(|at| b'A' + ((number + at - head) % LETTERS) as u8));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_text_is_that_of_the_program() {
        assert_eq!(ping_text(1, 24), b"rdma-ping-1: BCDEFGHIJK\0");
        assert_eq!(ping_text(57, 19), b"rdma-ping-57: zABC\0");
    }

    #[test]
    fn advertisements_are_checked() {
        let golden = b"\x00\x00\x55\x69\x1c\x7c\x4d\x50\xc3\xf5\x2f\x00\x00\x00\x00\x40";
        let (remote, len) = parse(golden).unwrap();
        assert_eq!(
            (remote.stag, remote.to.0, len),
            (Stag(0xc3f5_2f00), 0x5569_1c7c_4d50, 64)
        );
        assert!(parse(&golden[..15]).is_err());
        assert!(parse(&[0xff; 16]).is_err());
    }
}
