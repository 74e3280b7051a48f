//! Registering memory of a program: a mapped file of a mount becomes a region of its target, other memory one of the program.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::time::Duration;

use crate::common::{FLASHNET, Image, Target, can_mount, can_serve, pattern, skip};
use memmap2::{MmapOptions, MmapRaw};
use softrdma::verbs::{Context, MemoryRegion};
use softrdma::{Rights, TaggedOffset};
use tempfile::TempDir;
use tools::client::Client;
use tools::client::registration::{FlashRegion, Region, Registrar, RegistrationError};

const PAGE: usize = 4096;

/// A mounted volume, and who registers.
struct World {
    target: Option<Target>,
    dir: TempDir,
    registrar: Registrar,
    _image: Image,
}

impl World {
    fn new() -> Option<Self> {
        if !can_serve() || !can_mount() {
            return None;
        }
        let image = Image::new("128MiB");
        let dir = tempfile::tempdir().unwrap();
        let target = image.serve(&["--mount", dir.path().to_str().unwrap()]);
        let domain = Context::new([1; 32]).allocate_domain();
        Some(Self {
            target: Some(target),
            dir,
            registrar: Registrar::new(&domain, Client::builder()),
            _image: image,
        })
    }

    /// A file of some pages with a pattern in it.
    fn file(&self, name: &str, pages: usize) -> File {
        let path = self.dir.path().join(name);
        fs::write(&path, pattern(pages * PAGE, pages as u64)).unwrap();
        open(&path)
    }

    fn register(
        &mut self,
        map: &MmapRaw,
        from: usize,
        len: usize,
        rights: Rights,
    ) -> Result<Region, RegistrationError> {
        let start = NonNull::new(map.as_mut_ptr().wrapping_add(from)).unwrap();
        // SAFETY: the tests keep their mappings, and look at them through pointers.
        unsafe { self.registrar.register(start, len, rights) }
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn all() -> Rights {
    Rights::REMOTE_READ | Rights::REMOTE_WRITE
}

fn flash(region: Result<Region, RegistrationError>) -> FlashRegion {
    match region.unwrap() {
        Region::Flash(region) => region,
        Region::Memory(_) => panic!("it is a mapping of a file of the mount"),
    }
}

fn memory(region: Result<Region, RegistrationError>) -> MemoryRegion {
    match region.unwrap() {
        Region::Memory(region) => region,
        Region::Flash(_) => panic!("it is no mapping of a file of the mount"),
    }
}

/// A region of a mapping is the file: at any offset, after it was renamed, with the rights that were asked for, and for as long
/// as it is kept (I4: never another file's bytes).
#[test]
fn a_mapping_becomes_a_region_of_its_file() {
    let Some(mut world) = World::new() else {
        return;
    };
    let _other = world.file("other", 20);
    let file = world.file("file", 16);
    let map = MmapOptions::new()
        .offset(4 * PAGE as u64)
        .len(8 * PAGE)
        .map_raw(&file)
        .unwrap();
    let region = flash(world.register(&map, PAGE + 5, 2 * PAGE, all()));
    assert_eq!(
        Some(region.target()),
        world.target.as_ref().map(|t| t.address)
    );
    assert_eq!(region.file().len(), 2 * PAGE as u64);
    let content = pattern(16 * PAGE, 16);
    let mut found = vec![0; 2 * PAGE];
    region.file().read_at(&mut found, 0).unwrap();
    let first = 5 * PAGE + 5;
    assert!(found == content[first..first + 2 * PAGE]);
    region.file().write_at(b"peer", 0).unwrap();
    // SAFETY: inside the mapping.
    let seen = unsafe { map.as_ptr().add(PAGE + 5).cast::<[u8; 4]>().read_volatile() };
    assert_eq!(&seen, b"peer");

    // A name with what the tables of the kernel quote; the kernel follows it.
    let renamed = world.dir.path().join("a name\\040 of\nlines");
    fs::rename(world.dir.path().join("file"), &renamed).unwrap();
    // Peers would be let at all the rest of the file.
    let nothing = world.register(&map, PAGE, 0, all());
    assert!(
        matches!(nothing, Err(RegistrationError::Empty(_))),
        "{nothing:?}"
    );
    let reader = flash(world.register(&map, 0, PAGE, Rights::REMOTE_READ));
    let mut found = vec![0; PAGE];
    reader.file().read_at(&mut found, 0).unwrap();
    assert!(found == content[4 * PAGE..5 * PAGE]);
    assert!(reader.file().write_at(b"x", 0).is_err());

    // The same name, another file: that one is not registered in its place.
    fs::rename(world.dir.path().join("other"), &renamed).unwrap();
    let replaced = world.register(&map, 0, PAGE, all());
    assert!(
        matches!(replaced, Err(RegistrationError::Replaced(_))),
        "{replaced:?}"
    );
    let mark = world.dir.path().join("a name\\040 of\nlines (deleted)");
    fs::write(mark, vec![0; 16 * PAGE]).unwrap();
    let replaced = world.register(&map, 0, PAGE, all());
    assert!(
        matches!(replaced, Err(RegistrationError::Replaced(_))),
        "{replaced:?}"
    );
}

/// Any other memory is registered in place, addressed as it is; a range with a file of a volume and something else is
/// refused, and so are mappings that do not show what peers would write.
#[test]
fn what_is_no_file_of_a_volume() {
    let Some(mut world) = World::new() else {
        return;
    };
    let rights = all() | Rights::REMOTE_ATOMIC;
    let plain = MmapRaw::from(MmapOptions::new().len(2 * PAGE).map_anon().unwrap());
    let region = memory(world.register(&plain, 3, PAGE, rights));
    let address = plain.as_ptr().addr() as u64 + 3;
    assert_eq!(region.names().base, TaggedOffset(address));
    assert_eq!(region.names().len, PAGE as u64);
    // SAFETY: inside the mapping.
    unsafe { plain.as_mut_ptr().add(3).write_volatile(7) };
    let bytes = region.slice(0..1);
    assert_eq!(bytes.buffer.to_vec(bytes.offset, bytes.len), [7]);
    let elsewhere = tempfile::tempfile().unwrap();
    elsewhere.set_len(PAGE as u64).unwrap();
    let foreign = MmapOptions::new().map_raw(&elsewhere).unwrap();
    memory(world.register(&foreign, 0, PAGE, all()));

    // A peer's bytes would end the program.
    let bare = MmapRaw::from(MmapOptions::new().len(PAGE).map_anon().unwrap());
    let protect = |how| {
        // SAFETY: a mapping of our own, which nobody looks at.
        let done = unsafe { libc::mprotect(bare.as_mut_ptr().cast(), PAGE, how) };
        assert_eq!(done, 0);
    };
    protect(libc::PROT_READ);
    for rights in [Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
        let refused = world.register(&bare, 0, PAGE, Rights::REMOTE_READ | rights);
        assert!(
            matches!(refused, Err(RegistrationError::Protected { .. })),
            "{refused:?}"
        );
    }
    memory(world.register(&bare, 0, PAGE, Rights::REMOTE_READ));
    protect(libc::PROT_NONE);
    let refused = world.register(&bare, 0, PAGE, Rights::REMOTE_READ);
    assert!(
        matches!(refused, Err(RegistrationError::Protected { .. })),
        "{refused:?}"
    );

    // The file in the middle of anonymous memory: page 1 of 3.
    let file = world.file("file", 4);
    let mixed = MmapRaw::from(MmapOptions::new().len(3 * PAGE).map_anon().unwrap());
    use std::os::fd::AsRawFd;
    // SAFETY: over a page of a mapping of our own, which nobody uses.
    let over = unsafe {
        libc::mmap(
            mixed.as_mut_ptr().add(PAGE).cast(),
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_eq!(over, mixed.as_mut_ptr().wrapping_add(PAGE).cast());
    flash(world.register(&mixed, PAGE, PAGE, all()));
    memory(world.register(&mixed, 2 * PAGE, PAGE, all()));
    for (from, len) in [(0, 3 * PAGE), (PAGE - 1, 2), (2 * PAGE - 1, 2)] {
        let refused = world.register(&mixed, from, len, all());
        assert!(
            matches!(refused, Err(RegistrationError::Mixed { .. })),
            "{refused:?}"
        );
    }

    // SAFETY: nobody changes the file.
    let private = MmapRaw::from(unsafe { MmapOptions::new().map_copy(&file) }.unwrap());
    let refused = world.register(&private, 0, PAGE, all());
    assert!(matches!(refused, Err(RegistrationError::Private(_))));
    // SAFETY: nobody changes the file.
    let read_only = MmapRaw::from(unsafe { MmapOptions::new().map(&file) }.unwrap());
    let refused = world.register(&read_only, 0, PAGE, all());
    assert!(matches!(refused, Err(RegistrationError::ReadOnly(_))));
    flash(world.register(&read_only, 0, PAGE, Rights::REMOTE_READ));
    let beyond = MmapOptions::new().len(6 * PAGE).map_raw(&file).unwrap();
    let refused = world.register(&beyond, 0, 6 * PAGE, all());
    assert!(
        matches!(refused, Err(RegistrationError::Client(_))),
        "a region does not reach beyond the end of its file: {refused:?}"
    );
}

/// What is mounted over a volume by now has other files, also if their names and numbers are the same (I4).
#[test]
fn a_mapping_of_a_volume_that_is_covered() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("to mount over a mount needs root");
        return;
    }
    let Some(mut world) = World::new() else {
        return;
    };
    let file = world.file("file", 1);
    let map = MmapOptions::new().map_raw(&file).unwrap();
    let (image, elsewhere) = (Image::new("128MiB"), tempfile::tempdir().unwrap());
    let over = image.serve(&["--mount", elsewhere.path().to_str().unwrap()]);
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    let (from, here) = (elsewhere.path(), world.dir.path().to_owned());
    run(Command::new("mount").arg("--bind").arg(from).arg(&here));
    let other = world.file("file", 1);
    assert_eq!(
        file.metadata().unwrap().ino(),
        other.metadata().unwrap().ino()
    );
    let covered = world.register(&map, 0, PAGE, all());
    drop(other);
    run(Command::new("umount").arg(&here));
    assert!(
        matches!(covered, Err(RegistrationError::Replaced(_))),
        "{covered:?}"
    );
    assert!(over.stop().success());
    flash(world.register(&map, 0, PAGE, all()));
}

/// A registrar goes on with a target that was away for so long that who had used it was told so.
#[test]
fn a_target_that_comes_back() {
    let Some(mut world) = World::new() else {
        return;
    };
    let domain = Context::new([1; 32]).allocate_domain();
    let patience = Duration::from_millis(10);
    world.registrar = Registrar::new(&domain, Client::builder().patience(patience));
    let file = world.file("file", 1);
    let map = MmapOptions::new().map_raw(&file).unwrap();
    let region = flash(world.register(&map, 0, PAGE, all()));
    drop((map, file));
    let target = world.target.take().unwrap();
    let address = target.address.to_string();
    assert!(target.stop().success());
    region.file().write_at(b"lost", 0).unwrap_err();
    let dir = world.dir.path().to_str().unwrap();
    world.target = Some(world._image.serve(&["--mount", dir, "--listen", &address]));
    let file = open(&world.dir.path().join("file"));
    let map = MmapOptions::new().map_raw(&file).unwrap();
    let region = flash(world.register(&map, 0, PAGE, all()));
    region.file().write_at(b"peer", 0).unwrap();
}

/// Listing 2 runs, line by line.
#[test]
fn listing_2() {
    let example = Path::new(FLASHNET).with_file_name("examples/listing2");
    if !example.is_file() {
        skip("listing2 is not built: cargo build -p tools --examples");
        return;
    }
    let Some(world) = World::new() else {
        return;
    };
    let output = Command::new(example)
        .arg(world.dir.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let address = world.target.as_ref().unwrap().address;
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("flash 1048576 bytes at {address}\nmemory 1048576 bytes here\n")
    );
}
