//! `flashnet ftl replay`: a trace through the engine, and the write amplification that came of it.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use indicatif::ProgressBar;

use crate::cli::ftl::Replay;
use crate::commands::perf::clean_up_when_ended;
use crate::commands::show;
use crate::replay::trace::{self, Step};
use crate::replay::{Measured, ReplayOptions, Replayer};

pub(super) fn run(options: &Replay, json: bool) -> Result<()> {
    let (steps, _) = trace::open(&options.trace)?;
    let skip = options.skip.unwrap_or(steps / 2);
    trace::check(&options.trace, options.grains, skip)?;
    if let Some(at) = options.reopen_at {
        ensure!(
            at <= skip,
            "--reopen-at {at} lies in what is measured, which begins at step {skip} (--skip)"
        );
    }
    let started = Instant::now();
    // A link that leads nowhere is somebody's, too.
    let is_there = |path: &Path| path.symlink_metadata().is_ok();
    let image = Some(options.media.as_path()).filter(|path| !is_memory(path) && !is_there(path));
    if let Some(image) = image {
        // Half of it would only be in the way of another try.
        clean_up_when_ended(image)?;
    }
    let measured = replay(options, steps, skip, json).inspect_err(|_| {
        if let Some(image) = image {
            // It was made for this; without it the same can be tried again.
            let _ = std::fs::remove_file(image);
        }
    })?;
    if json {
        let mut value = serde_json::to_value(&measured)?;
        value["seconds"] = started.elapsed().as_secs_f64().into();
        println!("{value}");
    } else {
        print(&measured);
        println!("{steps} steps in {}", show::time(started.elapsed()));
    }
    Ok(())
}

/// Whether the volume is no file.
fn is_memory(media: &Path) -> bool {
    ["null", "mem"].map(Path::new).contains(&media)
}

fn replay(options: &Replay, steps: u64, skip: u64, json: bool) -> Result<Measured> {
    let media = (options.media.as_os_str() != "null").then(|| options.media.clone());
    let mut replayer = Replayer::new(ReplayOptions {
        grains: options.grains,
        overprovision_percent: options.op,
        segment_grains: options.segment_grains,
        policy: options.gc_policy,
        media,
        checkpoints: options.reopen_at.is_some(),
    })?;
    let quiet = json || !std::io::stderr().is_terminal();
    let bar = if quiet {
        ProgressBar::hidden()
    } else {
        ProgressBar::new(steps)
    };
    let (_, trace) = trace::open(&options.trace)?;
    for (done, step) in (0..).zip(trace) {
        if options.reopen_at == Some(done) {
            replayer.reopen()?;
        }
        if done == skip {
            replayer.start_measuring();
        }
        if done % (1 << 16) == 0 {
            bar.set_position(done);
        }
        match step? {
            Step::Write(lba) => replayer.write(lba)?,
            Step::Trim(lba) => replayer.trim(lba)?,
        }
    }
    bar.finish_and_clear();
    Ok(replayer.measured())
}

fn print(measured: &Measured) {
    let mut table = show::table(&["", &measured.policy]);
    let mut row = |name: &str, value: String| {
        table.add_row([name, value.as_str()]);
    };
    row(
        "data write amplification",
        format!("{:.3}", measured.data_wa),
    );
    row(
        "metadata write amplification",
        format!("{:.3}", measured.metadata_wa),
    );
    row("user grains", measured.user_grains.to_string());
    row("relocated grains", measured.relocated_grains.to_string());
    row("header grains", measured.metadata_grains.to_string());
    row(
        "overtaken before they were written",
        measured.absorbed_grains.to_string(),
    );
    row("segments collected", measured.victims.to_string());
    row("device writes", measured.write_outs.to_string());
    let erases = (
        measured.erases_min,
        measured.erases_mean,
        measured.erases_max,
    );
    row(
        "erases of a segment: fewest, mean, most",
        format!("{} {:.1} {}", erases.0, erases.1, erases.2),
    );
    for (stream, (segments, live)) in measured.streams.iter().enumerate() {
        if *segments > 0 {
            row(
                &format!("stream {stream}: segments, live grains"),
                format!("{segments} {live}"),
            );
        }
    }
    println!("{table}");
}
