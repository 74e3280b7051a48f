//! Options of `top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// Options of `top`.
#[derive(Clone, Debug, Args)]
pub struct Top {
    /// Volume that is served: its devices, or where it is mounted [default: the one that is mounted, if there is only one].
    #[arg(value_name = "DEV|DIR")]
    pub volume: Vec<PathBuf>,
    /// Time between two looks: seconds, or 500ms, 2s, 1m.
    #[arg(short = 'd', long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Append text instead of redrawing the screen, as if it went to a pipe.
    #[arg(short = 'b', long)]
    pub batch: bool,
    /// End after so many looks. The first tells of all that was since the target was started.
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// One look as text: -b -n 1.
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
}

impl Top {
    /// How many looks, if that is limited.
    pub fn looks(&self) -> Option<u64> {
        if self.once { Some(1) } else { self.count }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let said = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let said = said.or_else(|| humantime::parse_duration(text).ok());
    let possible = Duration::from_millis(100)..=Duration::from_secs(24 * 3600);
    match said {
        Some(interval) if possible.contains(&interval) => Ok(interval),
        Some(_) => Err("100ms to 1d are possible".to_owned()),
        None => Err("a time is seconds, or a number with its unit: 0.5, 500ms, 2s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As top(1) and vmstat(8) take them, and as other commands here do; nothing that would keep a target busy.
    #[test]
    fn intervals() {
        let good = [("2", 2000), ("0.5", 500), ("250ms", 250), ("1m", 60_000)];
        for (text, milliseconds) in good {
            assert_eq!(interval(text), Ok(Duration::from_millis(milliseconds)));
        }
        for text in ["", "0", "-1", "NaN", "inf", "1e300", "99ms", "2d", "fast"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
