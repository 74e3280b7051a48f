//! Where messages are cut into segments.

use crate::page::PAGE_BYTES;

/// Bytes of the next segment of a tagged or untagged message with `remaining` bytes left, the next of them at `at`.
/// Cuts fall on page boundaries where a page fits, so that the receiver can overwrite whole pages.
pub(super) fn cut(remaining: u32, at: u64, ulpdu_max: u16, header_bytes: usize) -> u32 {
    let most = u32::from(ulpdu_max) - header_bytes as u32;
    if remaining <= most {
        return remaining;
    }
    if most < PAGE_BYTES as u32 {
        return most;
    }
    most - (at.wrapping_add(u64::from(most)) % PAGE_BYTES as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_at_pages_where_they_fit() {
        assert_eq!(cut(100, 0, 1442, 14), 100);
        assert_eq!(cut(4096, 0, 1442, 14), 1428);
        assert_eq!(cut(1 << 20, 0, 61454, 14), 61440);
        assert_eq!(cut(1 << 20, 100, 61454, 14), 61340);
        assert_eq!(cut(5000, 1, 14 + 4096, 14), 4095);
        assert_eq!(cut(5000, u64::MAX, 14 + 4096, 14), 1);
    }
}
