//! Who takes what appears on a port that is not a reactor's: a thread that drives it, or the reactor.

#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(test))]
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

// The tests of this file run it under many schedules.
#[cfg(test)]
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(test)]
use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(test)]
use std::sync::PoisonError;

/// Agreement between the threads on a port, the reactor, and whoever puts something there. Only the thread of a lane, which has
/// its port to itself, may wait.
#[derive(Debug)]
pub(super) struct Handshake {
    /// Threads that drive the port.
    drivers: AtomicUsize,
    /// Something is on the port that nobody has looked at since it was last driven, perhaps.
    left: AtomicBool,
    /// Something has appeared that the thread on the lane has not looked at.
    called: Mutex<bool>,
    call: Condvar,
}

impl Handshake {
    /// Of a port that nobody drives.
    pub(super) fn new() -> Self {
        Self {
            drivers: AtomicUsize::new(0),
            left: AtomicBool::new(false),
            called: Mutex::new(false),
            call: Condvar::new(),
        }
    }

    /// A thread drives the port from now on. It looks at the port before it waits.
    pub(super) fn enter(&self) {
        self.drivers.fetch_add(1, Ordering::SeqCst);
    }

    /// The thread ends. It must look at the port once more, behind this.
    pub(super) fn leave(&self) {
        self.drivers.fetch_sub(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Something has been put on the port; true if the reactor must be woken.
    pub(super) fn appeared(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.drivers.load(Ordering::SeqCst) > 0 {
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

    /// The reactor has looked at the port. A thread may have come to the lane meanwhile, and what it had left to be done was
    /// done by the reactor's asking: nobody else tells it of the answer.
    pub(super) fn looked(&self) {
        self.call();
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
        /// Something is to be done by whoever asks for actions next, which brings forth an event at once.
        owed: bool,
        events: usize,
        done: usize,
        /// Events that were taken in place of those who asked.
        answered: usize,
    }

    /// A port, its lane, and a reactor that sleeps until it is woken.
    struct World {
        port: Mutex<Port>,
        handshake: Handshake,
        inbox: Mutex<Inbox>,
        wake: Condvar,
        lane: Mutex<()>,
        /// Nobody waits at the port: events are answered by whoever finds them.
        shared: bool,
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

        /// Leaves it to whoever asks for actions.
        fn owe(&self) {
            self.port.lock().unwrap().owed = true;
        }

        fn take(&self) -> Option<Action> {
            let mut port = self.port.lock().unwrap();
            let action = port.actions.pop_front();
            let owed = action.is_none() && std::mem::take(&mut port.owed);
            drop(port);
            if owed {
                self.carry_out(Action::Asked);
            }
            action
        }

        fn carry_out(&self, action: Action) {
            let mut port = self.port.lock().unwrap();
            port.done += 1;
            port.events += usize::from(matches!(action, Action::Asked));
        }

        /// A request on the lane: waits for one event, for which it `asks` itself or somebody else does. Carries out
        /// itself what was asked for, if `own`, or leaves that to the reactor, too.
        fn drive(&self, asks: fn(&Self), own: bool) {
            let _lane = self.lane.lock().unwrap();
            self.handshake.enter();
            asks(self);
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

        /// Asks for something, and works at whatever is there, but does not wait for it.
        fn work(&self) {
            self.handshake.enter();
            self.put(Action::Asked);
            loop {
                while self.step() {}
                self.handshake.leave();
                if !self.step() {
                    return;
                }
                self.handshake.enter();
            }
        }

        fn step(&self) -> bool {
            let answered = self.answer();
            let Some(action) = self.take() else {
                return answered;
            };
            match action {
                Action::Asked => self.carry_out(action),
                Action::Other => self.hand_over(action),
            }
            true
        }

        /// Takes the events that have come, in place of those who asked.
        fn answer(&self) -> bool {
            let mut port = self.port.lock().unwrap();
            let events = std::mem::take(&mut port.events);
            port.answered += events;
            events > 0
        }

        /// A thread elsewhere carries out what was asked for here: the event comes from outside.
        fn carry_out_elsewhere(&self) {
            self.carry_out(Action::Asked);
            if self.handshake.appeared() {
                self.wake(|_| ());
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
                    if self.handshake.take_left() {
                        if self.shared {
                            self.answer();
                        }
                        if let Some(action) = self.take() {
                            self.handshake.found();
                            actions.push(action);
                        }
                        self.handshake.looked();
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

    /// What the threads do beside the reactor, under many schedules; what is on the port in the end.
    fn check(shared: bool, works: &'static [fn(&World)], expected: (usize, usize, usize, usize)) {
        let scenario = move || {
            let world = Arc::new(World {
                port: Mutex::default(),
                handshake: Handshake::new(),
                inbox: Mutex::default(),
                wake: Condvar::new(),
                lane: Mutex::new(()),
                shared,
            });
            let run = |work: fn(&World)| {
                let world = Arc::clone(&world);
                thread::spawn(move || work(&world))
            };
            let reactor = run(World::reactor);
            let others: Vec<_> = works.iter().map(|&work| run(work)).collect();
            for other in others {
                other.join().unwrap();
            }
            world.wake(|inbox| inbox.end = true);
            reactor.join().unwrap();
            let port = world.port.lock().unwrap();
            let found = (port.actions.len(), port.events, port.done, port.answered);
            assert_eq!(found, expected);
        };
        shuttle::check_random(scenario, 20_000);
        shuttle::check_pct(scenario, 5_000, 3);
    }

    /// L1 to L3 of lanes, M8: whatever appears on the port is carried out, by the thread or by the reactor, and who waits
    /// for an event gets it. A lost call is a deadlock here, a lost action is missing in the end.
    #[test]
    fn nothing_is_left_on_the_port() {
        let works: &[fn(&World)] = &[
            |world| world.drive(|world| world.put(Action::Asked), true),
            |world| world.drive(|world| world.put(Action::Asked), false),
            |world| world.drive(|_| (), true),
            |world| {
                world.post(Action::Other);
                world.post(Action::Asked);
            },
        ];
        check(false, works, (0, 0, 4, 0));
    }

    /// L4, M8: the reactor looks at a port because of something older, and does what a thread that has come meanwhile had left
    /// to be done there. The thread hears of the answer: it would sleep for ever, with the page that it got.
    #[test]
    fn an_answer_that_the_reactor_brought_forth_is_heard_of() {
        let works: &[fn(&World)] = &[
            |world| world.drive(World::owe, true),
            |world| world.post(Action::Other),
        ];
        check(false, works, (0, 0, 2, 0));
    }

    /// T1 and T2 of syncs that nobody waits for, M8: of a port that several threads drive nothing is left either, though none of
    /// them waits, and every event is taken by somebody.
    #[test]
    fn nothing_is_left_where_nobody_waits() {
        let works: &[fn(&World)] = &[
            World::work,
            World::work,
            World::carry_out_elsewhere,
            |world| {
                world.post(Action::Other);
                world.post(Action::Asked);
            },
        ];
        check(true, works, (0, 0, 5, 4));
    }
}
