//! The files of the demo: where they come from, how they get onto the volume, and what they must read back as.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use contigfs::{FileKind, Fs, InodeNo, NewNode, WriteOptions};
use ftl::device::FileDevice;
use ftl::{OpenOptions, Volume};
use walkdir::WalkDir;

use super::records;
use super::report::Step;
use crate::commands::interrupt::Interrupt;

/// Generated data, when the user names none.
const GENERATED_BYTES: u64 = 256 << 20;
const CHUNK: usize = 1 << 20;
/// Directories of a source tree that hold what can be made again.
const NOT_COPIED: [&str; 2] = ["target", ".git"];

/// A file of the input.
#[derive(Clone, Debug)]
pub(super) struct InputFile {
    /// Where it is.
    pub source: PathBuf,
    /// Its path in the volume, without the leading slash.
    pub name: String,
    /// Bytes that were copied: the file may become another one meanwhile.
    pub bytes: u64,
    /// Checksum of them.
    pub crc32: u32,
}

impl InputFile {
    /// Hands out what it holds now, and notes it.
    fn copy(
        &mut self,
        interrupt: &Interrupt,
        take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        (self.bytes, self.crc32) = scan(&self.source, interrupt, take)?;
        Ok(())
    }
}

/// All files of the demo.
#[derive(Debug)]
pub(super) struct Input {
    files: Vec<InputFile>,
    directories: Vec<String>,
}

/// What a pass over all files has moved.
#[derive(Debug)]
pub(super) struct Moved {
    bytes: u64,
    files: usize,
    start: Instant,
}

impl Moved {
    /// As a line of the table.
    pub(super) fn step(&self, name: &str) -> Step {
        Step {
            name: name.into(),
            bytes: Some(self.bytes),
            time: self.start.elapsed(),
            remark: format!("{} files", self.files),
            ..Step::default()
        }
    }
}

impl Input {
    /// Collects what `input` names; by default the files of the repository and generated data.
    pub(super) fn new(input: Option<&Path>, scratch: &Path, interrupt: &Interrupt) -> Result<Self> {
        let mut this = Self {
            files: Vec::new(),
            directories: Vec::new(),
        };
        if let Some(path) = input {
            this.collect(path, interrupt)?;
        } else {
            let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            if repository.join("README.md").exists() {
                this.collect(&repository, interrupt)?;
            }
            let generated = scratch.join("generated.bin");
            generate(&generated, interrupt)?;
            this.collect(&generated, interrupt)?;
        }
        if this.files.is_empty() {
            bail!("there is no file to copy");
        }
        Ok(this)
    }

    /// The files.
    pub(super) fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn collect(&mut self, path: &Path, interrupt: &Interrupt) -> Result<()> {
        // The name of `.` is that of the directory.
        let path = &path
            .canonicalize()
            .with_context(|| format!("cannot read the input {}", path.display()))?;
        let root = path.file_name().context("the input has no name")?;
        let root = root.to_str().context("the input's name is not UTF-8")?;
        if Path::new("/").join(root) == Path::new(records::PATH) {
            bail!("{root}: the demo has a file of this name of its own");
        }
        let walk = WalkDir::new(path)
            .sort_by_file_name()
            .into_iter()
            .filter_entry(|entry| {
                let name = entry.file_name().to_str().unwrap_or_default();
                entry.depth() == 0 || !(entry.file_type().is_dir() && NOT_COPIED.contains(&name))
            });
        for entry in walk {
            interrupt.check()?;
            let entry = entry.context("cannot read the input")?;
            let inside = entry.path().strip_prefix(path)?;
            let inside = inside
                .to_str()
                .with_context(|| format!("{} is not UTF-8", entry.path().display()))?;
            let name = if inside.is_empty() {
                root.to_owned()
            } else {
                format!("{root}/{inside}")
            };
            if entry.file_type().is_dir() {
                self.directories.push(name);
            } else if entry.file_type().is_file() {
                self.files.push(InputFile {
                    source: entry.path().to_owned(),
                    name,
                    bytes: 0,
                    crc32: 0,
                });
            }
        }
        Ok(())
    }

    /// Copies everything below `dir`, as any program would; every file is durable when this returns.
    pub(super) fn copy_by_posix(&mut self, dir: &Path, interrupt: &Interrupt) -> Result<Moved> {
        let mut moved = Moved::start();
        for directory in &self.directories {
            fs::create_dir_all(dir.join(directory))?;
        }
        for file in &mut self.files {
            let to = dir.join(&file.name);
            let mut made =
                File::create(&to).with_context(|| format!("cannot create {}", to.display()))?;
            file.copy(interrupt, |_, chunk| {
                made.write_all(chunk)
                    .with_context(|| format!("cannot write {}", to.display()))
            })?;
            made.sync_all()?;
            moved.add(file);
        }
        Ok(moved)
    }

    /// Copies everything onto an image that is not being served.
    pub(super) fn copy_by_library(&mut self, image: &Path, interrupt: &Interrupt) -> Result<Moved> {
        let mut moved = Moved::start();
        let (volume, _) = Volume::open(
            FileDevice::open(image)?,
            OpenOptions {
                pool_frames: 8192,
                ..OpenOptions::default()
            },
        )?;
        {
            let files = Fs::mount(&volume)?;
            for directory in &self.directories {
                make(&files, directory, FileKind::Directory)?;
            }
            for file in &mut self.files {
                let inode = make(&files, &file.name, FileKind::File)?;
                file.copy(interrupt, |at, chunk| {
                    files.write(inode, at, chunk, WriteOptions::default())?;
                    Ok(())
                })?;
                moved.add(file);
            }
            files.sync_all()?;
        }
        volume.shutdown()?;
        Ok(moved)
    }

    /// Reads everything below `dir` and compares.
    pub(super) fn compare_by_posix(&self, dir: &Path, interrupt: &Interrupt) -> Result<Moved> {
        let mut moved = Moved::start();
        for file in &self.files {
            let path = dir.join(&file.name);
            let (bytes, crc32) = scan(&path, interrupt, |_, _| Ok(()))?;
            if (bytes, crc32) != (file.bytes, file.crc32) {
                bail!("{} does not read back as it was written", path.display());
            }
            moved.add(file);
        }
        Ok(moved)
    }
}

impl Moved {
    fn start() -> Self {
        Self {
            bytes: 0,
            files: 0,
            start: Instant::now(),
        }
    }

    fn add(&mut self, file: &InputFile) {
        self.bytes += file.bytes;
        self.files += 1;
    }
}

fn make<S: contigfs::BlockStore>(files: &Fs<S>, name: &str, kind: FileKind) -> Result<InodeNo> {
    let path = Path::new("/").join(name);
    let parent = path.parent().and_then(Path::to_str).context("no parent")?;
    let parent = files.lookup_path(parent)?;
    let node = NewNode {
        kind,
        mode: if kind == FileKind::Directory {
            0o755
        } else {
            0o644
        },
        umask: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
    };
    let name = path.file_name().context("no name")?;
    Ok(files.create(parent, name, &node)?.ino)
}

/// Hands a file out in chunks, each with its place; its length and checksum.
fn scan(
    path: &Path,
    interrupt: &Interrupt,
    mut take: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<(u64, u32)> {
    let cannot = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(cannot)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        interrupt.check()?;
        let n = file.read(&mut chunk).with_context(cannot)?;
        if n == 0 {
            return Ok((bytes, hasher.finalize()));
        }
        take(bytes, &chunk[..n])?;
        hasher.update(&chunk[..n]);
        bytes += n as u64;
    }
}

/// Makes a file of bytes that do not repeat.
fn generate(path: &Path, interrupt: &Interrupt) -> Result<()> {
    use rand::{RngCore, SeedableRng};
    let mut random = rand::rngs::SmallRng::seed_from_u64(0x666c_6173_686e_6574);
    let cannot = || format!("cannot make {}", path.display());
    let mut file = File::create(path).with_context(cannot)?;
    let mut chunk = vec![0; CHUNK];
    for _ in 0..GENERATED_BYTES / CHUNK as u64 {
        interrupt.check()?;
        random.fill_bytes(&mut chunk);
        file.write_all(&chunk).with_context(cannot)?;
    }
    Ok(())
}
