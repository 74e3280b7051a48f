//! Listing 2 of the FlashNet paper, line by line: open, fallocate, mmap, register, post.
//!
//! A program on the machine of a target maps a file of the mount and registers the mapping. Its peer reads and writes the file
//! one-sided, at the target; the program sees it in its mapping. Here, both are in one process.
//!
//! ```text
//! flashnet serve volume.img --mount /tmp/flash &
//! cargo run --example listing2 -- /tmp/flash
//! ```

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::NonNull;

use anyhow::{Context as _, Result, bail, ensure};
use memmap2::MmapOptions;
use softrdma::verbs::{Context, MemoryRegion};
use softrdma::{Operation, Rights, Source, WorkRequest, WrId};
use tools::client::registration::{FlashRegion, Region, Registrar};
use tools::client::{Client, Session, SessionOptions};

const BYTES: usize = 1 << 20;

fn main() -> Result<()> {
    let mount = std::env::args().nth(1).map(PathBuf::from);
    let path = mount.context("usage: listing2 MOUNT")?.join("listing2");

    // fd = open("/mnt/contigfs/file", O_RDWR | O_CREAT);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)?;

    // fallocate(fd, 0, 0, size);
    // SAFETY: a descriptor and numbers.
    let allocated = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, BYTES as libc::off_t) };
    ensure!(allocated == 0, std::io::Error::last_os_error());

    // addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    let mapping = MmapOptions::new().len(BYTES).map_raw(&file)?;
    let address = NonNull::new(mapping.as_mut_ptr()).context("mappings are not at 0")?;

    // pd = ibv_alloc_pd(context);
    let domain = Context::new(rand::random()).allocate_domain();

    // mr = ibv_reg_mr(pd, addr, size, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let mut registrar = Registrar::new(&domain, Client::builder());
    // SAFETY: the mapping outlives the region, and is looked at through its pointer only.
    let region = unsafe { registrar.register(address, BYTES, rights) }?;
    let Region::Flash(region) = region else {
        bail!("{} is not on a volume of a target", path.display());
    };

    // The peer: ibv_post_send(qp, {IBV_WR_RDMA_WRITE, mr->rkey, addr + 4096}, ...);
    let message = b"written by a peer";
    write_as_a_peer(&region, message)?;

    // What it wrote is in the mapping, and in the file.
    let mut seen = vec![0_u8; message.len()];
    for (at, byte) in seen.iter_mut().enumerate() {
        // SAFETY: inside the mapping.
        *byte = unsafe { mapping.as_ptr().add(4096 + at).read_volatile() };
    }
    ensure!(seen == message, "the mapping has {seen:?}");

    // Memory that is no file of a volume becomes a region of the program itself.
    let memory = MmapOptions::new().len(BYTES).map_anon()?;
    let address = NonNull::new(memory.as_ptr().cast_mut()).context("mappings are not at 0")?;
    // SAFETY: as above.
    let plain = unsafe { registrar.register(address, BYTES, Rights::REMOTE_READ) }?;
    let Region::Memory(plain) = plain else {
        bail!("anonymous memory is no file");
    };
    report(&region, &plain);
    Ok(())
}

/// What the peer has been told: where the target is, STag and tagged offset.
fn write_as_a_peer(region: &FlashRegion, message: &[u8]) -> Result<()> {
    let told = region.file().credentials();
    let mut peer = Session::connect(region.target(), SessionOptions::default())?;
    let source = Source::Bytes(message.to_vec());
    let remote = told.at(4096);
    peer.post(WorkRequest::new(
        WrId(1),
        Operation::Write { source, remote },
    ))?;
    peer.success("WRITE")?;
    // A READ of no bytes: the WRITE is visible.
    peer.fence(&told)?;
    peer.close();
    Ok(())
}

fn report(flash: &FlashRegion, plain: &MemoryRegion) {
    let told = flash.file().credentials();
    println!("flash {} bytes at {}", told.length, flash.target());
    println!("memory {} bytes here", plain.names().len);
}
