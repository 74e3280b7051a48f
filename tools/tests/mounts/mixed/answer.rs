//! What a call of a client comes back with.

use crate::common::pattern;

/// Success with what was asked for, or an `errno`.
pub type Outcome = Result<Answer, i32>;

/// What a call that succeeded says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Count(usize),
    Bytes(Vec<u8>),
    Attributes(Attributes),
    /// Sorted.
    Names(Vec<(String, Attributes)>),
    /// The connection ended, as it must when a region is used that is no more.
    Ended,
}

/// Attributes of a file or directory, as far as the one who answers tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub is_dir: bool,
    /// Of files.
    pub size: Option<usize>,
    pub links: Option<usize>,
    /// Number of the inode.
    pub number: Option<u64>,
}

/// Bytes that differ from all others, told in few words.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub seed: u64,
    pub len: usize,
}

impl Fill {
    pub fn bytes(self) -> Vec<u8> {
        pattern(self.len, self.seed)
    }
}

/// Where two outcomes differ, in few words.
pub fn difference(expected: &Outcome, found: &Outcome) -> String {
    let (Ok(Answer::Bytes(expected)), Ok(Answer::Bytes(found))) = (expected, found) else {
        return format!("{found:?} instead of {expected:?}");
    };
    different_bytes(expected, found)
}

/// Where two pieces of content differ.
pub fn different_bytes(expected: &[u8], found: &[u8]) -> String {
    let longest = expected.len().max(found.len());
    let unequal: Vec<_> = (0..longest)
        .filter(|&n| expected.get(n) != found.get(n))
        .collect();
    let (Some(first), Some(last)) = (unequal.first(), unequal.last()) else {
        return "no difference".into();
    };
    let around = |bytes: &[u8]| bytes.get(*first..).map(|b| b[..b.len().min(8)].to_vec());
    format!(
        "{} bytes instead of {}; {} of {first}..={last} differ, {:?}.. instead of {:?}..",
        found.len(),
        expected.len(),
        unequal.len(),
        around(found),
        around(expected)
    )
}
