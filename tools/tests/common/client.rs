//! What tests of the file client share: files, answers, and a wire to the target that is cut at chosen moments.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tools::client::{Atomic, Client, File};

/// A new file of that length.
pub fn create(client: &Client, path: &str, length: u64) -> File {
    let options = client.options().write(true).create(true).truncate(length);
    options.open(path).unwrap()
}

/// Adds `n` to a word.
pub fn add(n: u64) -> Atomic {
    Atomic::FetchAdd { add: n, mask: 0 }
}

/// Waits for a future on this thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        let mut context = std::task::Context::from_waker(&waker);
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

/// The sockets of a connection, and whether what the target says is lost.
type Pair = ([TcpStream; 2], Arc<AtomicBool>);

/// Everything between a client and a target, to lose connections at chosen moments.
pub struct Wire {
    /// Where clients connect.
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    pairs: Arc<Mutex<Vec<Pair>>>,
    /// So many connections are ended when they are made.
    refused: Arc<AtomicUsize>,
    /// Those that are made end when the target has said so many bytes on them.
    said_max: Arc<AtomicUsize>,
}

impl Wire {
    /// A wire to this target.
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Self {
            address: listener.local_addr().unwrap(),
            target: Arc::new(Mutex::new(target)),
            pairs: Arc::default(),
            refused: Arc::default(),
            said_max: Arc::new(AtomicUsize::new(usize::MAX)),
        };
        let (pairs, leads_to) = (Arc::clone(&wire.pairs), Arc::clone(&wire.target));
        let (refused, said_max) = (Arc::clone(&wire.refused), Arc::clone(&wire.said_max));
        thread::spawn(move || {
            for client in listener.incoming() {
                let refuses = |left: usize| left.checked_sub(1);
                if refused
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuses)
                    .is_ok()
                {
                    continue;
                }
                let target = *leads_to.lock().unwrap();
                let (Ok(client), Ok(target)) = (client, TcpStream::connect(target)) else {
                    continue;
                };
                let deaf = Arc::new(AtomicBool::new(false));
                let copies = [client.try_clone().unwrap(), target.try_clone().unwrap()];
                pairs.lock().unwrap().push((copies, Arc::clone(&deaf)));
                let (up, down) = (client.try_clone().unwrap(), target.try_clone().unwrap());
                let said_max = said_max.load(Ordering::SeqCst);
                thread::spawn(move || pass(up, target, &AtomicBool::new(false), usize::MAX));
                thread::spawn(move || pass(down, client, &deaf, said_max));
            }
        });
        wire
    }

    /// From now on what the target says on these connections is lost.
    pub fn deafen(&self) {
        for (_, deaf) in &*self.pairs.lock().unwrap() {
            deaf.store(true, Ordering::SeqCst);
        }
    }

    /// So many of the next connections are ended when they are made.
    pub fn refuse(&self, connections: usize) {
        self.refused.store(connections, Ordering::SeqCst);
    }

    /// Connections that are made from now on end when the target has said so many bytes on them.
    pub fn choke(&self, bytes: usize) {
        self.said_max.store(bytes, Ordering::SeqCst);
    }

    /// New connections are made to this target.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = target;
    }

    /// Ends all connections; those that come are whole again.
    pub fn cut(&self) {
        for (sockets, _) in self.pairs.lock().unwrap().drain(..) {
            for socket in sockets {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, deaf: &AtomicBool, most: usize) {
    let (mut bytes, mut passed) = ([0; 65536], 0);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        passed += count;
        if passed > most {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
        if !deaf.load(Ordering::SeqCst) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
