//! Calls that come while a volume is shut down, or afterwards.

use crate::common::{grain, read, reopen, volume};
use ftl::{
    Device, DurableError, Event, Ftl, Get, Intent, Lba, LbaRange, MemDevice, OpenOptions, Port,
    Time, Token,
};

const PORT: Port = Port(0);

/// Carries out everything, and returns the answers.
fn drive(ftl: &Ftl, device: &mut MemDevice) -> Vec<(u64, Result<(), DurableError>)> {
    let mut answers = Vec::new();
    loop {
        while let Some(action) = ftl.poll_action(PORT) {
            device.submit(action);
        }
        while let Some(event) = ftl.poll_event(PORT) {
            let Event::Durable { token, result } = event else {
                panic!("{event:?}");
            };
            answers.push((token.0, result));
        }
        let Some((id, result)) = device.poll(true) else {
            return answers;
        };
        ftl.handle_done(PORT, Time(0), id, result);
    }
}

/// A page is held for writing over a shutdown. Who syncs it afterwards is told that it does not go out any more, again and
/// again; a sync of anything else is answered as ever (I1, I18).
#[test]
fn put_too_late() {
    let mut device = volume(16 + 24 * 16, 16, 64).into_device();
    let (ftl, _) = Ftl::open(&mut device, OpenOptions::default()).expect("open");
    let page = |lba| match ftl.get(PORT, lba, Intent::Write, Token(0)) {
        Get::Ready(page) => page,
        other => panic!("a new or resident page: {other:?}"),
    };
    for lba in [Lba(3), Lba(4)] {
        page(lba).copy_in(0, &grain(lba, 1));
    }
    let held = page(Lba(3));
    ftl.shutdown(PORT, Token(1));
    assert_eq!(drive(&ftl, &mut device), [(1, Ok(()))]);
    held.copy_in(0, &grain(Lba(3), 2));
    ftl.put_durable(PORT, held, Token(2));
    let late = Err(DurableError::Shutdown);
    assert_eq!(drive(&ftl, &mut device), [(2, late)]);
    ftl.sync(PORT, LbaRange::new(Lba(4), 1), Token(3));
    assert_eq!(drive(&ftl, &mut device), [(3, Ok(()))]);
    ftl.sync(PORT, LbaRange::ALL, Token(4));
    assert_eq!(drive(&ftl, &mut device), [(4, late)]);
    drop(ftl);
    let live = reopen(device, 64);
    assert!(read(&live, Lba(3)) == grain(Lba(3), 1));
}
