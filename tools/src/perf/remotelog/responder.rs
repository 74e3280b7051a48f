//! The responder of the remote log: one connection, one thread, emulated persistent memory.
//!
//! One thread is both the endpoint and the program, so that recipes which need the program are charged its work but not
//! a wake-up of another thread.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use offload_chain::persist::{Domain, EmulatedPm, Program, ReceiveBuffers, Recipe, Responder};
use softrdma::{
    BackingId, CloseReason, Config, Connection, Event, MemoryRegion, ProtectionDomain, RegionSpec,
    RegionTable, RegisterError, Rights, SocketState, Time,
};

use super::PATIENCE;
use super::log::LOG_BYTES;

/// Receive buffers, and the bytes of each: enough for a message with both changes.
const RECEIVES: (usize, usize) = (8, 256);
/// Bytes received or sent by one system call.
const IO_BYTES: usize = 64 << 10;

/// A running responder.
#[derive(Debug)]
pub(super) struct Running {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Names of the log.
    pub(super) region: MemoryRegion,
    /// The log.
    pub(super) pm: EmulatedPm,
    /// The receive queue.
    pub(super) buffers: ReceiveBuffers,
    thread: JoinHandle<Result<()>>,
}

/// Registers the log.
pub(super) fn register(table: &RegionTable) -> Result<MemoryRegion, RegisterError> {
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::FLUSH_PERSISTENT;
    let len = LOG_BYTES as u64;
    table.register(RegionSpec::pages(
        ProtectionDomain(0),
        rights,
        BackingId(0),
        0,
        len,
    ))
}

impl Running {
    /// Listens on loopback for one connection, to be served by the recipe.
    pub(super) fn start(domain: Domain, recipe: &Recipe, config: Config) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let table = RegionTable::new(rand::random());
        let region = register(&table)?;
        let pm = EmulatedPm::new(domain, LOG_BYTES);
        let buffers = ReceiveBuffers::new(RECEIVES.0, RECEIVES.1);
        let program = Program::new(Responder::new(recipe), buffers.clone());
        let memory = pm.clone();
        let thread = std::thread::Builder::new()
            .name("remotelog".to_owned())
            .spawn(move || {
                let (socket, _) = listener.accept()?;
                serve(socket, config, &table, memory, program)
            })?;
        Ok(Self {
            address,
            region,
            pm,
            buffers,
            thread,
        })
    }

    /// Waits for the end of the connection.
    pub(super) fn join(self) -> Result<()> {
        self.thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the responder panicked")))
    }
}

fn serve(
    mut socket: TcpStream,
    config: Config,
    table: &Arc<RegionTable>,
    pm: EmulatedPm,
    mut program: Program,
) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    // The program's view of the memory, and the endpoint's.
    let (mut memory, mut pages) = (pm.clone(), pm);
    let mut connection = Connection::responder(config, table, Time(0));
    program.start(&mut connection)?;
    let started = Instant::now();
    let mut input = vec![0; IO_BYTES];
    let mut output = Vec::with_capacity(IO_BYTES);
    let mut ended = None;
    let mut is_shut = false;
    loop {
        let now = Time(0) + started.elapsed();
        while let Some(ticket) = memory.poll_synced() {
            connection.handle_durable(&mut pages, ticket, Ok(()));
        }
        while let Some(event) = connection.poll_event() {
            match event {
                Event::ConnectRequest(_) => connection.accept(&[])?,
                Event::Closed(reason) => ended = Some(reason),
                _ => {}
            }
        }
        while let Some(completion) = connection.poll_completion() {
            program.handle(&completion, &mut connection, &mut memory)?;
        }
        // Whatever goes out now says that the write-backs are over.
        spend(memory.take_debt());
        output.clear();
        connection.poll_transmit(now, &mut pages, &mut output, IO_BYTES);
        if !output.is_empty() {
            socket.write_all(&output)?;
            continue;
        }
        match connection.socket_state() {
            SocketState::Open => {}
            SocketState::ShutdownWrite if is_shut => {}
            SocketState::ShutdownWrite => {
                is_shut = true;
                socket.shutdown(Shutdown::Write)?;
                continue;
            }
            SocketState::Close => match ended {
                Some(CloseReason::Graceful) => return Ok(()),
                Some(reason) => bail!("responder: connection ended: {reason}"),
                None => continue,
            },
        }
        let count = socket.read(&mut input).context("responder: socket")?;
        if count == 0 {
            connection.handle_eof(now);
            continue;
        }
        let mut rest = &input[..count];
        while !rest.is_empty() {
            let taken = connection.handle_bytes(now, &mut pages, rest);
            rest = &rest[taken..];
            while let Some(ticket) = memory.poll_synced() {
                connection.handle_durable(&mut pages, ticket, Ok(()));
            }
        }
    }
}

/// Passes time as the processor does that waits for its memory.
fn spend(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
