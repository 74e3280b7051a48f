//! `inspect`: what is on the media of a volume that is not in use, as it lies there.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ftl::format::{Header, RecordKind, Stream};
use ftl::inspect::Inspector;
use ftl::{Checked, Device, GRAIN_BYTES, Members, Pba, SegmentId};
use serde_json::{Value, json};

use super::show;
use crate::cli::device::Inspect;
use crate::devices::{self, Access};

/// Runs the command.
pub(super) fn run(options: &Inspect, json: bool) -> Result<()> {
    let paths = &options.devices;
    let mut device = devices::open(paths, Access::Read)?;
    let members = device.members().cloned();
    let view = if let Some(range) = options.map {
        map(&mut device, range.0)
    } else {
        let mut inspector = Inspector::new(&mut device)
            .with_context(|| format!("cannot inspect {}", devices::names(paths)))?;
        match options.segment {
            Some(segment) => headers(&mut inspector, segment),
            None if options.segments => {
                drop(inspector);
                segments(&mut device)
            }
            None => Ok(overview(&mut inspector, paths, members.as_deref())),
        }
    }?;
    match json {
        true => println!("{}", view.json),
        false => println!("{}", view.text),
    }
    Ok(())
}

/// The same things twice.
struct View {
    text: String,
    json: Value,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn overview(inspector: &mut Inspector<'_>, paths: &[PathBuf], members: Option<&Members>) -> View {
    let copies = inspector.superblocks().into_iter().map(|copy| match copy {
        Ok(superblock) => format!("generation {}", superblock.generation),
        Err(flaw) => format!("damaged ({flaw:?})"),
    });
    let copies: Vec<String> = copies.collect();
    let checkpoints = inspector.checkpoints();
    let superblock = inspector.superblock();
    let geometry = superblock.geometry;
    let grain = GRAIN_BYTES as u64;
    let mut table = show::table(&["", &devices::names(paths)]);
    let mut row = |name: &str, value: String| {
        table.add_row([name.to_owned(), value]);
    };
    row("UUID", hex(&superblock.uuid));
    if superblock.created_ns > 0 {
        let at = UNIX_EPOCH + Duration::from_nanos(superblock.created_ns);
        row(
            "formatted",
            humantime::format_rfc3339_seconds(at).to_string(),
        );
    }
    row("superblock copies", copies.join(", "));
    row("session", superblock.session.to_string());
    let state = if superblock.clean {
        "shut down"
    } else {
        "not shut down"
    };
    row("state", state.to_owned());
    let members = members.map_or(&[][..], |members| members.list());
    match members {
        [] => row("device", show::bytes(geometry.device_grains * grain)),
        _ => row("devices", show::bytes(geometry.device_grains * grain)),
    }
    for (index, member) in members.iter().enumerate() {
        let segments = geometry.places.segments(index);
        row(
            &format!("device {index}"),
            format!(
                "{}, {}, from grain {}, segments {} to {}, UUID {}",
                member.name(),
                show::bytes(member.grains() * grain),
                geometry.places.start(index).0,
                segments.start,
                segments.end - 1,
                uuid::Uuid::from_bytes(member.uuid()),
            ),
        );
    }
    row(
        "capacity for users",
        show::bytes(geometry.capacity_grains * grain),
    );
    row(
        "segments",
        format!(
            "{} of {}",
            geometry.segment_count,
            show::bytes(u64::from(geometry.segment_grains) * grain)
        ),
    );
    row(
        "area of checkpoints",
        show::bytes(geometry.area_grains * grain),
    );
    for checkpoint in &checkpoints {
        row(
            &format!("checkpoint {}", checkpoint.number),
            format!(
                "session {}, {} grains mapped, {} in {} parts, log from header {}{}",
                checkpoint.session,
                checkpoint.mapped,
                show::bytes(checkpoint.bytes),
                checkpoint.alive,
                checkpoint.replay_from.0 + 1,
                if checkpoint.is_dump {
                    ", by a shutdown"
                } else {
                    ""
                },
            ),
        );
    }
    let listed = members.iter().enumerate().map(|(index, member)| {
        let segments = geometry.places.segments(index);
        json!({
            "path": member.name(),
            "uuid": uuid::Uuid::from_bytes(member.uuid()).to_string(),
            "grains": member.grains(),
            "first_grain": geometry.places.start(index).0,
            "first_segment": segments.start,
            "segments": segments.len(),
        })
    });
    let json = json!({
        "device": devices::names_json(paths),
        "devices": listed.collect::<Vec<_>>(),
        "uuid": hex(&superblock.uuid),
        "superblock_copies": copies,
        "generation": superblock.generation,
        "session": superblock.session,
        "clean": superblock.clean,
        "created_ns": superblock.created_ns,
        "device_grains": geometry.device_grains,
        "capacity_grains": geometry.capacity_grains,
        "segment_grains": geometry.segment_grains,
        "segment_count": geometry.segment_count,
        "area_grains": geometry.area_grains,
        "checkpoints": checkpoints.iter().map(|c| json!({
            "number": c.number,
            "session": c.session,
            "replay_from": c.replay_from.0,
            "last": c.last.0,
            "mapped": c.mapped,
            "dump": c.is_dump,
            "parts": c.alive,
            "bytes": c.bytes,
        })).collect::<Vec<_>>(),
    });
    View {
        text: table.to_string(),
        json,
    }
}

fn carries(stream: Stream) -> &'static str {
    match stream {
        Stream::User => "user",
        Stream::Relocated => "relocated",
    }
}

/// How long ago a header was made, by the clocks of then and now.
fn age(time_ns: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
        .saturating_sub(Duration::from_nanos(time_ns))
}

fn segments(device: &mut dyn Device) -> Result<View> {
    let live = ftl::check(device)?.live;
    let mut inspector = Inspector::new(device)?;
    let mut table = show::table(&[
        "segment", "carries", "stream", "session", "headers", "used", "live", "first", "age",
    ]);
    let mut list = Vec::new();
    for (number, live) in (0..).zip(&live) {
        let chain = inspector.headers(SegmentId(number));
        let used: u32 = chain.iter().map(|(_, header)| header.grains()).sum();
        let Some((_, first)) = chain.first() else {
            table.add_row([number.to_string(), "never used".to_owned()]);
            list.push(json!({ "segment": number, "headers": 0, "used": 0, "live": live }));
            continue;
        };
        let age = age(first.time_ns);
        table.add_row([
            number.to_string(),
            carries(first.stream).to_owned(),
            first.placement.map_or("-".to_owned(), |n| n.to_string()),
            first.session.to_string(),
            chain.len().to_string(),
            used.to_string(),
            live.to_string(),
            first.no.0.to_string(),
            show::time(age),
        ]);
        list.push(json!({
            "segment": number,
            "carries": carries(first.stream),
            "stream": first.placement,
            "session": first.session,
            "headers": chain.len(),
            "used": used,
            "live": live,
            "first_header": first.no.0,
            "age_seconds": age.as_secs_f64(),
        }));
    }
    Ok(View {
        text: table.to_string(),
        json: json!({ "segments": list }),
    })
}

fn headers(inspector: &mut Inspector<'_>, segment: u32) -> Result<View> {
    let count = inspector.superblock().geometry.segment_count;
    ensure!(
        segment < count,
        "segment {segment}: there are segments 0 to {}",
        count - 1
    );
    let mut table = show::table(&[
        "at", "header", "durable", "carries", "record", "LBA", "says",
    ]);
    let mut list = Vec::new();
    for (at, header) in inspector.headers(SegmentId(segment)) {
        table.add_row([
            at.0.to_string(),
            header.no.0.to_string(),
            header.durable.0.to_string(),
            carries(header.stream).to_owned(),
            if header.atomic { "batch" } else { "" }.to_owned(),
        ]);
        for (index, record) in header.records.iter().enumerate() {
            let mut cells = vec![String::new(); 4];
            cells.extend([
                index.to_string(),
                record.lba.0.to_string(),
                says(record.kind),
            ]);
            table.add_row(cells);
        }
        list.push(header_json(at, &header));
    }
    Ok(View {
        text: table.to_string(),
        json: json!({ "segment": segment, "headers": list }),
    })
}

fn says(kind: RecordKind) -> String {
    match kind {
        RecordKind::Data { crc } => format!("data, CRC-32 {crc:08x}"),
        RecordKind::Trim { count } => format!("{count} trimmed"),
        RecordKind::Zero { count } => format!("{count} reserved"),
        RecordKind::Remap { to, count } => format!("{count} remapped to {}", to.0),
        RecordKind::Clone { to, count } => format!("{count} cloned to {}", to.0),
        RecordKind::Alias { grain, .. } => format!("data of grain {grain}, too"),
    }
}

fn header_json(at: Pba, header: &Header) -> Value {
    let records = header.records.iter().map(|record| {
        json!({
            "lba": record.lba.0,
            "version": format!("{:?}", record.version),
            "says": says(record.kind),
        })
    });
    json!({
        "place": at.0,
        "no": header.no.0,
        "epoch": header.epoch.0,
        "session": header.session,
        "durable": header.durable.0,
        "time_ns": header.time_ns,
        "carries": carries(header.stream),
        "stream": header.placement,
        "batch": header.atomic,
        "records": records.collect::<Vec<_>>(),
    })
}

fn map(device: &mut dyn Device, range: ftl::LbaRange) -> Result<View> {
    let report = ftl::check(device)?;
    let geometry = Inspector::new(device)?.superblock().geometry;
    let mut table = show::table(&["LBA", "holds", "grain", "segment", "CRC-32"]);
    let mut list = Vec::new();
    for (lba, checked) in report.map.range(range.start..range.end()) {
        match *checked {
            Checked::Zero => {
                table.add_row([lba.0.to_string(), "zeros".to_owned()]);
                list.push(json!({ "lba": lba.0, "holds": "zeros" }));
            }
            Checked::Data { pba, crc } => {
                let segment = geometry.locate(pba).map(|(segment, _)| segment.0);
                let damaged = report.damaged.binary_search(lba).is_ok();
                let holds = if damaged { "damaged" } else { "data" };
                table.add_row([
                    lba.0.to_string(),
                    holds.to_owned(),
                    pba.0.to_string(),
                    segment.map_or("-".to_owned(), |s| s.to_string()),
                    format!("{crc:08x}"),
                ]);
                list.push(json!({
                    "lba": lba.0,
                    "holds": holds,
                    "place": pba.0,
                    "segment": segment,
                    "crc32": format!("{crc:08x}"),
                }));
            }
        }
    }
    Ok(View {
        text: table.to_string(),
        json: json!({ "map": list }),
    })
}
