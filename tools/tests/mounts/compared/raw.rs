//! System calls of the calling thread alone: the library's would change all threads of the process, or look at errors.

use std::ffi::CString;
use std::io::Error;

/// What a call returns, or `errno`.
pub type Returned = Result<usize, i32>;

/// An argument of a system call.
pub trait Argument {
    fn word(&self) -> usize;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(impl Argument for $number {
        fn word(&self) -> usize {
            *self as usize
        }
    })*};
}
numbers!(i32, u32, i64, u64, usize);

impl Argument for CString {
    fn word(&self) -> usize {
        self.as_ptr() as usize
    }
}

/// The place of bytes that a call reads or writes.
pub struct Place(usize);

impl Place {
    pub fn of<T: ?Sized>(what: &T) -> Self {
        Self((&raw const *what).cast::<u8>() as usize)
    }

    pub fn of_mut<T: ?Sized>(what: &mut T) -> Self {
        Self((&raw mut *what).cast::<u8>() as usize)
    }

    pub const NONE: Self = Self(0);

    pub fn at(address: usize) -> Self {
        Self(address)
    }
}

impl Argument for Place {
    fn word(&self) -> usize {
        self.0
    }
}

/// A call. Whatever its arguments point to has to live as long, and to be as long as they say.
pub fn call(number: i64, arguments: &[&dyn Argument]) -> Returned {
    let mut words = [0; 6];
    for (word, argument) in words.iter_mut().zip(arguments) {
        *word = argument.word();
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: the callers, all in this test, pass numbers, strings that end, and places that are as long as they say.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    match usize::try_from(result) {
        Ok(result) => Ok(result),
        Err(_) => Err(Error::last_os_error().raw_os_error().expect("a number")),
    }
}

pub fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL")
}

/// As statx(2) has it, of a path from a directory, or of what is open.
pub fn statx(dir: i32, path: &str, flags: i32) -> Result<libc::statx, i32> {
    // SAFETY: numbers alone.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_BASIC_STATS;
    call(
        libc::SYS_statx,
        &[&dir, &c(path), &flags, &mask, &Place::of_mut(&mut stat)],
    )?;
    Ok(stat)
}

pub fn close(fd: i32) -> Returned {
    call(libc::SYS_close, &[&fd])
}

/// Entries of an open directory: names and kinds, in no order.
#[expect(clippy::host_endian_bytes, reason = "what the kernel writes")]
pub fn entries(fd: i32) -> Result<Vec<(String, u8)>, i32> {
    /// Bytes before the name: inode, offset, length, kind.
    const NAME_AT: usize = 19;
    let mut entries = Vec::new();
    loop {
        let mut buffer = [0_u8; 4096];
        let place = Place::of_mut(&mut buffer);
        let len = call(libc::SYS_getdents64, &[&fd, &place, &buffer.len()])?;
        if len == 0 {
            entries.sort();
            return Ok(entries);
        }
        let mut rest = &buffer[..len];
        while !rest.is_empty() {
            let len = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let name = rest[NAME_AT..len].split(|&byte| byte == 0).next();
            let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
            entries.push((name, rest[18]));
            rest = &rest[len..];
        }
    }
}
