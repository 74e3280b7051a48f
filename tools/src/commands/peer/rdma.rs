//! `rdma_client` and `rdma_server`: one message of 16 bytes each way.

use anyhow::Result;

use super::link::Plan;
use super::program::{Place, Task};

const MESSAGE: usize = 16;

pub(super) fn run(task: &Task<'_>, place: &Place<'_>) -> Result<()> {
    let plan = Plan {
        receives: 1,
        message_bytes: MESSAGE,
        ..task.plan()
    };
    for _ in 0..task.connections {
        match place {
            Place::Connect(address) => {
                let mut link = task.connect(*address, &plan)?;
                link.send(&[0x11; MESSAGE])?;
                link.recv_array::<MESSAGE>()?;
                link.close()?;
            }
            Place::Listen(listener) => {
                let mut link = task.accept(listener, &plan)?;
                link.recv_array::<MESSAGE>()?;
                link.send(&[0x22; MESSAGE])?;
                link.close()?;
            }
        }
    }
    Ok(())
}
