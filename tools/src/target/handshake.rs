//! Who takes what appears on the port of a lane: the thread that drives it, or the reactor.

#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(test))]
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

// The tests of this file run it under many schedules.
#[cfg(test)]
use shuttle::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(test)]
use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(test)]
use std::sync::PoisonError;

/// Agreement between the thread on a lane, the reactor, and whoever puts something on the lane's port.
#[derive(Debug)]
pub(super) struct Handshake {
    /// A thread drives the lane.
    driven: AtomicBool,
    /// Something is on the port that nobody has looked at since the lane was last driven, perhaps.
    left: AtomicBool,
    /// Something has appeared that the thread on the lane has not looked at.
    called: Mutex<bool>,
    call: Condvar,
}

impl Handshake {
    /// Of a lane that nobody drives.
    pub(super) fn new() -> Self {
        Self {
            driven: AtomicBool::new(false),
            left: AtomicBool::new(false),
            called: Mutex::new(false),
            call: Condvar::new(),
        }
    }

    /// A thread drives the lane from now on. It looks at the port before it waits.
    pub(super) fn enter(&self) {
        self.driven.store(true, Ordering::SeqCst);
    }

    /// The thread ends. It must look at the port once more, behind this.
    pub(super) fn leave(&self) {
        self.driven.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Something has been put on the port; true if the reactor must be woken.
    pub(super) fn appeared(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.driven.load(Ordering::SeqCst) {
            self.call();
            return false;
        }
        self.left.store(true, Ordering::SeqCst);
        true
    }

    /// Something that the reactor has done may have put something on the port. The reactor looks at it by itself.
    pub(super) fn stirred(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.call();
    }

    /// Whether the reactor should look at the port; asked once. It says so with `found` if there was something, for there
    /// may be more.
    pub(super) fn take_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) && self.left.swap(false, Ordering::SeqCst)
    }

    /// See [`Handshake::take_left`].
    pub(super) fn found(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// The thread on the lane waits until something appears, or has appeared since it waited last.
    pub(super) fn wait(&self) {
        let mut called = self.lock();
        while !*called {
            called = self
                .call
                .wait(called)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *called = false;
    }

    fn call(&self) {
        *self.lock() = true;
        self.call.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use shuttle::sync::Arc;
    use shuttle::thread;

    use super::*;

    /// What there is to be done.
    #[derive(Clone, Copy)]
    enum Action {
        /// Its end is the event that a driver waits for.
        Asked,
        /// Nobody waits for it.
        Other,
    }

    #[derive(Default)]
    struct Port {
        actions: VecDeque<Action>,
        events: usize,
        done: usize,
    }

    /// A port, its lane, and a reactor that sleeps until it is woken.
    struct World {
        port: Mutex<Port>,
        handshake: Handshake,
        inbox: Mutex<Inbox>,
        wake: Condvar,
        lane: Mutex<()>,
    }

    #[derive(Default)]
    struct Inbox {
        actions: Vec<Action>,
        call: bool,
        end: bool,
    }

    impl World {
        fn put(&self, action: Action) {
            self.port.lock().unwrap().actions.push_back(action);
        }

        /// Somebody who is not on the lane puts an action there.
        fn post(&self, action: Action) {
            self.put(action);
            if self.handshake.appeared() {
                self.wake(|_| ());
            }
        }

        fn wake(&self, why: impl FnOnce(&mut Inbox)) {
            let mut inbox = self.inbox.lock().unwrap();
            inbox.call = true;
            why(&mut inbox);
            self.wake.notify_one();
        }

        fn take(&self) -> Option<Action> {
            self.port.lock().unwrap().actions.pop_front()
        }

        fn carry_out(&self, action: Action) {
            let mut port = self.port.lock().unwrap();
            port.done += 1;
            port.events += usize::from(matches!(action, Action::Asked));
        }

        /// A request on the lane: waits for one event, for which it `asks` itself or somebody else does. Carries out
        /// itself what was asked for, if `own`, or leaves that to the reactor, too.
        fn drive(&self, asks: bool, own: bool) {
            let _lane = self.lane.lock().unwrap();
            self.handshake.enter();
            if asks {
                self.put(Action::Asked);
            }
            loop {
                while let Some(action) = self.take() {
                    match action {
                        Action::Asked if own => self.carry_out(action),
                        _ => self.hand_over(action),
                    }
                }
                let mut port = self.port.lock().unwrap();
                if port.events > 0 {
                    port.events -= 1;
                    break;
                }
                drop(port);
                self.handshake.wait();
            }
            self.handshake.leave();
            while let Some(action) = self.take() {
                self.hand_over(action);
            }
        }

        fn hand_over(&self, action: Action) {
            self.wake(|inbox| inbox.actions.push(action));
        }

        fn reactor(&self) {
            loop {
                let mut inbox = self.inbox.lock().unwrap();
                while !inbox.call {
                    inbox = self.wake.wait(inbox).unwrap();
                }
                inbox.call = false;
                let (mut actions, end) = (std::mem::take(&mut inbox.actions), inbox.end);
                drop(inbox);
                loop {
                    if self.handshake.take_left()
                        && let Some(action) = self.take()
                    {
                        self.handshake.found();
                        actions.push(action);
                    }
                    let Some(action) = actions.pop() else {
                        break;
                    };
                    self.carry_out(action);
                    self.handshake.stirred();
                }
                if end {
                    return;
                }
            }
        }
    }

    /// L1 to L3 of lanes, M8: whatever appears on the port is carried out, by the thread or by the reactor, and who waits
    /// for an event gets it. A lost call is a deadlock here, a lost action is missing in the end.
    #[test]
    fn nothing_is_left_on_the_port() {
        let scenario = || {
            let world = Arc::new(World {
                port: Mutex::default(),
                handshake: Handshake::new(),
                inbox: Mutex::default(),
                wake: Condvar::new(),
                lane: Mutex::new(()),
            });
            let run = |work: fn(&World)| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            };
            let reactor = run(World::reactor);
            let others = [
                run(|world| world.drive(true, true)),
                run(|world| world.drive(true, false)),
                run(|world| world.drive(false, true)),
                run(|world| {
                    world.post(Action::Other);
                    world.post(Action::Asked);
                }),
            ];
            for other in others {
                other.join().unwrap();
            }
            world.wake(|inbox| inbox.end = true);
            reactor.join().unwrap();
            let port = world.port.lock().unwrap();
            assert_eq!((port.actions.len(), port.events, port.done), (0, 0, 4));
        };
        shuttle::check_random(scenario, 20_000);
        shuttle::check_pct(scenario, 5_000, 3);
    }
}
