//! `ucmatose`: many connections at once; the server sends on all of them first, then the client.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::link::{Link, Plan};
use super::manner::Manner;
use super::program::{Place, Task};

/// A requester that was not asked for a ready-to-receive frame gives no sign that it is ready, and breaks the
/// connection if something follows the Reply too soon. `ucmatose` takes the risk; this makes it small.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) fn run(task: &Task<'_>, place: &Place<'_>) -> Result<()> {
    let manner = Manner {
        sends_first: true,
        ..task.manner.clone()
    };
    let plan = Plan {
        manner: &manner,
        receives: task.count,
        message_bytes: task.size,
        ..task.plan()
    };
    let mut links = Vec::new();
    for _ in 0..task.connections {
        let mut link = match place {
            Place::Connect(address) => task.connect(*address, &plan)?,
            Place::Listen(listener) => task.accept(listener, &plan)?,
        };
        link.settle()?;
        links.push(link);
    }
    match place {
        Place::Connect(_) => {
            receive_all(task, &mut links)?;
            send_all(task, &mut links)?;
            links.into_iter().try_for_each(Link::until_closed)
        }
        Place::Listen(_) => {
            if links.iter().any(|link| !link.knows_peer_is_ready()) {
                thread::sleep(SETTLE);
            }
            send_all(task, &mut links)?;
            receive_all(task, &mut links)?;
            links.into_iter().try_for_each(Link::close)
        }
    }
}

fn send_all(task: &Task<'_>, links: &mut [Link]) -> Result<()> {
    for link in links {
        for number in 0..task.count {
            link.send(&vec![number as u8; task.size])?;
        }
    }
    Ok(())
}

fn receive_all(task: &Task<'_>, links: &mut [Link]) -> Result<()> {
    for link in links {
        for number in 0..task.count {
            let message = link.recv().with_context(|| format!("message {number}"))?;
            ensure!(
                message.len() == task.size,
                "a message of {} bytes",
                message.len()
            );
        }
    }
    Ok(())
}
