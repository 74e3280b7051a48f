//! The asynchronous file client: a hundred tasks share one file. Any runtime will do, also this one of twenty lines.
//!
//! ```text
//! flashnet serve volume.img &
//! cargo run --example remote_tasks -- localhost
//! ```

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use anyhow::{Context as _, Result, ensure};
use tools::client::aio::{Client, File};

const TASKS: u64 = 100;
const RECORD: usize = 1000;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Runs futures together, in turns.
async fn join<T>(futures: Vec<Pin<Box<dyn Future<Output = Result<T>>>>>) -> Result<Vec<T>> {
    let mut running: Vec<_> = futures.into_iter().map(Ok).collect();
    std::future::poll_fn(|context| {
        let mut is_pending = false;
        for slot in &mut running {
            if let Ok(future) = slot {
                match future.as_mut().poll(context) {
                    Poll::Ready(output) => *slot = Err(Some(output)),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        match is_pending {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    let outputs = running.into_iter().filter_map(Result::err).flatten();
    outputs.collect()
}

async fn task(file: File, number: u64) -> Result<u64> {
    let record = vec![number as u8; RECORD];
    let place = number * RECORD as u64;
    file.write_at(&record, place).await?;
    file.flush().await?;
    let found = file.read_at(place, RECORD).await?;
    ensure!(found == record, "task {number} reads what it wrote");
    Ok(number)
}

fn main() -> Result<()> {
    let address = std::env::args()
        .nth(1)
        .context("usage: remote_tasks HOST[:PORT]")?;
    block_on(async {
        let client = Client::connect(address).await?;
        let bytes = TASKS * RECORD as u64;
        let options = client.options().write(true).create(true).truncate(bytes);
        let file = client.open_with(&options, "/tasks").await?;
        let tasks = (0..TASKS).map(|n| Box::pin(task(file.clone(), n)) as Pin<Box<_>>);
        let done: Vec<u64> = join(tasks.collect()).await?;
        println!("{} tasks, {} bytes", done.len(), done.len() * RECORD);
        Ok(())
    })
}
