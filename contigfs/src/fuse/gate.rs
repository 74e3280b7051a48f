//! The end of a mount that its users do not leave: from some moment on everything is refused, and what was answered before that moment
//! can be made durable as a whole.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Message;
use super::reply::Reply;
use super::requests::{Asked, Requests};
use super::session::Serve;
use super::wire::opcode;

/// How long requests that have been taken may take: making a snapshot may wait for pages that peers hold, and nothing else waits
/// for anybody but the media.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(200);

/// Lets requests through to who serves them, until it is closed.
pub(super) struct Gate {
    server: Arc<dyn Serve>,
    known: Arc<Known>,
}

/// What is known of the requests.
#[derive(Debug, Default)]
struct Known {
    closed: AtomicBool,
    under_way: AtomicUsize,
    requests: Requests,
}

/// A request that has not been answered. Goes with the answer.
#[derive(Debug)]
pub(super) struct UnderWay {
    known: Arc<Known>,
    asked: Asked,
}

impl UnderWay {
    /// It has been answered, with `error` (0, or a negative errno) or with so many bytes.
    pub(super) fn answered(self, error: i32, bytes: u64) {
        self.known.requests.answered(&self.asked, error, bytes);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.known.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl Gate {
    pub(super) fn new(server: Arc<dyn Serve>) -> Self {
        Self {
            server,
            known: Arc::default(),
        }
    }

    /// What is asked for.
    pub(super) fn requests(&self) -> Requests {
        self.known.requests.clone()
    }

    /// Whoever asks for something from now on is told that there is nobody (`ENOTCONN`, as the kernel says it). Returns when all
    /// that was asked for before has been answered; false if it took too long.
    pub(super) fn close(&self) -> bool {
        self.known.closed.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while self.known.under_way.load(Ordering::SeqCst) > 0 {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(PAUSE);
        }
        true
    }
}

impl Serve for Gate {
    fn serve(&self, message: Message<'_>, reply: Reply) {
        // Counted before it looks: who closes the gate sees it, or it sees the gate closed. Nobody waits at the gate, because
        // those that are served may wait for requests that come later (pages to be recalled).
        self.known.under_way.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay {
            known: Arc::clone(&self.known),
            asked: Asked::now(&message.header),
        };
        if !self.known.closed.load(Ordering::SeqCst) {
            return self.server.serve(message, reply.counted(under_way));
        }
        drop(under_way);
        match message.header.opcode {
            opcode::FORGET | opcode::BATCH_FORGET => reply.none(),
            _ => reply.errno(libc::ENOTCONN),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use zerocopy::IntoBytes;

    use super::super::reply::Outlet;
    use super::super::wire::InHeader;
    use super::*;
    use crate::span::Span;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(u64, i32)>>);

    impl Outlet for Heard {
        fn answer(&self, unique: u64, error: i32, _parts: &[Span<'_>]) {
            self.0.lock().unwrap().push((unique, error));
        }
    }

    /// Leaves the answers to another thread.
    struct Later(Mutex<Sender<Reply>>);

    impl Serve for Later {
        fn serve(&self, _message: Message<'_>, reply: Reply) {
            self.0.lock().unwrap().send(reply).unwrap();
        }
    }

    fn gate() -> (Gate, Receiver<Reply>, Arc<Heard>) {
        let (sender, replies) = channel();
        let gate = Gate::new(Arc::new(Later(Mutex::new(sender))));
        (gate, replies, Arc::default())
    }

    fn ask(gate: &Gate, heard: &Arc<Heard>, unique: u64, opcode: u32) {
        let header = InHeader {
            len: size_of::<InHeader>() as u32,
            opcode,
            unique,
            ..InHeader::default()
        };
        let message = Message::parse(header.as_bytes()).unwrap();
        let outlet = Arc::clone(heard) as Arc<dyn Outlet>;
        gate.serve(message, Reply::new(unique, outlet));
    }

    /// What was asked for before the gate was closed is answered before it is said to be closed, whoever answers; what comes later
    /// is refused meanwhile, and gets an answer only if it wants one.
    #[test]
    fn all_that_came_before_is_answered() {
        let (gate, replies, heard) = gate();
        ask(&gate, &heard, 1, opcode::WRITE);
        ask(&gate, &heard, 2, opcode::WRITE);
        thread::scope(|scope| {
            let closing = scope.spawn(|| {
                let closed = gate.close();
                heard.0.lock().unwrap().push((0, 0));
                closed
            });
            while !gate.known.closed.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            ask(&gate, &heard, 3, opcode::WRITE);
            ask(&gate, &heard, 4, opcode::FORGET);
            thread::sleep(10 * PAUSE);
            for _ in 0..2 {
                replies.recv().unwrap().done(Ok(()));
            }
            assert!(closing.join().unwrap());
        });
        ask(&gate, &heard, 5, opcode::READ);
        let heard = heard.0.lock().unwrap();
        let gone = -libc::ENOTCONN;
        assert_eq!(*heard, [(3, gone), (1, 0), (2, 0), (0, 0), (5, gone)]);
    }
}
