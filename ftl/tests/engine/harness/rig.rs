//! What a volume lies on in the tests: one simulated device, or an array of them, each with faults and caches of its own.
//!
//! The image of an array is the images of its devices one behind the other, so places in it are those of the volume.

use ftl::device::sim::{
    CrashChoice, CrashImage, CrashPlan, CrashPoint, Fault, SimCounts, SimDevice, SimImage, SimRng,
};
use ftl::{Action, ActionId, ArrayDevice, Device, GRAIN_BYTES, MediaError, Members};
use std::ops::Range;
use std::sync::Arc;

use super::oracle::Violation;

#[derive(Debug)]
enum Kind {
    One(Box<SimDevice>),
    Many(Box<ArrayDevice<SimDevice>>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rig {
    kind: Kind,
    recorder: Option<Recorder>,
}

#[derive(Debug)]
struct Recorder {
    points: Vec<(u64, RigPoint)>,
    submitted: u64,
}

impl Rig {
    /// Blank devices of so many grains each, to be formatted.
    pub(crate) fn blank(sizes: &[u64], seed: u64) -> Self {
        let bytes = |grains: &u64| *grains as usize * GRAIN_BYTES;
        let kind = match sizes {
            [size] => Kind::One(Box::new(SimDevice::new(bytes(size), seed))),
            _ => {
                let mut rng = SimRng::new(seed);
                let device = |size| SimDevice::new(bytes(size), rng.bits());
                let devices = name(sizes.iter().map(device));
                Kind::Many(Box::new(ArrayDevice::blank(devices)))
            }
        };
        Self::of(kind)
    }

    /// The devices that an image was taken of, assembled; `missing` are left out.
    pub(crate) fn assemble(
        image: SimImage,
        sizes: &[u64],
        seed: u64,
        missing: &[usize],
    ) -> Result<Self, Violation> {
        if sizes.len() == 1 {
            return Ok(Self::of(Kind::One(Box::new(SimDevice::from_image(
                image, seed,
            )))));
        }
        let mut rng = SimRng::new(seed);
        let mut at = 0;
        let device = |size: &u64| {
            let part = image.part(at..at + *size as usize);
            at += *size as usize;
            SimDevice::from_image(part, rng.bits())
        };
        let mut devices: Vec<_> = name(sizes.iter().map(device))
            .into_iter()
            .map(Some)
            .collect();
        for &index in missing {
            devices[index] = None;
        }
        let mut devices: Vec<_> = devices.into_iter().flatten().collect();
        // The order on the command line is anybody's guess.
        if rng.one_in(2) {
            devices.reverse();
        }
        let array = ArrayDevice::assemble(devices, !missing.is_empty())
            .map_err(|error| Violation(format!("assembly: {error}")))?;
        Ok(Self::of(Kind::Many(Box::new(array))))
    }

    fn of(kind: Kind) -> Self {
        Self {
            kind,
            recorder: None,
        }
    }

    fn devices(&self) -> Vec<&SimDevice> {
        match &self.kind {
            Kind::One(device) => vec![device],
            Kind::Many(array) => array.devices().flatten().collect(),
        }
    }

    /// One of the devices, which is there.
    pub(crate) fn device(&mut self, index: usize) -> &mut SimDevice {
        match &mut self.kind {
            Kind::One(device) => device,
            Kind::Many(array) => {
                let device = array.devices_mut().nth(index).flatten();
                device.expect("a device that is there")
            }
        }
    }

    /// Adds a fault to the first device.
    pub(crate) fn inject(&mut self, fault: Fault) {
        self.device(0).inject(fault);
    }

    /// Ends all faults.
    pub(crate) fn clear_faults(&mut self) {
        match &mut self.kind {
            Kind::One(device) => device.clear_faults(),
            Kind::Many(array) => array
                .devices_mut()
                .flatten()
                .for_each(SimDevice::clear_faults),
        }
    }

    /// Changes stored bytes of the first device.
    pub(crate) fn rot(&mut self, range: Range<u64>, change: impl Fn(&mut [u8])) {
        self.device(0).rot(range, change);
    }

    /// What reads see.
    pub(crate) fn image(&self) -> SimImage {
        SimImage::concat(
            self.devices()
                .into_iter()
                .map(|device| device.image().clone()),
        )
    }

    /// Operations of all devices.
    pub(crate) fn counts(&self) -> SimCounts {
        let mut sum = SimCounts::default();
        for device in self.devices() {
            let one = device.counts();
            sum.reads += one.reads;
            sum.writes += one.writes;
            sum.flushes += one.flushes;
            sum.discards += one.discards;
            sum.faults += one.faults;
            sum.bytes_written += one.bytes_written;
        }
        sum
    }

    /// Operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.devices().into_iter().map(SimDevice::in_flight).sum()
    }

    /// What a power cut finds now, on every device that is there.
    pub(crate) fn crash_point(&self) -> RigPoint {
        let devices = self.devices().into_iter();
        RigPoint(devices.map(SimDevice::crash_point).collect())
    }

    /// From now on takes a crash point after the submission of every operation that is no read.
    pub(crate) fn record(&mut self) {
        self.recorder = Some(Recorder {
            points: Vec::new(),
            submitted: 0,
        });
    }

    /// Ends [`Rig::record`].
    pub(crate) fn recorded(&mut self) -> Vec<(u64, RigPoint)> {
        self.recorder.take().map_or_else(Vec::new, |r| r.points)
    }
}

fn name(devices: impl Iterator<Item = SimDevice>) -> Vec<(String, SimDevice)> {
    let named = devices.enumerate();
    named
        .map(|(n, device)| (format!("sim{n}"), device))
        .collect()
}

impl Device for Rig {
    fn len_bytes(&self) -> u64 {
        match &self.kind {
            Kind::One(device) => device.len_bytes(),
            Kind::Many(array) => array.len_bytes(),
        }
    }

    fn submit(&mut self, action: Action) {
        let changes = !matches!(action.op, ftl::MediaOp::Read { .. });
        match &mut self.kind {
            Kind::One(device) => device.submit(action),
            Kind::Many(array) => array.submit(action),
        }
        if self.recorder.is_some() && changes {
            let point = self.crash_point();
            if let Some(recorder) = &mut self.recorder {
                recorder.submitted += 1;
                recorder.points.push((recorder.submitted, point));
            }
        }
    }

    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        match &mut self.kind {
            Kind::One(device) => device.poll(wait),
            Kind::Many(array) => array.poll(wait),
        }
    }

    fn members(&self) -> Option<&Arc<Members>> {
        match &self.kind {
            Kind::One(device) => device.members(),
            Kind::Many(array) => array.members(),
        }
    }
}

/// The state of all devices at one moment.
#[derive(Clone, Debug)]
pub(crate) struct RigPoint(Vec<CrashPoint>);

impl RigPoint {
    /// Changes that may be lost.
    pub(crate) fn changes(&self) -> usize {
        self.0.iter().map(CrashPoint::changes).sum()
    }

    /// Images: every device meets a fate of its own.
    pub(crate) fn images(&self, plan: CrashPlan, seed: u64) -> RigImages<'_> {
        let choices: Vec<_> = self.0.iter().map(|p| p.choices_of(plan, seed)).collect();
        let most = choices.iter().map(Vec::len).max().unwrap_or(0);
        RigImages {
            point: self,
            choices,
            range: 0..most,
            rng: SimRng::new(seed),
        }
    }
}

/// Iterator of [`RigPoint::images`].
#[derive(Debug)]
pub(crate) struct RigImages<'a> {
    point: &'a RigPoint,
    choices: Vec<Vec<CrashChoice>>,
    range: Range<usize>,
    rng: SimRng,
}

impl RigImages<'_> {
    /// The choice of each device for image `nth`. The first two are all kept and all lost.
    fn choose(&mut self, nth: usize) -> Vec<CrashChoice> {
        let single = self.choices.len() == 1;
        let mut chosen = Vec::new();
        for choices in &self.choices {
            let index = match single || nth < 2 {
                true => nth.min(choices.len() - 1),
                false => self.rng.below(choices.len() as u64) as usize,
            };
            chosen.push(choices[index].clone());
        }
        chosen
    }
}

impl Iterator for RigImages<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        let nth = self.range.next()?;
        let chosen = self.choose(nth);
        let images = self.point.0.iter().zip(&chosen);
        Some(CrashImage {
            content: SimImage::concat(images.map(|(point, choice)| point.image(choice))),
            choice: CrashChoice(chosen.iter().flat_map(|c| c.0.clone()).collect()),
        })
    }

    fn nth(&mut self, n: usize) -> Option<CrashImage> {
        // What is passed over is not built.
        self.range.start = (self.range.start + n).min(self.range.end);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl ExactSizeIterator for RigImages<'_> {}
