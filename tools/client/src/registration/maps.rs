//! `/proc/self/maps`: what lies at which address of this process.

use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::Device;

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) addresses: Range<u64>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Stores reach the file.
    pub(super) shared: bool,
    /// Of the first byte in the file.
    pub(super) offset: u64,
    pub(super) device: Device,
    /// 0: no file.
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

/// Reads the table; lines that are none are left out.
pub(super) fn parse(table: &[u8]) -> Vec<Mapping> {
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mapping> {
    let (addresses, rest) = word(line)?;
    let (flags, rest) = word(rest)?;
    let (offset, rest) = word(rest)?;
    let (device, rest) = word(rest)?;
    let (inode, path) = word(rest)?;
    let (start, end) = addresses.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (major, minor) = device.split_once(':')?;
    Some(Mapping {
        addresses: hex(start)?..hex(end)?,
        readable: flags.as_bytes().first() == Some(&b'r'),
        writable: flags.as_bytes().get(1) == Some(&b'w'),
        shared: flags.as_bytes().get(3) == Some(&b's'),
        offset: hex(offset)?,
        device: Device {
            major: u32::try_from(hex(major)?).ok()?,
            minor: u32::try_from(hex(minor)?).ok()?,
        },
        inode: inode.parse().ok()?,
        path: PathBuf::from(OsString::from_vec(unescaped(path))),
    })
}

/// The next word, and what follows the blanks behind it.
fn word(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().position(|&b| b == b' ').unwrap_or(bytes.len());
    let (word, rest) = bytes.split_at(end);
    let blanks = rest.iter().take_while(|&&b| b == b' ').count();
    let word = std::str::from_utf8(word)
        .ok()
        .filter(|word| !word.is_empty())?;
    Some((word, &rest[blanks..]))
}

/// The one byte that is quoted in this table is the newline. A name that has these four characters in it is taken for
/// another one, which will not be found to be the file.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, behind)) = rest.split_first() {
        let (byte, behind) = match rest.strip_prefix(b"\\012") {
            Some(behind) => (b'\n', behind),
            None => (first, behind),
        };
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the kernel prints them: a file with blanks in its name, plain memory, a name with a newline.
    #[test]
    fn lines_of_the_kernel() {
        let table = b"7f20e0000000-7f20e0021000 rw-p 00000000 00:00 0 \n\
            7f20e4000000-7f20e4002000 rw-s 00003000 00:35 42                         /mnt/a b (deleted)\n\
            7ffd0000-7ffe0000 r--p 00000000 fd:01 7 /x\\012y\\040\n\
            garbage\n";
        let maps = parse(table);
        assert_eq!(maps.len(), 3);
        assert_eq!((maps[0].inode, maps[0].writable), (0, true));
        let device = Device {
            major: 0,
            minor: 0x35,
        };
        let file = Mapping {
            addresses: 0x7f20_e400_0000..0x7f20_e400_2000,
            readable: true,
            writable: true,
            shared: true,
            offset: 0x3000,
            device,
            inode: 42,
            path: PathBuf::from("/mnt/a b (deleted)"),
        };
        assert_eq!(maps[1], file);
        assert_eq!(maps[2].path, PathBuf::from("/x\ny\\040"));
        assert_eq!(maps[2].device.major, 0xfd);
        assert!(!maps[2].writable && !maps[2].shared);
    }
}
