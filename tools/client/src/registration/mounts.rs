//! `/proc/self/mountinfo`: which file system a device number is, and where it is mounted.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::Device;

/// Type of the file system, as the target mounts it: the second on a loop device.
const TYPES: [&[u8]; 2] = [b"fuse.contigfs", b"fuseblk.contigfs"];

/// A mount of a ContigFS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) device: Device,
    /// Directory of the volume that is mounted.
    pub(super) root: PathBuf,
    /// Where.
    pub(super) point: PathBuf,
    /// Who runs its target.
    pub(super) owner: Option<u32>,
}

impl Mount {
    /// Path in the volume of what is at `path` here; none if it is not below the mount.
    pub(super) fn path_in_volume(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.point).ok()?;
        Some(self.root.join(below))
    }
}

/// The mounts of ContigFS volumes; lines that are none are left out.
pub(super) fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|&b| b == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescaped(field)));
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    // Optional fields up to a dash.
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
    let options = std::str::from_utf8(options).ok()?;
    let owner = options
        .split(',')
        .find_map(|option| option.strip_prefix("user_id="));
    TYPES.contains(&kind).then_some(Mount {
        device: Device {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        root,
        point,
        owner: owner.and_then(|owner| owner.parse().ok()),
    })
}

/// Three octal digits behind a backslash are a byte.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = match first {
            b'\\' => behind.first_chunk::<3>(),
            _ => None,
        };
        let is_octal = |digit: &u8| (b'0'..=b'7').contains(digit);
        if let Some(digits) = digits.filter(|digits| digits.iter().all(is_octal)) {
            let value = digits
                .iter()
                .fold(0, |value, digit| value * 8 + u32::from(digit - b'0'));
            bytes.push(value as u8);
            rest = &behind[3..];
        } else {
            bytes.push(first);
            rest = behind;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount of ours with a blank in its name and optional fields, a part of it bound elsewhere, and a foreign one.
    #[test]
    fn lines_of_the_kernel() {
        let table = b"30 1 0:53 / /mnt/my\\040flash rw,nosuid - fuse.contigfs /srv/volume.img rw,user_id=1000,group_id=0\n\
            31 1 0:53 /a/b /mnt/part rw shared:7 master:1 - fuse.contigfs /srv/volume.img rw,user_id=0\n\
            32 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        let mounts = parse(table);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].point, Path::new("/mnt/my flash"));
        assert_eq!(mounts[0].owner, Some(1000));
        let device = Device {
            major: 0,
            minor: 53,
        };
        assert_eq!(mounts[1].device, device);
        let file = mounts[1].path_in_volume(Path::new("/mnt/part/c"));
        assert_eq!(file.as_deref(), Some(Path::new("/a/b/c")));
        assert_eq!(mounts[1].path_in_volume(Path::new("/mnt/partial/c")), None);
    }
}
