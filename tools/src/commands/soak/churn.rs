//! A program that makes, replaces, removes and reads files through the mount, and knows which must be there.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::Life;
use super::report::Counts;

/// Largest file.
const BYTES_MAX: u64 = 256 << 10;
/// Where a new content is written before it replaces the old one.
const DRAFT: &str = "draft";
/// What fills the volume.
const FILL: &str = "fill";
/// Of so many operations one fills the volume.
const FILL_EVERY: u32 = 2_000;
const CHUNK: usize = 1 << 20;

/// What a file must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    bytes: u64,
}

impl Content {
    fn generate(self) -> Vec<u8> {
        let mut all = vec![0; self.bytes as usize];
        SmallRng::seed_from_u64(self.seed).fill_bytes(&mut all);
        all
    }
}

/// An operation that may or may not have taken effect.
#[derive(Clone, Debug)]
enum Doubt {
    /// A file that nobody counts on.
    Scrap(&'static str),
    Made(String),
    Removed(String),
    Replaced(String, Content),
}

/// The program.
#[derive(Debug)]
pub(super) struct Churn {
    mount: PathBuf,
    dir: PathBuf,
    /// The directory is there.
    made: bool,
    files: BTreeMap<String, Content>,
    doubt: Option<Doubt>,
    /// Most bytes of all files.
    budget: u64,
    next: u64,
    rng: SmallRng,
    counts: Counts,
}

impl Churn {
    /// Works in a directory of `mount`, on files of at most `budget` bytes together.
    pub(super) fn new(mount: &Path, budget: u64, seed: u64) -> Self {
        Self {
            mount: mount.to_owned(),
            dir: mount.join("files"),
            made: false,
            files: BTreeMap::new(),
            doubt: None,
            budget,
            next: 0,
            rng: SmallRng::seed_from_u64(seed),
            counts: Counts::default(),
        }
    }

    /// Checks what was acknowledged, then works until the target ends.
    pub(super) fn live(&mut self, life: &Life) -> Result<Counts> {
        self.counts = Counts::default();
        match self.work(life) {
            Err(error) if life.is_ending() && self.is_gone(&error) => Ok(self.counts),
            Err(error) => {
                life.found.store(true, Ordering::SeqCst);
                Err(error.context("files"))
            }
            Ok(()) => Ok(self.counts),
        }
    }

    /// Whether the volume was not there any more; what it has answered is another matter.
    fn is_gone(&self, error: &anyhow::Error) -> bool {
        let Some(error) = error.downcast_ref::<io::Error>() else {
            return false;
        };
        match error.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV) => true,
            // Under a mount point from which the volume has gone nothing is found.
            Some(libc::ENOENT) => fs::metadata(&self.dir).is_err(),
            _ => false,
        }
    }

    fn work(&mut self, life: &Life) -> Result<()> {
        if !self.made {
            match fs::create_dir(&self.dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
            self.made = true;
        }
        self.judge()?;
        while !life.is_over() {
            self.step()?;
            self.counts.file_ops += 1;
            // The device belongs to the writers.
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// What was answered is there, what was asked is there or not, and nothing else is.
    fn judge(&mut self) -> Result<()> {
        match self.doubt.clone() {
            Some(Doubt::Scrap(name)) => self.remove_if_there(name)?,
            Some(Doubt::Made(name)) => self.remove_if_there(&name)?,
            Some(Doubt::Removed(name)) => {
                let there = self.dir.join(&name).try_exists()?;
                if !there {
                    self.believe_absence()?;
                    self.files.remove(&name);
                }
            }
            Some(Doubt::Replaced(name, new)) => {
                self.remove_if_there(DRAFT)?;
                if self.read(&name)? == new.generate() {
                    self.files.insert(name, new);
                }
            }
            None => {}
        }
        self.doubt = None;
        let mut there = BTreeSet::new();
        for entry in fs::read_dir(&self.dir)? {
            there.insert(entry?.file_name().into_string().unwrap_or_default());
        }
        let expected: BTreeSet<String> = self.files.keys().cloned().collect();
        ensure!(
            there == expected,
            "not there: {:?}; there, but not expected: {:?}",
            expected.difference(&there).collect::<Vec<_>>(),
            there.difference(&expected).collect::<Vec<_>>()
        );
        for (name, content) in &self.files {
            self.compare(name, *content)?;
        }
        self.counts.files += self.files.len() as u64;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        if self.rng.random_ratio(1, FILL_EVERY) {
            return self.fill();
        }
        let used: u64 = self.files.values().map(|c| c.bytes).sum();
        let picked = self.pick();
        match (self.rng.random_range(0..10), picked) {
            (0..3, Some(name)) => self.remove(&name),
            (3..5, Some(name)) if used < self.budget => self.replace(name),
            (5..7, Some(name)) => self.compare(&name, self.files[&name]),
            (_, Some(name)) if used >= self.budget => self.remove(&name),
            _ => self.make().map(drop),
        }
    }

    fn pick(&mut self) -> Option<String> {
        let index = self.rng.random_range(0..self.files.len().max(1));
        self.files.keys().nth(index).cloned()
    }

    fn content(&mut self) -> Content {
        Content {
            seed: self.rng.random(),
            bytes: self.rng.random_range(0..=BYTES_MAX),
        }
    }

    /// Makes a file; false: the volume is full.
    fn make(&mut self) -> Result<bool> {
        self.next += 1;
        let name = format!("{}", self.next);
        let content = self.content();
        self.doubt = Some(Doubt::Made(name.clone()));
        let written = self.write(&name, content)?;
        if written {
            self.files.insert(name, content);
        }
        self.doubt = None;
        Ok(written)
    }

    fn replace(&mut self, name: String) -> Result<()> {
        let content = self.content();
        self.doubt = Some(Doubt::Scrap(DRAFT));
        if self.write(DRAFT, content)? {
            self.doubt = Some(Doubt::Replaced(name.clone(), content));
            fs::rename(self.dir.join(DRAFT), self.dir.join(&name))?;
            self.files.insert(name, content);
        }
        self.doubt = None;
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        self.doubt = Some(Doubt::Removed(name.to_owned()));
        fs::remove_file(self.dir.join(name))?;
        self.files.remove(name);
        self.doubt = None;
        Ok(())
    }

    /// Writes a durable file; false, and no file: the volume is full.
    fn write(&mut self, name: &str, content: Content) -> Result<bool> {
        let path = self.dir.join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(&content.generate())?;
            file.sync_all()
        });
        match written {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                self.counts.full += 1;
                self.remove_if_there(name)?;
                Ok(false)
            }
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Takes all space there is; giving it back helps at once.
    fn fill(&mut self) -> Result<()> {
        self.doubt = Some(Doubt::Scrap(FILL));
        let mut chunk = vec![0; CHUNK];
        self.rng.fill_bytes(&mut chunk);
        let write_on = |mut file: File| -> io::Result<Infallible> {
            loop {
                file.write_all(&chunk)?;
            }
        };
        let Err(error) = File::create_new(self.dir.join(FILL)).and_then(write_on);
        if error.kind() != io::ErrorKind::StorageFull {
            return Err(error.into());
        }
        self.counts.full += 1;
        self.remove_if_there(FILL)?;
        self.doubt = None;
        ensure!(
            self.make()?,
            "no space on {} after {FILL} was removed",
            self.mount.display()
        );
        Ok(())
    }

    fn remove_if_there(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.believe_absence(),
            other => Ok(other?),
        }
    }

    /// Under a mount point from which the volume has gone nothing is found either.
    fn believe_absence(&self) -> Result<()> {
        fs::metadata(&self.dir)?;
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.dir.join(name))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn compare(&self, name: &str, content: Content) -> Result<()> {
        let found = self.read(name)?;
        ensure!(
            found == content.generate(),
            "{name} does not hold what was written: {} bytes, not {}",
            found.len(),
            content.bytes
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn life(ended: bool) -> Life {
        Life {
            address: "127.0.0.1:1".parse().expect("an address"),
            ending: AtomicBool::new(ended),
            ended: AtomicBool::new(ended),
            found: AtomicBool::new(false),
        }
    }

    /// On a file system that loses nothing nothing is found; a lost, a strange and a changed file are (I1, I2).
    #[test]
    fn every_kind_of_loss_is_found() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut churn = Churn::new(scratch.path(), 1 << 20, 1);
        churn.live(&life(true)).expect("nothing is there yet");
        for _ in 0..3 {
            assert!(churn.make().expect("a file"));
        }
        churn.live(&life(true)).expect("all is there");
        let path = scratch.path().join("files/2");
        let content = fs::read(&path).expect("read");

        fs::remove_file(&path).expect("remove");
        assert!(churn.live(&life(false)).is_err(), "a lost file");
        fs::write(&path, &content[1..]).expect("write");
        assert!(churn.live(&life(false)).is_err(), "a shorter file");
        fs::write(&path, &content).expect("write");
        let strange = scratch.path().join("files/strange");
        fs::write(&strange, "").expect("write");
        assert!(churn.live(&life(false)).is_err(), "a strange file");
        fs::remove_file(strange).expect("remove");
        churn.live(&life(true)).expect("all is there again");

        // The end of a target explains that the volume is gone, and not what it has answered.
        let lost = churn.remove("none").expect_err("no such file");
        assert!(!churn.is_gone(&lost), "{lost}");
        for (code, gone) in [(libc::ENOTCONN, true), (libc::EIO, false)] {
            let error = io::Error::from_raw_os_error(code).into();
            assert_eq!(churn.is_gone(&error), gone, "{error}");
        }

        churn.doubt = Some(Doubt::Removed("2".into()));
        churn.live(&life(true)).expect("still there");
        fs::remove_file(&path).expect("remove");
        churn.doubt = Some(Doubt::Removed("2".into()));
        churn.live(&life(true)).expect("gone as was asked");
        assert_eq!(churn.files.len(), 2);

        churn.doubt = Some(Doubt::Scrap(FILL));
        fs::rename(
            scratch.path().join("files"),
            scratch.path().join("unmounted"),
        )
        .expect("rename");
        churn.live(&life(true)).expect("the volume has gone");
        fs::rename(
            scratch.path().join("unmounted"),
            scratch.path().join("files"),
        )
        .expect("rename");
        assert!(
            matches!(churn.doubt, Some(Doubt::Scrap(FILL))),
            "nothing was removed"
        );
    }
}
