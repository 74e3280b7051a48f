//! Who asks: what a request does not say of the calling thread is read from `/proc` while it waits for the answer.
//!
//! The kernel checks permissions, but leaves two decisions to the file system: who sees names of `trusted.`
//! attributes, and whether an access control list set by a user outside the file's group clears the setgid bit. When
//! the answer can not be read, it is no.

use std::fs;

use fuser::Request;

/// Bits of the effective capability set, capabilities(7).
const CAP_FSETID: u32 = 4;
const CAP_SYS_ADMIN: u32 = 21;

/// Groups and capabilities of a thread.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    groups: Vec<u32>,
    capabilities: u64,
}

impl Status {
    /// Reads the text of `/proc/TID/status`.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let groups = field("Groups:")?.split_whitespace();
        Some(Self {
            groups: groups.map(|id| id.parse().ok()).collect::<Option<_>>()?,
            capabilities: u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?,
        })
    }
}

/// The thread that made a request.
pub(super) struct Caller {
    gid: u32,
    status: Status,
}

impl Caller {
    /// Looks the caller up.
    pub(super) fn of(req: &Request) -> Self {
        let text = fs::read_to_string(format!("/proc/{}/status", req.pid()));
        let mut status = text
            .ok()
            .and_then(|text| Status::parse(&text))
            .unwrap_or_default();
        if !shares_user_namespace(req.pid()) {
            // Capabilities count in the namespace that has the mount.
            status.capabilities = 0;
        }
        Self {
            gid: req.gid(),
            status,
        }
    }

    fn has(&self, capability: u32) -> bool {
        self.status.capabilities & (1 << capability) != 0
    }

    /// May see names of `trusted.` attributes.
    pub(super) fn sees_trusted(&self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    /// May keep the setgid bit of a file of this group.
    pub(super) fn keeps_setgid(&self, gid: u32) -> bool {
        self.gid == gid || self.status.groups.contains(&gid) || self.has(CAP_FSETID)
    }
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
    fn status_of_a_thread() {
        let text = "Name:\tx\nUid:\t1\t1\t1\t1\nGroups:\t4 27 1000 \nCapEff:\t0000000000200010\n";
        let status = Status::parse(text).unwrap();
        assert_eq!(status.groups, [4, 27, 1000]);
        let caller = Caller { gid: 5, status };
        assert!(caller.sees_trusted() && caller.keeps_setgid(99));
        assert_eq!(Status::parse("Groups:\tx\nCapEff:\t0\n"), None);
        assert_eq!(Status::parse(""), None);
    }

    /// Without an answer of the system nothing is allowed that needs one.
    #[test]
    fn unknown_callers() {
        let caller = Caller {
            gid: 5,
            status: Status::default(),
        };
        assert!(!caller.sees_trusted() && !caller.keeps_setgid(4) && caller.keeps_setgid(5));
    }
}
