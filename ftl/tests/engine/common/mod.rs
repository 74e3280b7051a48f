//! What the tests of the engine share: a small random generator, grains with recognisable content.

use ftl::{
    Device, FormatOptions, Ftl, GRAIN_BYTES, GcPolicy, GrainState, Intent, Lba, MemDevice,
    OpenOptions, Volume,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// xorshift64*: the seed is the test's only source of chance.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 33) % bound
    }
}

/// Content of version `version` of `lba`: every 8 bytes differ from those of any other version or grain.
pub(crate) fn grain(lba: Lba, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(GRAIN_BYTES);
    for word in 0..GRAIN_BYTES as u64 / 8 {
        let mixed = (lba.0 << 40 ^ version << 9 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    bytes
}

/// A fresh volume in memory with segments of `segment_grains`.
pub(crate) fn volume(grains: usize, segment_grains: u64, frames: usize) -> Volume<MemDevice> {
    let mut device = MemDevice::new(grains * GRAIN_BYTES).expect("memory");
    let options = FormatOptions {
        segment_bytes: Some(segment_grains * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &options).expect("format");
    reopen(device, frames)
}

/// Opens the volume again; the judge must find on the media what recovery finds.
pub(crate) fn reopen(device: MemDevice, frames: usize) -> Volume<MemDevice> {
    reopen_as(device, frames, GcPolicy::default())
}

/// The same, with a placement policy.
pub(crate) fn reopen_as(
    mut device: MemDevice,
    frames: usize,
    gc_policy: GcPolicy,
) -> Volume<MemDevice> {
    let judged = ftl::check::check(&mut device).expect("judge");
    assert!(judged.is_sound(), "{judged:?}");
    let options = OpenOptions {
        pool_frames: frames,
        gc_policy,
        ..OpenOptions::default()
    };
    let (volume, report) = Volume::open(device, options).expect("open");
    assert_eq!(
        report.headers_cut, 0,
        "nothing is cut without a crash: {report:?}"
    );
    assert_eq!(
        report.headers_lost, 0,
        "nothing is lost without a crash: {report:?}"
    );
    assert_eq!(report.headers, judged.headers);
    assert_eq!(report.mapped, judged.map.len() as u64, "mapped grains");
    let states = volume.ftl();
    for (&lba, &found) in &judged.map {
        let zero = found == ftl::check::Checked::Zero;
        let want = if zero {
            GrainState::Zero
        } else {
            GrainState::Data
        };
        assert_eq!(states.state(lba), want, "{lba}");
    }
    volume
}

pub(crate) fn at(lba: Lba) -> u64 {
    lba.0 * GRAIN_BYTES as u64
}

pub(crate) fn read<D: Device>(live: &Volume<D>, lba: Lba) -> Vec<u8> {
    let mut bytes = vec![0; GRAIN_BYTES];
    live.read(at(lba), &mut bytes).expect("read");
    bytes
}

/// Looks at grains without the lock, all the time while `work` goes on, and returns how many seemed to hold nothing.
/// What is not in memory says nothing either way.
pub(crate) fn zeros_seen<D: Device + Send>(
    live: &Volume<D>,
    grains: &(dyn Fn(u64) -> Lba + Sync),
    count: u64,
    work: impl FnOnce(),
) -> u64 {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut zeros = 0;
            let mut first = [0; 8];
            while !done.load(Ordering::Relaxed) {
                for n in 0..count {
                    let Some(page) = live.ftl().try_get(grains(n), Intent::Read) else {
                        continue;
                    };
                    page.copy_out(0, &mut first);
                    zeros += u64::from(first == [0; 8]);
                }
            }
            zeros
        });
        work();
        done.store(true, Ordering::Relaxed);
        reader.join().expect("a reader that panics")
    })
}
