//! What goes to the media is one version of each page, whole, although programs go on changing pages while they are written
//! out (I2): if the power fails before the next write-out, a mix would be all there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ftl::planted::Bug;
use ftl::{
    Device, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, Intent, Lba, LbaRange, MediaOp, MemDevice,
    OpenOptions, Port, Time, Token,
};

const PORT: Port = Port(0);
/// Few, so that there is always somebody in the middle of changing one.
const PAGES: u64 = 2;
/// So many are looked at.
const GRAINS: usize = 1_000;

/// Programs that write whole pages all the time, each write of one byte value, while everything is synced again and again.
/// Answers how many grains were written, and how many of them hold more than one value.
fn written_and_mixed(bug: Option<Bug>) -> (usize, usize) {
    let mut device = MemDevice::new(4096 * GRAIN_BYTES).expect("memory");
    let format = FormatOptions {
        // Nothing but write-outs goes to the media.
        checkpoint_grains: Some(0),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    let options = OpenOptions {
        planted: bug,
        ..OpenOptions::default()
    };
    let (ftl, _) = Ftl::open(&mut device, options).expect("open");
    for lba in (0..PAGES).map(Lba) {
        let Get::Ready(page) = ftl.get(PORT, lba, Intent::Overwrite, Token(0)) else {
            panic!("the pool is empty");
        };
        page.copy_in(0, &[0; GRAIN_BYTES]);
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for lba in (0..PAGES).map(Lba) {
            let (ftl, stop) = (&ftl, &stop);
            scope.spawn(move || {
                for value in (0..=u8::MAX).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let page = ftl.try_get(lba, Intent::Write).expect("resident");
                    page.copy_in(0, &[value; GRAIN_BYTES]);
                }
            });
        }
        let counted = sync_again_and_again(&ftl, &mut device);
        stop.store(true, Ordering::Relaxed);
        counted
    })
}

fn sync_again_and_again(ftl: &Arc<Ftl>, device: &mut MemDevice) -> (usize, usize) {
    let (mut written, mut mixed) = (0, 0);
    while written < GRAINS {
        // For those who write.
        thread::yield_now();
        ftl.sync(PORT, LbaRange::new(Lba(0), PAGES), Token(0));
        loop {
            while let Some(action) = ftl.poll_action(PORT) {
                if let MediaOp::Write { buf, .. } = &action.op {
                    // SAFETY: a write that is not submitted yet.
                    let bytes = unsafe { buf.bytes() };
                    for grain in bytes.chunks(GRAIN_BYTES).skip(1) {
                        written += 1;
                        mixed += usize::from(grain.iter().any(|&byte| byte != grain[0]));
                    }
                }
                device.submit(action);
            }
            while let Some((id, result)) = device.poll(false) {
                ftl.handle_done(PORT, Time(0), id, result);
            }
            match ftl.poll_event(PORT) {
                Some(Event::Durable { result, .. }) => {
                    result.expect("durable");
                    break;
                }
                Some(other) => panic!("{other:?} was not asked for"),
                None => {}
            }
        }
    }
    (written, mixed)
}

/// Defends I2 against programs that change a page at the very moment it is written out.
#[test]
fn no_mix_goes_to_the_media() {
    let (written, mixed) = written_and_mixed(None);
    assert_eq!(mixed, 0, "of {written} grains");
}

/// M12: the test above is worth what it notices.
#[test]
fn a_mix_is_noticed() {
    let (written, mixed) = written_and_mixed(Some(Bug::CopiedAmidChange));
    assert!(mixed > 0, "{written} grains written, none of them mixed");
}
