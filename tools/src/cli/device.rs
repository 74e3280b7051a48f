//! Options of the commands that look after a device: `inspect` and `scrub`.

use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use clap::Args;
use ftl::{Lba, LbaRange};

/// Options of `inspect`.
#[derive(Clone, Debug, Args)]
pub struct Inspect {
    /// List all segments: stream, age, headers, grains used and live.
    #[arg(long)]
    pub segments: bool,
    /// List the log headers of one segment, with their records.
    #[arg(long, value_name = "N")]
    pub segment: Option<u32>,
    /// List where the grains of a range lie.
    #[arg(long, value_name = "LBA[+COUNT]")]
    pub map: Option<Grains>,
    /// Device or image file; all of them in any order, if the volume lies on several.
    #[arg(required = true, value_name = "DEV")]
    pub devices: Vec<PathBuf>,
}

/// Options of `scrub`.
#[derive(Clone, Debug, Args)]
pub struct Scrub {
    /// Read at most so many bytes per second.
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<ByteSize>,
    /// Although devices of the volume are missing: tells what is lost without them. Nothing is written.
    #[arg(long)]
    pub degraded: bool,
    /// Device or image file; all of them in any order, if the volume lies on several.
    #[arg(required = true, value_name = "DEV")]
    pub devices: Vec<PathBuf>,
}

/// `LBA[+COUNT]`: a run of grains, one when no count is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grains(pub LbaRange);

impl FromStr for Grains {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, count) = text.split_once('+').unwrap_or((text, "1"));
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text:?}: {e}"));
        let (first, count) = (number(first)?, number(count)?);
        match first.checked_add(count) {
            Some(end) if end <= Lba::END.0 => Ok(Self(LbaRange::new(Lba(first), count))),
            _ => Err(format!("beyond the last LBA, {}", Lba::END.0 - 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges are taken as people write them, and nothing beyond the space.
    #[test]
    fn ranges() {
        let range = |text: &str| text.parse::<Grains>().map(|g| (g.0.start.0, g.0.count));
        assert_eq!(range("7"), Ok((7, 1)));
        assert_eq!(range("7+100"), Ok((7, 100)));
        assert!(range("x").is_err());
        assert!(range("4503599627370495+2").is_err());
        assert!(range("18446744073709551615+1").is_err());
    }
}
