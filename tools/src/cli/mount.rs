//! Options of `mount` and `umount`, and what may stand behind `-o`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use contigfs::{AtimePolicy, MetadataSync};
use serde::{Deserialize, Deserializer};

use super::Discard;

/// Options of `mount`, as mount(8) hands them to its helpers.
#[derive(Clone, Debug, Args)]
pub struct Mount {
    /// Device or image file; with commas between them, if the volume lies on several, or the others as options `device=`.
    #[arg(value_name = "DEV[,DEV...]")]
    pub spec: PathBuf,
    /// Directory to mount on.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Options of the mount, with commas between them; contigfs/docs/operating.md explains each.
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Pass over options that are unknown.
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Do everything but mount.
    #[arg(short = 'f')]
    pub fake: bool,
    /// umount(8) is not told of its helper; nothing is written to /etc/mtab, with or without this.
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// Say what was done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Type of the file system, which is known.
    #[arg(short = 't', hide = true)]
    pub kind: Option<String>,
}

/// Options of `umount`, as umount(8) hands them to its helpers.
#[derive(Clone, Debug, Args)]
pub struct Umount {
    /// Directory that a volume is mounted on.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take it out of sight now; it is served until the last of its files is closed.
    #[arg(short = 'l')]
    pub lazy: bool,
    /// Even if the target does not answer.
    #[arg(short = 'f')]
    pub force: bool,
    /// What umount(8) was told of its helper stays; nothing is written to /etc/mtab, with or without this.
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// If it is busy, make it read-only instead: not to be had.
    #[arg(short = 'r', hide = true)]
    pub read_only: bool,
    /// Say what was done.
    #[arg(short = 'v')]
    pub verbose: bool,
    /// Type of the file system, which is known.
    #[arg(short = 't', hide = true)]
    pub kind: Option<String>,
}

/// Where a target listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At this address.
    At(SocketAddr),
    /// Nowhere: it serves its mount only.
    Nowhere,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Nowhere),
            _ => text.parse().map(Self::At).map_err(|_| {
                format!("{text:?} is neither an address like 127.0.0.1:7174 nor none")
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which files share their pages with those who map them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SharePages {
    /// None.
    Never,
    /// Those marked by an extended attribute.
    Marked,
    /// All but those that the attribute excludes.
    All,
}

impl From<SharePages> for contigfs::fuse::SharePages {
    fn from(which: SharePages) -> Self {
        match which {
            SharePages::Never => Self::Never,
            SharePages::Marked => Self::Marked,
            SharePages::All => Self::All,
        }
    }
}

/// A span of time, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seconds = text.parse().ok().filter(|s| (0.001..=3600.0).contains(s));
        match seconds {
            Some(seconds) => Ok(Self(Duration::from_secs_f64(seconds))),
            None => Err("0.001 to 3600 seconds are possible".to_owned()),
        }
    }
}

/// Why a list of options can not be used. What asks for it is wrong, rather than anything having failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no such option.
    #[error("mount option {0:?} is unknown; contigfs/docs/operating.md lists those there are")]
    Unknown(String),
    /// The value makes no sense, or is missing.
    #[error("mount option {option:?}: {why}")]
    Value {
        /// The option with its value.
        option: String,
        /// What is wrong with it.
        why: String,
    },
    /// `remount`.
    #[error("there is nothing to be mounted anew: remount is for the command mount")]
    Remount,
}

/// What a list of mount options says; what it does not mention is left open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`, `rw`
    pub read_only: Option<bool>,
    /// `relatime`, `strictatime`, `noatime`
    pub atime: Option<AtimePolicy>,
    /// `diratime`, `nodiratime`
    pub directory_atimes: Option<bool>,
    /// `symfollow`, `nosymfollow`
    pub follow_links: Option<bool>,
    /// `allow_other`
    pub allow_other: Option<bool>,
    /// `suid`, `nosuid`
    pub suid: Option<bool>,
    /// `dev`, `nodev`
    pub dev: Option<bool>,
    /// `exec`, `noexec`
    pub exec: Option<bool>,
    /// `sync`, `async`
    pub sync: Option<bool>,
    /// `syncfs`, `nosyncfs`
    pub syncfs: Option<bool>,
    /// `uid=`
    pub uid: Option<u32>,
    /// `gid=`
    pub gid: Option<u32>,
    /// `listen=`
    pub listen: Option<Listen>,
    /// `metrics=`
    pub metrics: Option<Listen>,
    /// `insecure`
    pub insecure: Option<bool>,
    /// `pool=`
    pub pool: Option<ByteSize>,
    /// `degraded`
    pub degraded: Option<bool>,
    /// `share_pages`, `share_pages=`
    pub share_pages: Option<SharePages>,
    /// `share_limit=`
    pub share_limit: Option<ByteSize>,
    /// `share_scan=`
    pub share_scan: Option<Seconds>,
    /// `discard=`
    pub discard: Option<Discard>,
    /// `uring`, `nouring`
    pub rings: Option<bool>,
    /// `metadata_sync=`
    pub metadata_sync: Option<MetadataSync>,
    /// `config=`
    pub config: Option<PathBuf>,
    /// `device=`, all of them
    pub devices: Vec<PathBuf>,
    /// `remount`
    pub remount: bool,
}

impl MountOptions {
    /// Reads a list on top of what was said before: the last word counts. Returns the options that are known.
    ///
    /// # Errors
    /// Names the first option that is wrong, or unknown unless `sloppy`.
    pub fn add<'a>(&mut self, list: &'a str, sloppy: bool) -> Result<Vec<&'a str>, OptionError> {
        let mut known = Vec::new();
        for option in list.split(',').filter(|option| !option.is_empty()) {
            match self.add_one(option) {
                Ok(()) => known.push(option),
                Err(OptionError::Unknown(_)) if sloppy => {}
                Err(error) => return Err(error),
            }
        }
        Ok(known)
    }

    fn add_one(&mut self, option: &str) -> Result<(), OptionError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("ro", None) => self.read_only = Some(true),
            ("rw", None) => self.read_only = Some(false),
            ("relatime" | "atime" | "nostrictatime", None) => {
                self.atime = Some(AtimePolicy::Relative);
            }
            ("strictatime" | "norelatime", None) => self.atime = Some(AtimePolicy::Strict),
            ("noatime", None) => self.atime = Some(AtimePolicy::Never),
            ("diratime", None) => self.directory_atimes = Some(true),
            ("nodiratime", None) => self.directory_atimes = Some(false),
            ("symfollow", None) => self.follow_links = Some(true),
            ("nosymfollow", None) => self.follow_links = Some(false),
            ("allow_other", None) => self.allow_other = Some(true),
            ("suid", None) => self.suid = Some(true),
            ("nosuid", None) => self.suid = Some(false),
            ("dev", None) => self.dev = Some(true),
            ("nodev", None) => self.dev = Some(false),
            ("exec", None) => self.exec = Some(true),
            ("noexec", None) => self.exec = Some(false),
            ("sync", None) => self.sync = Some(true),
            ("async", None) => self.sync = Some(false),
            ("syncfs", None) => self.syncfs = Some(true),
            ("nosyncfs", None) => self.syncfs = Some(false),
            ("uring", None) => self.rings = Some(true),
            ("nouring", None) => self.rings = Some(false),
            // mount(8): these two imply others, unless they are overridden behind them.
            ("user" | "users", _) => {
                (self.suid, self.dev, self.exec) = (Some(false), Some(false), Some(false));
            }
            ("owner" | "group", None) => (self.suid, self.dev) = (Some(false), Some(false)),
            ("uid", Some(value)) => self.uid = Some(number(option, value)?),
            ("gid", Some(value)) => self.gid = Some(number(option, value)?),
            ("listen", Some(value)) => self.listen = Some(parse(option, value)?),
            ("metrics", Some(value)) => self.metrics = Some(parse(option, value)?),
            ("insecure", None) => self.insecure = Some(true),
            ("pool", Some(value)) => self.pool = Some(parse(option, value)?),
            ("share_pages", None) => self.share_pages = Some(SharePages::All),
            ("share_pages", Some(value)) => {
                let which = SharePages::from_str(value, false);
                self.share_pages = Some(which.map_err(|_| OptionError::Value {
                    option: option.to_owned(),
                    why: "never, marked or all is possible".to_owned(),
                })?);
            }
            ("share_limit", Some(value)) => self.share_limit = Some(parse(option, value)?),
            ("share_scan", Some(value)) => self.share_scan = Some(parse(option, value)?),
            ("degraded", None) => self.degraded = Some(true),
            ("discard", None) => self.discard = Some(Discard::Always),
            ("nodiscard", None) => self.discard = Some(Discard::Never),
            ("discard", Some(value)) => {
                let discard = Discard::from_str(value, false);
                self.discard = Some(discard.map_err(|_| OptionError::Value {
                    option: option.to_owned(),
                    why: "auto, always or never is possible".to_owned(),
                })?);
            }
            ("metadata_sync", Some(value)) => self.metadata_sync = Some(parse(option, value)?),
            ("config", Some(value)) => self.config = Some(value.into()),
            ("device", Some(value)) => self.devices.push(value.into()),
            ("remount", None) => self.remount = true,
            (
                "uid" | "gid" | "listen" | "metrics" | "pool" | "metadata_sync" | "config"
                | "device" | "share_limit" | "share_scan",
                None,
            ) => {
                return Err(OptionError::Value {
                    option: option.to_owned(),
                    why: format!("a value is missing ({option}=VALUE)"),
                });
            }
            _ if means_nothing_here(name) => {}
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }

    /// These options, and where they leave something open, those `below`.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        Self {
            read_only: self.read_only.or(below.read_only),
            atime: self.atime.or(below.atime),
            directory_atimes: self.directory_atimes.or(below.directory_atimes),
            follow_links: self.follow_links.or(below.follow_links),
            allow_other: self.allow_other.or(below.allow_other),
            suid: self.suid.or(below.suid),
            dev: self.dev.or(below.dev),
            exec: self.exec.or(below.exec),
            sync: self.sync.or(below.sync),
            syncfs: self.syncfs.or(below.syncfs),
            uid: self.uid.or(below.uid),
            gid: self.gid.or(below.gid),
            listen: self.listen.or(below.listen),
            metrics: self.metrics.or(below.metrics),
            insecure: self.insecure.or(below.insecure),
            pool: self.pool.or(below.pool),
            share_pages: self.share_pages.or(below.share_pages),
            share_limit: self.share_limit.or(below.share_limit),
            share_scan: self.share_scan.or(below.share_scan),
            degraded: self.degraded.or(below.degraded),
            discard: self.discard.or(below.discard),
            rings: self.rings.or(below.rings),
            metadata_sync: self.metadata_sync.or(below.metadata_sync),
            config: self.config.or(below.config),
            devices: [below.devices, self.devices].concat(),
            remount: self.remount || below.remount,
        }
    }
}

/// One list, for the command line.
impl FromStr for MountOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options = Self::default();
        options.add(text, false)?;
        if options.remount {
            return Err(OptionError::Remount);
        }
        Ok(options)
    }
}

impl<'de> Deserialize<'de> for MountOptions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Whether the option is for others (mount(8), systemd), or says what is so anyway: permissions are always checked by
/// the kernel, changes of directories are always durable, and times always lie in memory until they have to be written.
fn means_nothing_here(name: &str) -> bool {
    const OTHERS: [&str; 18] = [
        "auto",
        "blksize",
        "comment",
        "default_permissions",
        "defaults",
        "dirsync",
        "lazytime",
        "loud",
        "_netdev",
        "noauto",
        "nofail",
        "nogroup",
        "noiversion",
        "nomand",
        "noowner",
        "nouser",
        "nousers",
        "silent",
    ];
    let name_space = |prefix| name.starts_with(prefix);
    OTHERS.contains(&name) || name_space("x-") || name_space("X-")
}

/// Owners by number only: a name may be another owner on the machine that made the image.
fn number(option: &str, value: &str) -> Result<u32, OptionError> {
    value.parse().map_err(|_| OptionError::Value {
        option: option.to_owned(),
        why: "a number is needed".to_owned(),
    })
}

fn parse<T: FromStr<Err: fmt::Display>>(option: &str, value: &str) -> Result<T, OptionError> {
    value.parse().map_err(|why: T::Err| OptionError::Value {
        option: option.to_owned(),
        why: why.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &str) -> MountOptions {
        list.parse().unwrap()
    }

    #[test]
    fn the_last_word_counts() {
        let said = options("ro,noatime,rw,strictatime,pool=64MiB,uid=7");
        assert_eq!(said.read_only, Some(false));
        assert_eq!(said.atime, Some(AtimePolicy::Strict));
        assert_eq!(said.pool, Some(ByteSize::mib(64)));
        assert_eq!((said.uid, said.gid), (Some(7), None));
        assert_eq!(options("users,exec").exec, Some(true));
        assert_eq!(options("exec,users").exec, Some(false));
        assert_eq!(options("listen=none").listen, Some(Listen::Nowhere));
        let metrics = options("metrics=none,metrics=[::1]:9174").metrics;
        assert_eq!(metrics, Some(Listen::At("[::1]:9174".parse().unwrap())));
        let shares = options("share_pages=marked,share_pages,share_scan=0.25");
        assert_eq!(shares.share_pages, Some(SharePages::All));
        let scan = Seconds(Duration::from_millis(250));
        assert_eq!(shares.share_scan, Some(scan));
        let file = options("ro,gid=5");
        let both = options("rw").over(file);
        assert_eq!((both.read_only, both.gid), (Some(false), Some(5)));
        let several = options("device=b,device=c").over(options("device=a"));
        assert_eq!(several.devices, ["a", "b", "c"].map(PathBuf::from));
    }

    #[test]
    fn what_others_want_is_passed_over() {
        let list = "defaults,nofail,_netdev,noauto,x-systemd.automount,x-gvfs-name=a,X-mount.mkdir,\
                    comment=a,default_permissions,lazytime,dirsync,,";
        assert_eq!(options(list), MountOptions::default());
    }

    #[test]
    fn mistakes_are_named() {
        let said = |list: &str| list.parse::<MountOptions>().unwrap_err().to_string();
        assert!(said("ro,noatim").contains("\"noatim\""));
        assert!(said("ro=1").contains("\"ro=1\""));
        assert!(said("uid=root").contains("\"uid=root\""));
        assert!(said("listen=here").contains("none"));
        assert!(said("metrics").contains("metrics=VALUE"));
        assert!(said("metrics=9174").contains("127.0.0.1"));
        assert!(said("pool").contains("pool=VALUE"));
        assert!(said("device").contains("device=VALUE"));
        assert!(said("share_pages=some").contains("marked"));
        assert!(said("share_scan=0").contains("0.001"));
        assert!(said("share_limit").contains("share_limit=VALUE"));
        assert!(said("remount,ro").contains("remount"));
        let mut sloppy = MountOptions::default();
        assert_eq!(sloppy.add("nonsense,ro", true), Ok(vec!["ro"]));
        assert_eq!(sloppy.read_only, Some(true));
        assert!(sloppy.add("uid=x", true).is_err());
    }
}
