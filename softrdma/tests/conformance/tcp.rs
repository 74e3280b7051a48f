//! The rows of the Terminate table over a real socket: written in pieces by a peer made of bytes, answered by a responder
//! that a plain loop drives.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::wire::start::{NextStart, StartFrame, StartKind};
use softrdma::{Config, Connection, Event, RecvBuffer, SocketState, Stag, Time, WrId};

use super::harness::{Ctx, Cut, OURS, Responder};
use super::terminate::{IRD, enclosed, register, rows};
use crate::common::raw::{self, Sent};
use crate::common::{Residency, TestPages};

const PATIENCE: Duration = Duration::from_secs(60);

/// Serves one connection until it has ended.
fn serve(mut socket: TcpStream, responder: Responder) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let config = Config {
        protection_domain: OURS,
        ird_max: IRD,
        ..Config::default()
    };
    let mut connection = Connection::<TestPages>::responder(config, &responder.table, Time(0));
    let mut pages = responder.pages;
    let mut input = [0; 512];
    let mut shut = false;
    loop {
        while let Some(event) = connection.poll_event() {
            if let Event::ConnectRequest(_) = event {
                for id in 0..2 {
                    connection
                        .post_recv(WrId(id), RecvBuffer::Vec(100))
                        .unwrap();
                }
                connection.accept(b"").unwrap();
            }
        }
        let mut out = Vec::new();
        if connection.poll_transmit(Time(0), &mut pages, &mut out, usize::MAX) > 0 {
            socket.write_all(&out).unwrap();
            continue;
        }
        match connection.socket_state() {
            SocketState::Close => return,
            SocketState::ShutdownWrite if !shut => {
                shut = true;
                socket.shutdown(Shutdown::Write).unwrap();
            }
            _ => {}
        }
        match socket.read(&mut input).unwrap() {
            0 => connection.handle_eof(Time(0)),
            count => {
                connection.handle_bytes(Time(0), &mut pages, &input[..count]);
            }
        }
    }
}

/// Writes `bytes` in pieces, each its own segment if the system will.
fn write(socket: &mut TcpStream, bytes: &[u8], random: &mut StdRng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = random.random_range(1..=rest.len().min(40));
        socket.write_all(&rest[..piece]).unwrap();
        rest = &rest[piece..];
    }
}

pub fn run_all() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Buffers of tests are not made for other threads: each server makes its own responder, and tells its STags.
    let (tell, stags) = channel();
    let count = {
        let responder = Ctx::new(Cut::Whole, None).responder(Residency::Always);
        rows(&register(&responder)).len()
    };
    let server = thread::spawn(move || {
        for _ in 0..count {
            let responder = Ctx::new(Cut::Whole, None).responder(Residency::Always);
            tell.send(register(&responder)).unwrap();
            let (socket, _) = listener.accept().unwrap();
            serve(socket, responder);
        }
    });
    for row in 0..count {
        let mut random = StdRng::seed_from_u64(row as u64);
        let (what, frames, code) = rows(&stags.recv().unwrap()).swap_remove(row);
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        write(&mut socket, &raw::request(true), &mut random);
        let mut reply = [0; 24];
        socket.read_exact(&mut reply).unwrap();
        let start = StartFrame::parse(StartKind::Reply, &reply);
        assert!(matches!(start, Ok(NextStart::Frame(_, 24))), "{start:?}");
        let hello = raw::write(Stag(1), 0, &[], true);
        write(&mut socket, &[hello, frames.concat()].concat(), &mut random);
        // The Terminate arrives, then FIN, though we have not sent ours.
        let mut received = Vec::new();
        socket.read_to_end(&mut received).unwrap();
        let expected = Sent::Terminate(code, enclosed(code, frames.last().unwrap()));
        assert_eq!(raw::frames(&received), [expected], "{what}");
    }
    server.join().unwrap();
}
