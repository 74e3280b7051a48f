//! The file client: writes, flushes, reads and counts in a file of a running target.
//!
//! ```text
//! flashnet serve volume.img &
//! cargo run --example remote_file -- localhost [TOKEN_FILE]
//! ```

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tools::client::{Atomic, Client, Identity};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .context("usage: remote_file HOST[:PORT] [TOKEN_FILE]")?;
    let token = arguments.next().map(PathBuf::from);

    let client = Client::builder()
        .identity(Identity::of_file(token.as_deref())?)
        .patience(Duration::from_secs(30))
        .connect(address)?;

    // A file of a megabyte, all zero.
    let options = client.options().write(true).create(true).truncate(1 << 20);
    let file = options.open("/example")?;

    // Visible to every reader when it returns; durable when the flush does.
    file.write_at(b"remembered", 4096)?;
    file.flush()?;

    // Several ranges with one wait.
    let (mut first, mut second) = ([0; 10], [1; 6]);
    file.read_at_many(&mut [(4096, &mut first), (0, &mut second)])?;
    ensure!(&first == b"remembered" && second == [0; 6]);

    // A counter that any number of clients may share.
    let before = file.atomic(512, Atomic::FetchAdd { add: 1, mask: 0 })?;
    ensure!(before == 0);

    // Every write of this one is durable when it returns.
    let log = client.options().write(true).sync(true).open("/example")?;
    log.write_at(b"at once", 8192)?;

    for entry in client.list("/")? {
        let name = String::from_utf8_lossy(&entry.name);
        println!("{name} {}", entry.size);
    }
    Ok(())
}
