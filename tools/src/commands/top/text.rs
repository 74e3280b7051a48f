//! Looks one after another, as text or JSON: for pipes, files, and terminals that are to keep them.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Instant, SystemTime};

use anyhow::Result;

use super::rates::Looks;
use super::screen::{Shown, lines};
use super::watched::Watched;
use crate::cli::top::Top;

/// Says what is seen until there were as many looks as were asked for.
pub(super) fn run(options: &Top, devices: Vec<PathBuf>, json: bool) -> Result<()> {
    let mut watched = Watched::on(devices.clone());
    let mut looks: Option<Looks> = None;
    let mut left = options.looks();
    let mut due = Instant::now();
    loop {
        let status = watched.look()?;
        if json {
            println!("{}", serde_json::to_string(&status)?);
        } else {
            let is_first = looks.is_none();
            let looks = match &mut looks {
                None => looks.insert(Looks::first(status)),
                Some(looks) => {
                    looks.again(status);
                    looks
                }
            };
            // Blocks stand apart.
            let mut block = String::from(if is_first { "" } else { "\n" });
            for line in lines(looks, Shown::Latest, &devices, SystemTime::now(), "") {
                block += &line.text;
                block.push('\n');
            }
            print!("{block}");
        }
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(());
        }
        // Who is late does not hurry afterwards.
        due = (due + options.interval).max(Instant::now());
        sleep(due.saturating_duration_since(Instant::now()));
    }
}
