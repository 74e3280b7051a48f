//! `demo`: the whole stack on one image, and every claim checked on the way.
//!
//! 1. Format an image, start the target as a process of its own, mount the volume.
//! 2. Copy real files onto it through POSIX; read all of them back by one-sided READs and compare.
//! 3. Write through a sync STag, kill the target in the middle, restart it on the same image.
//! 4. Find every acknowledged byte again, through RDMA and through the mount.
//!
//! Everything it makes lies in one temporary directory and in one child process; both end with it, also when it is
//! interrupted.

mod input;
mod records;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;

use self::input::Input;
use self::records::Records;
use self::report::{Report, Step};
use super::interrupt::Interrupt;
use super::mkfs;
use super::scratch;
use super::show;
use super::spawn::Server;
use crate::cli;
use crate::client::{Session, SessionOptions};
use crate::control::{Op, Request};

/// How long the target takes acknowledged writes before it is killed.
const STREAM: Duration = Duration::from_millis(1500);

/// Whether a device is there that is to be, and an image is not that is to be made.
fn check_device(device: &Path, size: Option<ByteSize>) -> Result<()> {
    let name = device.display();
    match (fs::metadata(device), size) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(_)) => bail!("{name} is there, and has its size: leave --size out"),
        (Err(error), Some(_)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // A name that is written wrong is no image to be kept.
        (Err(error), _) => Err(error).with_context(|| {
            format!("cannot use {name} (--size makes an image that is not there)")
        }),
    }
}

/// Runs the command.
pub(super) fn run(options: &cli::Demo, json: bool) -> Result<()> {
    let interrupt = Interrupt::install()?;
    if let Some(device) = &options.device {
        check_device(device, options.size)?;
    }
    let scratch = scratch::directory("demo", None)?;
    let mut report = Report::new(json);
    let result = Demo {
        options,
        interrupt: interrupt.clone(),
        scratch: scratch.path(),
        report: &mut report,
    }
    .run();
    let result = interrupt.settle(result);
    report.finish(result.is_ok());
    scratch
        .close()
        .context("cannot remove the temporary directory")?;
    result
}

struct Demo<'a> {
    options: &'a cli::Demo,
    interrupt: Interrupt,
    scratch: &'a Path,
    report: &'a mut Report,
}

impl Demo<'_> {
    fn run(mut self) -> Result<()> {
        let mut input = Input::new(self.options.input.as_deref(), self.scratch, &self.interrupt)?;
        let image = self.format()?;
        let mount = self.mount_point()?;
        if mount.is_none() {
            let files = input.copy_by_library(&image, &self.interrupt)?;
            self.report.add(files.step("copy in through the library"));
        }
        let server = self.serve(&image, mount.as_deref(), "start the target")?;
        if let Some(dir) = &mount {
            let files = input.copy_by_posix(dir, &self.interrupt)?;
            self.report.add(files.step("copy in through the mount"));
        }
        self.read_back(&server, &input, "read all by RDMA READ")?;

        let (records, server) = self.stream_and_kill(server)?;
        drop(server);
        let server = self.serve(&image, mount.as_deref(), "restart after SIGKILL")?;
        let step = records.verify_by_rdma(server.address, &self.interrupt)?;
        self.report.add(step);
        if let Some(dir) = &mount {
            let step = records.verify_by_posix(dir)?;
            self.report.add(step);
            let files = input.compare_by_posix(dir, &self.interrupt)?;
            self.report.add(files.step("read all through the mount"));
        }
        self.read_back(&server, &input, "read all by RDMA READ again")?;
        server.stop()
    }

    fn format(&mut self) -> Result<PathBuf> {
        let start = Instant::now();
        let (image, size) = match &self.options.device {
            Some(device) => (device.clone(), self.options.size),
            None => {
                let size = self.options.size.unwrap_or(ByteSize::gib(1));
                (self.scratch.join("volume.img"), Some(size))
            }
        };
        let made = mkfs::format(&cli::Mkfs {
            devices: vec![image.clone()],
            size,
            op: 20,
            prefill: false,
            segment_size: None,
            force: self.options.device.is_some(),
        })?;
        self.report.add(Step {
            name: "format the image".into(),
            time: start.elapsed(),
            remark: show::bytes(made["device_bytes"].as_u64().unwrap_or(0)),
            ..Step::default()
        });
        Ok(image)
    }

    /// Where to mount; none when this system does not allow it, and the demo says so.
    fn mount_point(&mut self) -> Result<Option<PathBuf>> {
        if let Err(why) = contigfs::fuse::available() {
            self.report.note(&format!(
                "no mount here ({why}): files go through the library"
            ));
            return Ok(None);
        }
        let dir = self.scratch.join("mnt");
        fs::create_dir(&dir)?;
        Ok(Some(dir))
    }

    fn serve(&mut self, image: &Path, mount: Option<&Path>, name: &str) -> Result<Server> {
        self.interrupt.check()?;
        let server = Server::target(image, mount, &[])?;
        self.report.add(Step {
            name: name.into(),
            time: server.started_in,
            ..Step::default()
        });
        Ok(server)
    }

    /// Reads every file from this process, by READs alone, and compares checksums.
    fn read_back(&mut self, server: &Server, input: &Input, name: &str) -> Result<()> {
        let mut session = Session::connect(server.address, SessionOptions::default())?;
        let mut bytes = 0;
        let start = Instant::now();
        for file in input.files() {
            self.interrupt.check()?;
            let path = format!("/{}", file.name);
            let remote = session.open(Request::new(Op::Open, path.as_str()))?;
            if remote.length != file.bytes {
                bail!(
                    "{path} has {} bytes, {} were copied",
                    remote.length,
                    file.bytes
                );
            }
            let mut checksum = crc32fast::Hasher::new();
            session.read(&remote, 0, remote.length, |_, bytes| {
                checksum.update(bytes);
                Ok(())
            })?;
            if checksum.finalize() != file.crc32 {
                bail!("{path} does not read back as it was written");
            }
            let close = Request {
                handle: remote.handle,
                ..Request::new(Op::Close, "")
            };
            session.call(close)?;
            bytes += remote.length;
        }
        let time = start.elapsed();
        session.close();
        self.report.add(Step {
            name: name.into(),
            bytes: Some(bytes),
            time,
            ..Step::default()
        });
        Ok(())
    }

    /// Streams acknowledged writes and kills the target in the middle of them.
    fn stream_and_kill(&mut self, mut server: Server) -> Result<(Records, Server)> {
        self.interrupt.check()?;
        let address = server.address;
        let stop = Arc::new(AtomicBool::new(false));
        let killed = Arc::clone(&stop);
        let stream = std::thread::spawn(move || Records::stream(address, &killed));
        let start = Instant::now();
        while start.elapsed() < STREAM && !stream.is_finished() {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        // Whoever loses the target has lost it to the kill only if it knows of that by then.
        stop.store(true, Ordering::SeqCst);
        server.kill()?;
        let (records, step) = stream
            .join()
            .map_err(|_| anyhow::anyhow!("the stream of writes panicked"))??;
        self.report.add(step);
        Ok((records, server))
    }
}
