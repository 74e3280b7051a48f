//! The guest's network by itself: whether anything gets through, in any program, before the endpoint is blamed.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::siw::{Guest, HOST_IN_GUEST};

/// Longest wait for a few bytes by plain TCP, without KVM and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(20);
const WORD: &str = "alive";

/// Whether a word of the guest comes through by plain TCP.
pub(super) fn is_alive(guest: &Guest) -> bool {
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) else {
        return true;
    };
    let Ok(at) = listener.local_addr() else {
        return true;
    };
    let seconds = PATIENCE.as_secs();
    let port = at.port();
    let say = format!("echo {WORD} | busybox nc -w {seconds} {HOST_IN_GUEST} {port}");
    let Ok(running) = guest.spawn(&say) else {
        // It has ended; whoever uses it next says so.
        return true;
    };
    let heard = hear(&listener, Instant::now() + PATIENCE);
    drop(listener);
    // It says nothing that matters, and ends when its wait does.
    let _ = running.wait(2 * PATIENCE);
    heard
}

fn hear(listener: &TcpListener, deadline: Instant) -> bool {
    if listener.set_nonblocking(true).is_err() {
        return true;
    }
    while Instant::now() < deadline {
        match listener.accept() {
            Ok((stream, _)) => return says(stream),
            Err(_) => thread::sleep(RETRY),
        }
    }
    false
}

fn says(mut stream: TcpStream) -> bool {
    let mut said = [0; WORD.len()];
    let ready = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
    ready.is_ok() && stream.read_exact(&mut said).is_ok() && said == *WORD.as_bytes()
}
