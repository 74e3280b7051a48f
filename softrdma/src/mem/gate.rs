//! The gate of a region: open while a peer's bytes are copied, closed for good by who ends the region.
//!
//! # Invariants
//! - G1. Who has entered finds the region as it was at that moment until the passage is dropped: alive or not, and as
//!   far as peers reached.
//! - G2. When [`Gate::close`] or [`Gate::set_reach`] has returned, every passage that was given before is over (I11).

use std::sync::PoisonError;
#[cfg(not(test))]
use std::sync::{RwLock, RwLockReadGuard};

#[cfg(test)]
use crate::mem::modelled::{RwLock, RwLockReadGuard};

#[derive(Clone, Copy, Debug)]
struct State {
    live: bool,
    /// Bytes from the start of the region that peers may touch.
    reach: u64,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Gate(RwLock<State>);

/// Somebody is at it, and nobody ends or cuts the region meanwhile.
#[derive(Debug)]
pub(crate) struct Passage<'a>(RwLockReadGuard<'a, State>);

impl Gate {
    /// The gate of a live region.
    pub(crate) fn new(reach: u64) -> Self {
        Self(RwLock::new(State { live: true, reach }))
    }

    /// Enters; whether the region is alive is asked of the passage.
    pub(crate) fn enter(&self) -> Passage<'_> {
        Passage(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the region, for good.
    pub(crate) fn close(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).live = false;
    }

    /// Changes how far peers reach.
    pub(crate) fn set_reach(&self, bytes: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).reach = bytes;
    }
}

impl Passage<'_> {
    pub(crate) fn is_live(&self) -> bool {
        self.0.live
    }

    pub(crate) fn reach(&self) -> u64 {
        self.0.reach
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shuttle::sync::Mutex;
    use shuttle::thread;

    use crate::addr::{ProtectionDomain, Stag, StreamId, TaggedOffset};
    use crate::mem::Buffer;
    use crate::mem::access::{AccessError, AccessKind, Accessor, Request, check};
    use crate::mem::cache::RegionCache;
    use crate::mem::modelled::Model;
    use crate::mem::region::{MemoryRegion, RegionSpec, RegionTable, Rights};
    use crate::mem::window::{DomainWindow, MemoryWindow, WindowBind};

    const SCHEDULES: usize = 4_000;
    const WHO: Accessor = Accessor {
        stream: StreamId(1),
        domain: ProtectionDomain(0),
        planted: None,
    };
    /// Bytes of the region, and of a segment.
    const LEN: usize = 8;
    const SEGMENT: usize = 4;

    struct World {
        _model: Model,
        table: Arc<RegionTable>,
        memory: Arc<Buffer>,
        region: MemoryRegion,
    }

    impl World {
        fn new() -> Arc<Self> {
            let model = Model::begin();
            let table = RegionTable::new([7; 32]);
            let memory = Buffer::zeroed(LEN);
            let spec = RegionSpec::memory(
                ProtectionDomain(0),
                Rights::all() - Rights::FLUSH_PERSISTENT,
                &memory,
            );
            let region = table.register(spec).unwrap();
            Arc::new(Self {
                _model: model,
                table,
                memory,
                region,
            })
        }

        /// A window over all of the region.
        fn window(&self) -> (MemoryWindow, Stag) {
            let window = self.table.allocate_window(WHO.domain).unwrap();
            let bind = WindowBind {
                window,
                key: 1,
                region: self.region.stag,
                to: self.region.base,
                len: self.region.len,
                rights: Rights::REMOTE_WRITE,
            };
            assert!(self.table.bind_window(WHO, &bind));
            (window, window.stag(1))
        }

        /// A peer that writes its name into the region again and again, segment by segment, until it is refused.
        fn write(&self, name: u8, rounds: usize) -> Option<AccessError> {
            self.write_through(self.region.stag, name, rounds)
        }

        fn write_through(&self, stag: Stag, name: u8, rounds: usize) -> Option<AccessError> {
            let mut cache = RegionCache::new(&self.table);
            for round in 0..rounds {
                let at = round * SEGMENT % LEN;
                if let Err(refused) = self.segment(&mut cache, stag, at, name) {
                    return Some(refused);
                }
            }
            None
        }

        fn segment(
            &self,
            cache: &mut RegionCache,
            stag: Stag,
            at: usize,
            name: u8,
        ) -> Result<(), AccessError> {
            let region = cache.find(stag).ok_or(AccessError::InvalidStag)?;
            // Between the look at the table and the check anything may happen, as when a page is awaited.
            thread::yield_now();
            let what = Request {
                kind: AccessKind::Write,
                stag,
                to: TaggedOffset(at as u64),
                len: SEGMENT as u32,
            };
            let access = check(region, WHO, what)?;
            for n in 0..SEGMENT {
                self.memory.write(access.offset as usize + n, &[name]);
                thread::yield_now();
            }
            Ok(())
        }
    }

    /// I11: when the owner's call has returned, its memory is its own, in the middle of a segment or of a message, whoever
    /// had found the region before; nobody gets in again, and two peers do not hold each other up for ever.
    #[test]
    fn nobody_writes_into_a_region_that_was_ended() {
        let model = || {
            let world = World::new();
            let peers: Vec<_> = [1, 2]
                .map(|name| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || world.write(name, 3))
                })
                .into();
            assert!(world.table.deregister(world.region.stag));
            let own = [0xee; LEN];
            world.memory.write(0, &own);
            thread::yield_now();
            for peer in peers {
                let refused = peer.join().unwrap();
                assert!(matches!(refused, None | Some(AccessError::InvalidStag)));
            }
            assert_eq!(world.memory.to_vec(0, LEN), own);
            assert_eq!(world.write(3, 1), Some(AccessError::InvalidStag));
        };
        shuttle::check_random(model, SCHEDULES);
        shuttle::check_pct(model, SCHEDULES, 3);
    }

    /// The same for the part that a region is cut by, while what is left of it goes on; and for an end that comes amid it.
    #[test]
    fn nobody_writes_beyond_a_reach_that_was_cut() {
        let model = || {
            let world = World::new();
            let peer = {
                let world = Arc::clone(&world);
                thread::spawn(move || world.write(1, 4))
            };
            let ends = Arc::new(Mutex::new(false));
            let ender = {
                let (world, ends) = (Arc::clone(&world), Arc::clone(&ends));
                thread::spawn(move || {
                    world.table.deregister(world.region.stag);
                    *ends.lock().unwrap() = true;
                })
            };
            world.table.set_reach(world.region.stag, SEGMENT as u64);
            world.memory.write(SEGMENT, &[0xee; SEGMENT]);
            let ended = *ends.lock().unwrap();
            if ended {
                world.memory.write(0, &[0xee; SEGMENT]);
            }
            let refused = peer.join().unwrap();
            ender.join().unwrap();
            use AccessError::{Bounds, InvalidStag};
            assert!(matches!(refused, None | Some(Bounds | InvalidStag)));
            assert_eq!(world.memory.to_vec(SEGMENT, SEGMENT), [0xee; SEGMENT]);
            if ended {
                assert_eq!(world.memory.to_vec(0, SEGMENT), [0xee; SEGMENT]);
            }
        };
        shuttle::check_random(model, SCHEDULES);
        shuttle::check_pct(model, SCHEDULES, 3);
    }

    /// A window does not outlive its region, nor reach beyond it, in the middle of a segment either.
    #[test]
    fn nobody_writes_through_a_window_beyond_its_region() {
        for reach in [None, Some(SEGMENT)] {
            let model = move || {
                let world = World::new();
                let (_, window) = world.window();
                let peer = {
                    let world = Arc::clone(&world);
                    thread::spawn(move || world.write_through(window, 1, 4))
                };
                match reach {
                    None => assert!(world.table.deregister(world.region.stag)),
                    Some(reach) => {
                        assert!(world.table.set_reach(world.region.stag, reach as u64));
                    }
                }
                let own = reach.unwrap_or(0);
                world.memory.write(own, &[0xee; LEN][own..]);
                thread::yield_now();
                let refused = peer.join().unwrap();
                use AccessError::{Bounds, InvalidStag};
                let expected = reach.map_or(InvalidStag, |_| Bounds);
                assert!(refused.is_none_or(|refused| refused == expected));
                assert_eq!(world.memory.to_vec(own, LEN - own), [0xee; LEN][own..]);
            };
            shuttle::check_random(model, SCHEDULES);
            shuttle::check_pct(model, SCHEDULES, 3);
        }
    }

    /// W1: when a window of type 1 has been bound again, or deallocated, no peer is left under any of its earlier STags,
    /// though another bind of it be in the middle of ending one.
    #[test]
    fn nobody_writes_where_a_window_was_bound_before() {
        for is_deallocated in [false, true] {
            let model = move || {
                let world = World::new();
                let MemoryRegion {
                    stag, base, len, ..
                } = world.region;
                let mut window = world.table.allocate_domain_window(WHO.domain).unwrap();
                let binds = [(); 2].map(|()| window.bind(stag, base, len, Rights::REMOTE_WRITE));
                let last = window.unbind();
                assert!(world.table.bind_domain_window(WHO, &binds[0]));
                let peers = binds.map(|bind| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || world.write_through(bind.stag(), 1, 3))
                });
                let binder = {
                    let world = Arc::clone(&world);
                    thread::spawn(move || world.table.bind_domain_window(WHO, &binds[1]))
                };
                match is_deallocated {
                    true => assert!(world.table.deallocate_domain_window(&window)),
                    false => assert!(world.table.bind_domain_window(WHO, &last)),
                }
                world.memory.write(0, &[0xee; LEN]);
                thread::yield_now();
                for peer in peers {
                    let refused = peer.join().unwrap();
                    assert!(matches!(refused, None | Some(AccessError::InvalidStag)));
                }
                binder.join().unwrap();
                assert_eq!(world.memory.to_vec(0, LEN), [0xee; LEN]);
            };
            shuttle::check_random(model, SCHEDULES);
            shuttle::check_pct(model, SCHEDULES, 3);
        }
    }

    /// I11: who is told that there is no such STag may rely on its end, in the middle of a call that ends it, too, whichever.
    #[test]
    fn an_stag_that_is_not_found_has_ended() {
        type End = fn(&World, MemoryWindow, &mut DomainWindow);
        let ends: [(usize, End); 4] = [
            (0, |world, _, _| {
                let spec = RegionSpec::memory(WHO.domain, Rights::REMOTE_READ, &world.memory);
                assert!(world.table.reregister(world.region.stag, spec).is_ok());
            }),
            (1, |world, window, _| {
                world.table.deallocate_window(window);
            }),
            (2, |world, _, window| {
                let MemoryRegion {
                    stag, base, len, ..
                } = world.region;
                let bind = window.bind(stag, base, len, Rights::REMOTE_READ);
                world.table.bind_domain_window(WHO, &bind);
            }),
            (2, |world, _, window| {
                world.table.deallocate_domain_window(window);
            }),
        ];
        for (of, end) in ends {
            let model = move || {
                let world = World::new();
                let (window, of_window) = world.window();
                let mut domain_window = world.table.allocate_domain_window(WHO.domain).unwrap();
                let MemoryRegion {
                    stag, base, len, ..
                } = world.region;
                let bind = domain_window.bind(stag, base, len, Rights::REMOTE_WRITE);
                assert!(world.table.bind_domain_window(WHO, &bind));
                let stag = [stag, of_window, bind.stag()][of];
                let peer = {
                    let world = Arc::clone(&world);
                    thread::spawn(move || world.write_through(stag, 1, 3))
                };
                let ender = {
                    let world = Arc::clone(&world);
                    thread::spawn(move || end(&world, window, &mut domain_window))
                };
                world.table.invalidate(stag);
                world.memory.write(0, &[0xee; LEN]);
                thread::yield_now();
                let refused = peer.join().unwrap();
                ender.join().unwrap();
                assert!(refused.is_none_or(|refused| refused == AccessError::InvalidStag));
                assert_eq!(world.memory.to_vec(0, LEN), [0xee; LEN]);
            };
            shuttle::check_random(model, SCHEDULES);
            shuttle::check_pct(model, SCHEDULES, 3);
        }
    }

    /// A region reaches no further than it was registered, whatever its owner says, and never again when it has ended.
    #[test]
    fn reach_is_bounded_by_the_registration() {
        shuttle::check_random(
            || {
                let world = World::new();
                let stag = world.region.stag;
                let mut cache = RegionCache::new(&world.table);
                for (reach, refused) in [(0, true), (7, true), (8, false), (u64::MAX, false)] {
                    assert!(world.table.set_reach(stag, reach));
                    let result = world.segment(&mut cache, stag, SEGMENT, 1);
                    assert_eq!(
                        result,
                        if refused {
                            Err(AccessError::Bounds)
                        } else {
                            Ok(())
                        }
                    );
                }
                let result = world.segment(&mut cache, stag, LEN, 1);
                assert_eq!(result, Err(AccessError::Bounds));
                world.table.deregister(stag);
                assert!(!world.table.set_reach(stag, 8));
                let result = world.segment(&mut cache, stag, 0, 1);
                assert_eq!(result, Err(AccessError::InvalidStag));
            },
            1,
        );
    }
}
