//! Ports: the two queues between the engine and one driver, and what is in flight there.

use crate::device::{Action, ActionId, MediaOp};
use crate::error::{DurableError, GetError};
use crate::format::HeaderNo;
use crate::ids::{Port, Token};
use crate::map::FrameId;
use crate::page::PageRef;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// An answer of the engine.
#[derive(Debug)]
pub enum Event {
    /// Answers a `get` that was pending.
    Page {
        /// Cookie of the get.
        token: Token,
        /// The page.
        result: Result<PageRef, GetError>,
    },
    /// Answers `sync`, `commit`, `trim`, `put_durable` and `shutdown`.
    Durable {
        /// Cookie of the call.
        token: Token,
        /// Whether it is durable.
        result: Result<(), DurableError>,
    },
}

/// What a media operation in flight is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Fills a frame from `pba`.
    Fill {
        frame: FrameId,
        life: u32,
        pba: crate::addr::Pba,
        crc: u32,
    },
    /// Writes a staging buffer.
    WriteOut { stage: usize },
    /// Data written without being waited for (planted bug only).
    LateData { stage: usize },
    /// Flushes everything up to this header.
    Flush { covers: HeaderNo },
    /// Reads a part of the victim.
    Scan { grains: u32 },
    /// A step of the shutdown.
    Superblock,
    /// Writes pages of a checkpoint.
    SavePages { grains: usize },
    /// Makes the pages, or the root, of a checkpoint durable.
    SaveFlush,
    /// Writes the root of a checkpoint.
    SaveRoot,
    /// Says in the superblock that no root counts; nothing waits for it.
    Disown,
    /// Discards a free segment.
    Discard { segment: crate::addr::SegmentId },
    /// Reads a page of the map.
    LoadPage { slot: usize },
}

/// Calls the driver of a port.
pub(crate) type Waker = Box<dyn Fn() + Send + Sync>;

struct Inner {
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    in_flight: Vec<Option<Op>>,
    free: Vec<usize>,
    lives: u64,
    waker: Option<Waker>,
}

/// One port.
pub(crate) struct PortQueue {
    port: Port,
    inner: Mutex<Inner>,
    actions: AtomicUsize,
    events: AtomicUsize,
    owes: AtomicBool,
}

impl fmt::Debug for PortQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("PortQueue")
            .field("port", &self.port)
            .field("actions", &inner.actions.len())
            .field("events", &inner.events.len())
            .finish()
    }
}

impl PortQueue {
    pub(crate) fn new(port: Port) -> Self {
        Self {
            port,
            inner: Mutex::new(Inner {
                actions: VecDeque::new(),
                events: VecDeque::new(),
                in_flight: Vec::new(),
                free: Vec::new(),
                lives: 0,
                waker: None,
            }),
            actions: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            owes: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("port poisoned by a panic")
    }

    pub(crate) fn push_action(&self, purpose: Op, op: MediaOp) {
        let mut inner = self.lock();
        let index = inner.free.pop().unwrap_or_else(|| {
            inner.in_flight.push(None);
            inner.in_flight.len() - 1
        });
        inner.in_flight[index] = Some(purpose);
        inner.lives += 1;
        let life = inner.lives & 0xff_ffff;
        let id = ActionId(u64::from(self.port.0) << 48 | life << 24 | index as u64);
        inner.actions.push_back(Action { id, op });
        self.actions.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn push_event(&self, event: Event) {
        self.lock().events.push_back(event);
        self.events.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn pop_action(&self) -> Option<Action> {
        if self.actions.load(Ordering::Acquire) == 0 {
            return None;
        }
        let action = self.lock().actions.pop_front()?;
        self.actions.fetch_sub(1, Ordering::Release);
        Some(action)
    }

    pub(crate) fn pop_event(&self) -> Option<Event> {
        if self.events.load(Ordering::Acquire) == 0 {
            return None;
        }
        let event = self.lock().events.pop_front()?;
        self.events.fetch_sub(1, Ordering::Release);
        Some(event)
    }

    /// Work is left for the time when the driver asks for actions.
    pub(crate) fn owe(&self) {
        self.owes.store(true, Ordering::Release);
    }

    /// Whether there is such work; asked once.
    pub(crate) fn take_owed(&self) -> bool {
        self.owes.load(Ordering::Relaxed) && self.owes.swap(false, Ordering::Acquire)
    }

    /// Takes what a completion is for. Each id is good once (I18).
    pub(crate) fn finish(&self, id: ActionId) -> Op {
        let index = (id.0 & 0xff_ffff) as usize;
        let mut inner = self.lock();
        let op = inner
            .in_flight
            .get_mut(index)
            .and_then(Option::take)
            .expect("completion of an action that is not in flight");
        inner.free.push(index);
        op
    }

    /// Whether an action in flight fills a frame.
    pub(crate) fn is_fill(&self, id: ActionId) -> bool {
        let index = (id.0 & 0xff_ffff) as usize;
        let op = self.lock().in_flight.get(index).copied().flatten();
        matches!(op, Some(Op::Fill { .. }))
    }

    /// The port an action belongs to.
    pub(crate) fn of(id: ActionId) -> Port {
        Port((id.0 >> 48) as u16)
    }

    pub(crate) fn set_waker(&self, waker: Waker) {
        self.lock().waker = Some(waker);
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = &self.lock().waker {
            waker();
        }
    }

    /// Forgets all events. Pages in them are put; that happens outside of the lock.
    pub(crate) fn clear_events(&self) {
        let events = std::mem::take(&mut self.lock().events);
        self.events.store(0, Ordering::Release);
        drop(events);
    }
}
