//! A volume that is driven without waiting, and what is measured on it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use ftl::{
    Device, Event, FileDevice, FormatOptions, Ftl, GRAIN_BYTES, GcPolicy, Get, HeaderDevice,
    Intent, Lba, LbaRange, MemDevice, OpenOptions, PageRef, Port, Stats, StreamUse, Time, Token,
};

const PORT: Port = Port(0);
/// Grains before the first segment.
const FRONT_GRAINS: u64 = 16;
/// Largest logical space, 16 TiB: the addresses of the device stay far from their limits.
const GRAINS_MAX: u64 = 1 << 32;
/// Frames of the pool: enough for all pages that are on their way out.
const FRAMES: usize = 4096;

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Logical space in grains.
    pub grains: u64,
    /// Hidden share, in percent of the logical space.
    pub overprovision_percent: f64,
    /// Grains of a segment.
    pub segment_grains: u64,
    /// How grains are placed and victims chosen.
    pub policy: GcPolicy,
    /// Where: nowhere (headers are kept, data is not), in memory (`mem`), or in an image file that does not exist yet.
    pub media: Option<PathBuf>,
    /// Checkpoints are taken, in an area that comes on top; [`Replayer::reopen`] needs them.
    pub checkpoints: bool,
}

impl ReplayOptions {
    /// Whether there can be such a volume.
    ///
    /// # Errors
    /// Says why not.
    pub fn try_out(&self) -> Result<()> {
        self.check()?;
        self.format(&mut HeaderDevice::new(self.device_bytes()))
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (1..=GRAINS_MAX).contains(&self.grains),
            "{} grains: 1 to {GRAINS_MAX} are possible",
            self.grains
        );
        ensure!(
            (0.0..=1000.0).contains(&self.overprovision_percent),
            "{} % hidden: 0 to 1000 are possible",
            self.overprovision_percent
        );
        ensure!(
            self.segment_grains.is_power_of_two() && (16..=16_384).contains(&self.segment_grains),
            "segments of {} grains: powers of two from 16 to 16384 are possible",
            self.segment_grains
        );
        Ok(())
    }

    fn segments(&self) -> u64 {
        let physical = self.grains as f64 * (1.0 + self.overprovision_percent / 100.0);
        physical as u64 / self.segment_grains
    }

    /// Where the last segment ends.
    fn log_end(&self) -> u64 {
        (FRONT_GRAINS + self.segments() * self.segment_grains) * GRAIN_BYTES as u64
    }

    /// Grains for checkpoints, which come on top.
    fn area_grains(&self) -> u64 {
        match self.checkpoints {
            true => (self.segments() * self.segment_grains / 64).max(64),
            false => 0,
        }
    }

    fn device_bytes(&self) -> u64 {
        self.log_end() + self.area_grains() * GRAIN_BYTES as u64
    }

    fn format(&self, device: &mut dyn Device) -> Result<()> {
        let format = FormatOptions {
            segment_bytes: Some(self.segment_grains * GRAIN_BYTES as u64),
            capacity_grains: Some(self.grains),
            uuid: Some([7; 16]),
            // What checkpoints cost does not depend on placement.
            checkpoint_grains: Some(self.area_grains()),
            ..FormatOptions::default()
        };
        Ftl::format(device, &format).with_context(|| {
            let (segments, grains) = (self.segments(), self.grains);
            format!("{segments} segments do not suffice for {grains} grains")
        })?;
        Ok(())
    }
}

/// What was measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Measured {
    /// Name of the policy.
    pub policy: String,
    /// Data grains written for each write of the trace. Copies that were overtaken count as written.
    pub data_wa: f64,
    /// Header grains for each write of the trace.
    pub metadata_wa: f64,
    /// Writes of the trace.
    pub user_grains: u64,
    /// Grains relocated.
    pub relocated_grains: u64,
    /// Header grains.
    pub metadata_grains: u64,
    /// Writes that a younger copy of the same grain overtook while they were on their way out.
    pub absorbed_grains: u64,
    /// Segments collected.
    pub victims: u64,
    /// Device writes.
    pub write_outs: u64,
    /// Segments of the volume.
    pub segments: u64,
    /// Segments and live grains of each stream at the end.
    pub streams: Vec<(u64, u64)>,
    /// Fewest and most erases of a segment, from the start.
    pub erases_min: u32,
    /// See `erases_min`.
    pub erases_max: u32,
    /// Mean erases of a segment.
    pub erases_mean: f64,
}

/// A volume being replayed to.
pub struct Replayer {
    ftl: Arc<Ftl>,
    device: Box<dyn Device>,
    options: ReplayOptions,
    before: Stats,
    written: u64,
    written_before: u64,
    tokens: u64,
}

impl std::fmt::Debug for Replayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replayer")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Replayer {
    /// Formats the volume and fills it once in order.
    pub fn new(options: ReplayOptions) -> Result<Self> {
        options.check()?;
        let bytes = options.device_bytes();
        let mut device: Box<dyn Device> = match &options.media {
            None => Box::new(HeaderDevice::new(bytes).keeping_all_from(options.log_end())),
            Some(path) if path.as_os_str() == "mem" => Box::new(MemDevice::new(bytes as usize)?),
            Some(path) => {
                let create = ftl::device::Allocation::Sparse;
                let device = FileDevice::create(path, bytes, create);
                Box::new(device.with_context(|| format!("can not make {}", path.display()))?)
            }
        };
        options.format(device.as_mut())?;
        let ftl = open(device.as_mut(), &options)?;
        let mut replayer = Self {
            before: ftl.stats(),
            ftl,
            device,
            options,
            written: 0,
            written_before: 0,
            tokens: 0,
        };
        for lba in 0..replayer.options.grains {
            replayer.write(lba)?;
        }
        Ok(replayer)
    }

    /// Shuts the volume down in order and opens it again, as a restart does; nothing may have been measured yet.
    pub fn reopen(&mut self) -> Result<()> {
        ensure!(self.options.checkpoints, "without checkpoints all is lost");
        self.tokens += 1;
        let token = Token(self.tokens);
        self.ftl.shutdown(PORT, token);
        self.drive()?;
        while let Some(event) = self.ftl.poll_event(PORT) {
            if let Event::Durable { token: of, result } = event
                && of == token
            {
                result?;
                self.ftl = open(self.device.as_mut(), &self.options)?;
                self.start_measuring();
                return Ok(());
            }
        }
        bail!("the engine does not end: {:?}", self.ftl.stats())
    }

    /// Writes a grain.
    pub fn write(&mut self, lba: u64) -> Result<()> {
        self.check(lba)?;
        self.tokens += 1;
        let token = Token(self.tokens);
        let page = match self.ftl.get(PORT, Lba(lba), Intent::Overwrite, token) {
            Get::Ready(page) => page,
            Get::Failed(error) => bail!("write of LBA {lba} failed: {error}"),
            Get::Pending => self.wait_for_page(token)?,
        };
        page.copy_in(0, &lba.to_le_bytes());
        page.set_written();
        drop(page);
        self.written += 1;
        self.drive()
    }

    fn check(&self, lba: u64) -> Result<()> {
        let grains = self.options.grains;
        ensure!(
            lba < grains,
            "the trace names LBA {lba}, beyond a space of {grains} grains"
        );
        Ok(())
    }

    /// Forgets a grain.
    pub fn trim(&mut self, lba: u64) -> Result<()> {
        self.check(lba)?;
        self.tokens += 1;
        self.ftl
            .trim(PORT, LbaRange::new(Lba(lba), 1), Token(self.tokens))?;
        self.drive()?;
        while self.ftl.poll_event(PORT).is_some() {}
        Ok(())
    }

    /// Measuring starts here.
    pub fn start_measuring(&mut self) {
        self.before = self.ftl.stats();
        self.written_before = self.written;
    }

    /// What was done since.
    pub fn measured(&self) -> Measured {
        let now = self.ftl.stats();
        let user = self.written - self.written_before;
        let relocated = now.relocated_grains - self.before.relocated_grains;
        let metadata = now.header_grains - self.before.header_grains;
        let erases = self.ftl.erases();
        let pairs = |s: &StreamUse| (s.segments, s.live);
        Measured {
            policy: self.options.policy.to_string(),
            data_wa: (user + relocated) as f64 / user.max(1) as f64,
            metadata_wa: metadata as f64 / user.max(1) as f64,
            user_grains: user,
            relocated_grains: relocated,
            metadata_grains: metadata,
            absorbed_grains: now.overtaken_grains - self.before.overtaken_grains,
            victims: now.victims - self.before.victims,
            write_outs: now.write_outs - self.before.write_outs,
            segments: erases.len() as u64,
            streams: self.ftl.streams().iter().map(pairs).collect(),
            erases_min: erases.iter().copied().min().unwrap_or(0),
            erases_max: erases.iter().copied().max().unwrap_or(0),
            erases_mean: erases.iter().map(|&e| f64::from(e)).sum::<f64>() / erases.len() as f64,
        }
    }

    /// Carries out what the engine wants, until it wants nothing.
    fn drive(&mut self) -> Result<()> {
        loop {
            let mut progress = false;
            while let Some(action) = self.ftl.poll_action(PORT) {
                self.device.submit(action);
                progress = true;
            }
            while let Some((id, result)) = self.device.poll(progress) {
                result?;
                self.ftl.handle_done(PORT, Time(0), id, Ok(()));
                progress = true;
            }
            if !progress {
                return Ok(());
            }
        }
    }

    fn wait_for_page(&mut self, token: Token) -> Result<PageRef> {
        for _ in 0..1000 {
            self.drive()?;
            if let Some(Event::Page {
                token: answered,
                result,
            }) = self.ftl.poll_event(PORT)
            {
                ensure!(answered == token, "an answer nobody asked for");
                return Ok(result?);
            }
            self.ftl.handle_timeout(PORT, Time(u64::MAX / 2));
        }
        bail!("the engine does not go on: {:?}", self.ftl.stats())
    }
}

fn open(device: &mut dyn Device, options: &ReplayOptions) -> Result<Arc<Ftl>> {
    let open = OpenOptions {
        pool_frames: FRAMES,
        gc_policy: options.policy,
        write_through: true,
        dataless: options.media.is_none(),
        // All of the map at once.
        map_pages_eager: usize::MAX,
        ..OpenOptions::default()
    };
    Ok(Ftl::open(device, open)?.0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ftl::{Action, ActionId, MediaError, MediaOp};

    use super::super::workload::{Generator, Workload};
    use super::*;

    /// Counts the grains of the log that are written to a device.
    struct Counting {
        inner: Box<dyn Device>,
        grains: Arc<AtomicU64>,
    }

    impl Device for Counting {
        fn len_bytes(&self) -> u64 {
            self.inner.len_bytes()
        }

        fn submit(&mut self, action: Action) {
            if let MediaOp::Write { buf, .. } = &action.op {
                let grains = buf.len() / GRAIN_BYTES;
                self.grains.fetch_add(grains as u64, Ordering::Relaxed);
            }
            self.inner.submit(action);
        }

        fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
            self.inner.poll(wait)
        }
    }

    /// The amplifications are those of the device: what it was given, for each write of the trace, is data and headers, and
    /// nothing is counted that was not written, but for what is on its way at either end.
    #[test]
    fn what_is_counted_is_what_the_device_was_given() {
        const GRAINS: u32 = 16_384;
        for policy in GcPolicy::ALL {
            let mut replayer = Replayer::new(ReplayOptions {
                grains: GRAINS.into(),
                overprovision_percent: 20.0,
                segment_grains: 128,
                policy,
                media: None,
                checkpoints: false,
            })
            .unwrap();
            let grains = Arc::new(AtomicU64::new(0));
            let inner = std::mem::replace(&mut replayer.device, Box::new(HeaderDevice::new(0)));
            replayer.device = Box::new(Counting {
                inner,
                grains: Arc::clone(&grains),
            });
            let mut generator = Generator::new(Workload::Zipf { theta: 0.99 }, GRAINS, 3);
            replayer.start_measuring();
            for _ in 0..4 * GRAINS {
                let lba = generator.next_lba();
                replayer.write(lba).unwrap();
                if lba.is_multiple_of(64) {
                    replayer.trim(lba).unwrap();
                }
            }
            let stats = replayer.ftl.stats();
            let measured = replayer.measured();
            let of_device = grains.load(Ordering::Relaxed);
            let user = stats.user_grains - replayer.before.user_grains;
            let counted = user + measured.relocated_grains + measured.metadata_grains;
            assert_eq!(of_device, counted, "{policy}");
            // The trace's own writes: those that the device was given, those overtaken, and some pages under way.
            let whole = (measured.data_wa + measured.metadata_wa) * measured.user_grains as f64;
            let more = whole - (of_device + measured.absorbed_grains) as f64;
            assert!(more.abs() < FRAMES as f64, "{policy}: {more}");
            assert!(measured.relocated_grains > 0, "{policy}");
        }
    }
}
