//! Who ends the privileges that a program file gives before a peer changes its content.
//!
//! Ending them is a change of metadata, which waits for the volume, so a thread of its own does it; the WRITE that it is for
//! is parked meanwhile, as for a page that is not in memory. `tools/docs/regions.md` has the argument.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use contigfs::{BlockStore, Fs, FsError, InodeNo, StoreError};

use super::mapped::Mapped;

/// What is done when the privileges have ended, or could not be.
type Then = Box<dyn FnOnce(Result<(), FsError>) + Send>;

enum Message {
    End(InodeNo, Then),
    Stop,
}

/// The way to the thread. There are as many messages on it as connections have pages that they wait for.
pub(super) struct Ender(Sender<Message>);

impl fmt::Debug for Ender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ender").finish_non_exhaustive()
    }
}

impl Ender {
    /// Ends the privileges that a file gives, then calls `then`.
    pub(super) fn end(&self, ino: InodeNo, then: Then) {
        if let Err(refused) = self.0.send(Message::End(ino, then))
            && let Message::End(_, then) = refused.0
        {
            // The target is ending.
            then(Err(StoreError::Failed.into()));
        }
    }
}

/// The thread. Dropping it ends it, after what it has been asked for.
#[derive(Debug)]
pub(super) struct EnderThread {
    to_stop: Sender<Message>,
    thread: Option<JoinHandle<()>>,
}

impl EnderThread {
    /// Starts to serve `mapped`.
    pub(super) fn start<S: BlockStore + 'static>(
        fs: Arc<Fs<S>>,
        mapped: &Arc<Mapped>,
    ) -> io::Result<Self> {
        let (sender, messages) = channel();
        mapped.set_ender(Ender(sender.clone()));
        let mapped = Arc::clone(mapped);
        let thread = Builder::new()
            .name("privileges".into())
            .spawn(move || run(&fs, &mapped, &messages))?;
        Ok(Self {
            to_stop: sender,
            thread: Some(thread),
        })
    }
}

impl Drop for EnderThread {
    fn drop(&mut self) {
        let _ = self.to_stop.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn run<S: BlockStore>(fs: &Fs<S>, mapped: &Mapped, messages: &Receiver<Message>) {
    while let Ok(Message::End(ino, then)) = messages.recv() {
        // Somebody else may have been faster, or the file has gone, and its number may be another's.
        let ended = match mapped.is_privileged(ino) {
            true => fs.end_privileges_past(ino, || mapped.unprivileged(ino)),
            false => Ok(()),
        };
        then(ended);
    }
}
