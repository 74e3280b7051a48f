//! The names that the program is called by, and the exit status that the callers of each expect.

use std::path::Path;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::mount::OptionError;
use crate::commands::{Damaged, Done};
use crate::target::SettingsError;

/// What the program was called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Anything else: the command is the first argument.
    Flashnet,
    /// `mkfs.contigfs`
    Mkfs,
    /// `fsck.contigfs`, by fsck(8)
    Fsck,
    /// `mount.contigfs`, by mount(8); `mount.fuse.contigfs` and `mount.fuseblk.contigfs` when it goes by the type in the mount table
    Mount,
    /// `resize.contigfs`
    Resize,
    /// `umount.fuse.contigfs` and `umount.fuseblk.contigfs`, by umount(8), which goes by the type in the mount table
    Umount,
}

/// Names of links to the program that stand for a command.
pub const LINKS: [(&str, Called); 9] = [
    ("mkfs.contigfs", Called::Mkfs),
    ("fsck.contigfs", Called::Fsck),
    ("resize.contigfs", Called::Resize),
    ("mount.contigfs", Called::Mount),
    ("mount.fuse.contigfs", Called::Mount),
    ("mount.fuseblk.contigfs", Called::Mount),
    ("umount.contigfs", Called::Umount),
    ("umount.fuse.contigfs", Called::Umount),
    ("umount.fuseblk.contigfs", Called::Umount),
];

impl Called {
    /// The meaning of the program's own name.
    pub fn by(name: Option<&Path>) -> Self {
        let name = name.and_then(Path::file_name);
        let link = LINKS.iter().find(|(link, _)| name == Some(link.as_ref()));
        link.map_or(Self::Flashnet, |(_, called)| *called)
    }

    /// The command that the name stands for.
    pub fn command(self) -> Option<&'static str> {
        match self {
            Self::Flashnet => None,
            Self::Mkfs => Some("mkfs"),
            Self::Fsck => Some("fsck"),
            Self::Mount => Some("mount"),
            Self::Resize => Some("resize"),
            Self::Umount => Some("umount"),
        }
    }

    /// Exit status when the arguments make no sense.
    pub fn wrong_usage(self) -> u8 {
        match self {
            Self::Flashnet | Self::Mkfs | Self::Resize => 2,
            Self::Mount | Self::Umount => 1,
            Self::Fsck => 16,
        }
    }

    /// Exit status when the command has done what it should.
    pub fn done(self, done: Done) -> u8 {
        match (self, done) {
            // fsck(8): "filesystem errors corrected".
            (Self::Fsck, Done::Repaired) => 1,
            _ => 0,
        }
    }

    /// Takes care of the exit status of a command that is interrupted.
    pub fn watch_signals(self) {
        if self != Self::Fsck {
            return;
        }
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else {
            return;
        };
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                eprintln!("fsck.contigfs: cancelled");
                // fsck(8): "checking canceled by user request". What has been repaired stays so.
                std::process::exit(32);
            }
        });
    }

    /// Exit status when the command failed.
    pub fn failed(self, error: &anyhow::Error) -> u8 {
        match self {
            Self::Mount | Self::Flashnet if error.is::<OptionError>() => self.wrong_usage(),
            Self::Flashnet if error.is::<SettingsError>() => self.wrong_usage(),
            // fsck(8): "filesystem errors left uncorrected", "operational error".
            Self::Fsck if error.is::<Damaged>() => 4,
            Self::Fsck => 8,
            Self::Flashnet | Self::Mkfs | Self::Resize => 1,
            // mount(8): "mount failure".
            Self::Mount | Self::Umount => 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links() {
        let by = |name: &str| Called::by(Some(Path::new(name)));
        assert_eq!(by("/sbin/mount.contigfs"), Called::Mount);
        assert_eq!(by("umount.fuse.contigfs"), Called::Umount);
        assert_eq!(by("resize.contigfs"), Called::Resize);
        assert_eq!(by("target/debug/flashnet"), Called::Flashnet);
        assert_eq!(Called::by(None), Called::Flashnet);
    }
}
