//! Who asks: what a request does not say of the calling thread is read from `/proc` while it waits for the answer.
//!
//! The kernel checks permissions, but leaves decisions to the file system: who sees names of `trusted.` attributes, and
//! whose changes leave setgid as it is. When the answer can not be read, it is no.

use std::fs;

/// Bits of the effective capability set, capabilities(7).
const CAP_FSETID: u32 = 4;
const CAP_SYS_ADMIN: u32 = 21;

/// The thread that made a request.
pub(super) struct Caller {
    capabilities: u64,
    groups: Vec<u32>,
}

impl Caller {
    /// Looks the caller up.
    pub(super) fn of(pid: u32) -> Self {
        let text = fs::read_to_string(format!("/proc/{pid}/status"));
        let text = text.unwrap_or_default();
        let capabilities = capabilities(&text);
        Self {
            groups: groups(&text),
            // Capabilities count in the namespace that has the mount.
            capabilities: match shares_user_namespace(pid) {
                true => capabilities.unwrap_or(0),
                false => 0,
            },
        }
    }

    /// May see names of `trusted.` attributes.
    pub(super) fn sees_trusted(&self) -> bool {
        self.capabilities & (1 << CAP_SYS_ADMIN) != 0
    }

    /// Leaves setgid of a file of this group when changing it.
    pub(super) fn keeps_setgid(&self, group: u32) -> bool {
        self.capabilities & (1 << CAP_FSETID) != 0 || self.groups.contains(&group)
    }
}

/// The supplementary groups in the text of `/proc/TID/status`.
fn groups(text: &str) -> Vec<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("Groups:"));
    let words = line.unwrap_or_default().split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// The effective capability set in the text of `/proc/TID/status`.
fn capabilities(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn shares_user_namespace(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user"));
    match (namespace(&pid.to_string()), namespace("self")) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_of_a_thread() {
        let text = "Name:\tx\nUid:\t1\t1\t1\t1\nGroups:\t7 2001 \nCapEff:\t0000000000200000\n";
        let who = |capabilities| Caller {
            capabilities,
            groups: groups(text),
        };
        let capabilities = capabilities(text).unwrap();
        assert!(who(capabilities).sees_trusted());
        assert!(!who(!capabilities).sees_trusted());
        assert!(who(capabilities).keeps_setgid(2001));
        assert!(!who(capabilities).keeps_setgid(2002));
        assert!(who(1 << CAP_FSETID).keeps_setgid(2002));
        assert_eq!(super::capabilities("CapEff:\tx\n"), None);
        assert_eq!(super::capabilities(""), None);
    }

    /// Without an answer of the system nothing is allowed that needs one.
    #[test]
    fn unknown_callers() {
        assert!(!Caller::of(u32::MAX).sees_trusted());
        assert!(!Caller::of(u32::MAX).keeps_setgid(0));
    }
}
