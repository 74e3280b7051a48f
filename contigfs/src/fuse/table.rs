//! `/proc/self/mountinfo` (proc_pid_mountinfo(5)): what is mounted where.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const PATH: &str = "/proc/self/mountinfo";
/// Types of the file system as it is mounted: the second with the option `syncfs`.
const TYPES: [&[u8]; 2] = [b"fuse.contigfs", b"fuseblk.contigfs"];

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the file system's device, `major:minor`.
    pub device: String,
    /// Where.
    pub dir: PathBuf,
    /// Type of the file system.
    pub kind: Vec<u8>,
    /// What is mounted.
    pub source: PathBuf,
}

impl MountEntry {
    /// The mount table, in its order: of several mounts on a directory the last is the one that is seen.
    ///
    /// # Errors
    /// What the system says.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(parse(&std::fs::read(PATH)?))
    }

    /// What is seen on a directory, if something is mounted there.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn on(dir: &Path) -> io::Result<Option<Self>> {
        let mut entries = Self::all()?.into_iter();
        Ok(entries.rfind(|entry| entry.dir == dir))
    }

    /// Whether this is a ContigFS.
    pub fn is_contigfs(&self) -> bool {
        TYPES.contains(&&self.kind[..])
    }

    /// Whether it is shown as a block device, by a loop device.
    pub fn is_on_block_device(&self) -> bool {
        self.kind == TYPES[1]
    }
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(line)
        .collect()
}

fn line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let dir = path(fields.nth(1)?);
    // Optional fields up to a dash.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    Some(MountEntry {
        device,
        dir,
        kind: fields.next()?.to_vec(),
        source: path(fields.next()?),
    })
}

/// A field of the mount table, which has blanks and backslashes in octal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| byte == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table() {
        let table = b"36 35 98:0 /mnt1 /a\\040b rw,noatime master:1 shared:7 - fuse.contigfs /dev/x\\134y rw\n\
            40 36 0:45 / /a\\040b rw - tmpfs x rw\nnonsense\n";
        let parsed = parse(table);
        assert_eq!(parsed.len(), 2);
        assert_eq!(parsed[0].device, "98:0");
        assert_eq!(parsed[0].dir, Path::new("/a b"));
        assert_eq!(parsed[0].source, Path::new("/dev/x\\y"));
        assert!(parsed[0].is_contigfs() && !parsed[0].is_on_block_device());
        assert!(!parsed[1].is_contigfs() && parsed[1].dir == parsed[0].dir);
        assert_eq!(unescape(b"/a\\040b\\134c\\"), b"/a b\\c\\");
        assert!(MountEntry::on(Path::new("/proc")).unwrap().is_some());
    }
}
