//! Making room for a volume that is to grow: an image file becomes longer, a block device is as large as it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use super::reserve::reserve;
use super::size_of_device;

/// Why there is not as much room as was asked for.
#[derive(Debug, thiserror::Error)]
pub enum EnlargeError {
    /// A block device of this size in bytes.
    #[error("the device has {bytes} bytes")]
    Smaller {
        /// What it has.
        bytes: u64,
    },
    /// The file could not be made longer, or its size not be found out.
    #[error("the image can not be made larger")]
    System(#[from] io::Error),
}

/// Bytes that a volume on this file or block device may have: `wanted`, or all that there are. An image file that is shorter
/// is made longer, durably; its space is reserved if that of the rest is.
///
/// # Errors
/// [`EnlargeError`]; the file is as long as before.
pub fn enlarge(file: &File, wanted: Option<u64>) -> Result<u64, EnlargeError> {
    let bytes = size_of_device(file)?;
    let wanted = wanted.unwrap_or(bytes);
    if wanted <= bytes {
        return Ok(wanted);
    }
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(EnlargeError::Smaller { bytes });
    }
    let is_reserved = meta.blocks() * 512 >= bytes;
    let made = match is_reserved {
        true => reserve(file, bytes, wanted - bytes),
        false => file.set_len(wanted),
    };
    // The superblock must never say more than the file has.
    if let Err(error) = made.and_then(|()| file.sync_all()) {
        // The first error is the one to tell.
        let _ = file.set_len(bytes);
        return Err(error.into());
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files become longer and never shorter, with what is in them; what is sparse stays so.
    #[test]
    fn files() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("set_len");
        assert_eq!(enlarge(&file, None).expect("as it is"), 8192);
        assert_eq!(enlarge(&file, Some(4096)).expect("less"), 4096);
        assert_eq!(enlarge(&file, Some(1 << 20)).expect("more"), 1 << 20);
        let meta = file.metadata().expect("metadata");
        assert_eq!((meta.len(), meta.blocks()), (1 << 20, 0));
        let too_much = enlarge(&file, Some(u64::MAX / 2));
        assert!(
            matches!(too_much, Err(EnlargeError::System(_))),
            "{too_much:?}"
        );
        assert_eq!(file.metadata().expect("metadata").len(), 1 << 20);
    }
}
