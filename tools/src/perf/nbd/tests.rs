//! The client against a server that says what it is told to.

use std::net::TcpListener;
use std::thread::JoinHandle;

use super::super::shape::Pattern;
use super::*;

const NO_ERROR: [u8; 4] = [0; 4];

fn shape(direction: Direction) -> Shape {
    Shape {
        direction,
        size: 8,
        depth: 2,
        connections: 1,
        idle: 0,
        seconds: 86_400.0,
        file_bytes: 64,
        sync: false,
        poll: false,
        spin_us: 0,
        pattern: Pattern::Random,
        turn: 0,
    }
}

/// A server that lives by `script`, and whom the client ends up with.
fn against<T: Send + 'static>(
    shape: &Shape,
    script: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (io::Result<Figures>, T) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server: JoinHandle<T> = std::thread::spawn(move || script(listener.accept().unwrap().0));
    let result = run(address, shape, None);
    (result, server.join().unwrap())
}

fn fault(error: &io::Error) -> Fault {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    *inner.unwrap_or_else(|| panic!("{error}"))
}

/// Negotiates, as far as an export of 64 bytes with these flags.
fn negotiate(stream: &mut TcpStream, flags: u8) {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    let mut asked = [0; 4 + 22];
    stream.read_exact(&mut asked).unwrap();
    let mut answer = option_reply(3, 12);
    answer.extend(b"\0\0\0\0\0\0\0\0\0\x40\0");
    answer.push(flags);
    answer.extend(option_reply(1, 0));
    stream.write_all(&answer).unwrap();
}

fn option_reply(kind: u32, length: u32) -> Vec<u8> {
    let magic = 0x3_e889_0455_65a9_u64.to_be_bytes();
    let rest = [7, kind, length].map(u32::to_be_bytes).concat();
    [&magic[..], &rest].concat()
}

/// The cookie of the next request of the client, which brings so many bytes with it.
fn request(stream: &mut TcpStream, payload: usize) -> [u8; 8] {
    let mut request = vec![0; 28 + payload];
    stream.read_exact(&mut request).unwrap();
    request[8..16].try_into().unwrap()
}

fn reply(error: [u8; 4], cookie: [u8; 8], payload: &[u8]) -> Vec<u8> {
    [b"\x67\x44\x66\x98", &error[..], &cookie, payload].concat()
}

/// How a run ends whose first replies are these, with the cookies of what was asked.
fn answered_with(script: impl FnOnce([[u8; 8]; 2]) -> Vec<u8> + Send + 'static) -> io::Error {
    let (result, ()) = against(&shape(Direction::Read), |mut stream| {
        negotiate(&mut stream, 1);
        let cookies = [0; 2].map(|_| request(&mut stream, 0));
        stream.write_all(&script(cookies)).unwrap();
        // The client goes because of what it has heard, not because the server does.
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    result.unwrap_err()
}

/// What is no reply to what was asked ends the run.
#[test]
fn wrong_replies() {
    let error = answered_with(|_| b"XXXXYYYYZZZZZZZZ".to_vec());
    assert_eq!(fault(&error), Fault::Magic(u32::from_be_bytes(*b"XXXX")));
    let error = answered_with(|[one, _]| reply([0, 0, 0, 5], one, b""));
    assert_eq!(fault(&error), Fault::Failed(5));
    let error = answered_with(|_| reply(NO_ERROR, [9; 8], b"12345678"));
    assert_eq!(fault(&error), Fault::Unknown(u64::from_be_bytes([9; 8])));
    // Twice the same: its place is taken by another request by then.
    let error = answered_with(|[one, _]| reply(NO_ERROR, one, b"12345678").repeat(2));
    assert!(matches!(fault(&error), Fault::Unknown(_)), "{error}");
}

/// A server that goes away is told of at once, in the middle of a reply as well, not when the time is over.
#[test]
fn a_server_that_goes_away() {
    for said in [0, 3, 20] {
        let (result, ()) = against(&shape(Direction::Read), move |mut stream| {
            negotiate(&mut stream, 1);
            let [one, _] = [0; 2].map(|_| request(&mut stream, 0));
            let reply = reply(NO_ERROR, one, b"12345678");
            stream.write_all(&reply[..said]).unwrap();
        });
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}

/// What is no server of what was asked for is not measured.
#[test]
fn exports_that_do_not_do() {
    let said = |shape: &Shape, hello: &'static [u8]| {
        let (result, ()) = against(shape, move |mut stream| {
            stream.write_all(hello).unwrap();
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        fault(&result.unwrap_err())
    };
    let read = shape(Direction::Read);
    assert_eq!(said(&read, b"SSH-2.0-OpenSSH_9.2"), Fault::Greeting);
    let gone = |shape: &Shape, flags| {
        let (result, ()) = against(shape, move |mut stream| negotiate(&mut stream, flags));
        fault(&result.unwrap_err())
    };
    let larger = Shape {
        file_bytes: 65,
        ..read
    };
    let small = Fault::Small {
        has: 64,
        needed: 65,
    };
    assert_eq!(gone(&larger, 1), small);
    let write = shape(Direction::Write);
    assert_eq!(gone(&write, 1 | 2), Fault::ReadOnly);
    let sync = Shape {
        sync: true,
        ..write
    };
    assert_eq!(gone(&sync, 1), Fault::Volatile);
    let (result, ()) = against(&read, |mut stream| {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        stream.write_all(&option_reply(0x8000_0006, 0)).unwrap();
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    assert_eq!(fault(&result.unwrap_err()), Fault::Refused(0x8000_0006));
}

/// Replies count in whatever order and pieces they come; all that was asked is waited for, and then the server is told of the end.
#[test]
fn an_orderly_run() {
    for (direction, asked, answered) in [(Direction::Read, 0, 8), (Direction::Write, 8, 0)] {
        let shape = Shape {
            seconds: 0.2,
            ..shape(direction)
        };
        let (result, served) = against(&shape, move |stream| {
            serve_in_pieces(stream, asked, &vec![7; answered])
        });
        let figures = result.unwrap();
        // Those before the measured time, and the last ones, do not count.
        assert!((1..served).contains(&figures.operations), "{figures:?}");
    }
}

/// Answers the second request before the first, and each in two pieces, until the client says good-bye; tells how many there were.
fn serve_in_pieces(mut stream: TcpStream, asked: usize, payload: &[u8]) -> u64 {
    stream.set_nodelay(true).unwrap();
    negotiate(&mut stream, 1 | 8);
    let [one, two] = [0; 2].map(|_| request(&mut stream, asked));
    let mut next = vec![two, one];
    let mut served = 0;
    loop {
        for cookie in next.drain(..) {
            served += 1;
            let reply = reply(NO_ERROR, cookie, payload);
            let (first, rest) = reply.split_at(served % reply.len());
            stream.write_all(first).unwrap();
            stream.write_all(rest).unwrap();
        }
        let mut header = [0; 28];
        stream.read_exact(&mut header).unwrap();
        if header[6..8] == [0, 2] {
            return served as u64;
        }
        let mut written = vec![0; asked];
        stream.read_exact(&mut written).unwrap();
        assert!(written.iter().all(|byte| *byte == PAYLOAD));
        next.push(header[8..16].try_into().unwrap());
    }
}
