//! The array: several devices as one. See `docs/array.md`.
//!
//! [`ArrayDevice`] is a [`Device`] over others: for formatting it is made of blank ones, else it is assembled of
//! those that belong together, in whatever order they are named. What is shared with others who carry out operations on the
//! same devices is in [`Members`]; the splitting itself, without devices, is [`Splitter`].

mod assemble;
mod members;
mod splitter;

pub use assemble::AssemblyError;
pub use members::{Member, MemberState, Members};
pub use splitter::{Part, PartId, Splitter};

use super::{Action, ActionId, Device, FileDevice, MediaError, check};
use crate::GRAIN_BYTES;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct ArrayDevice<D> {
    members: Arc<Members>,
    /// In the order of the volume; missing ones are not there.
    devices: Vec<Option<D>>,
    splitter: Splitter,
    refused: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl<D: Device> ArrayDevice<D> {
    /// Devices, each with its name, to be formatted as one volume in this order.
    ///
    /// # Panics
    /// If there is none, or more than [`crate::DEVICES_MAX`].
    pub fn blank(devices: Vec<(String, D)>) -> Self {
        let member = |(name, device): &(String, D)| {
            let grains = device.len_bytes() / GRAIN_BYTES as u64;
            let uuid = *uuid::Uuid::new_v4().as_bytes();
            Member::new(name.clone(), uuid, grains, MemberState::Live)
        };
        let members = Members::new(devices.iter().map(member).collect());
        let devices = devices.into_iter().map(|(_, device)| Some(device));
        Self::new(members, devices.collect())
    }

    fn new(members: Members, devices: Vec<Option<D>>) -> Self {
        let members = Arc::new(members);
        Self {
            splitter: Splitter::new(Arc::clone(&members)),
            members,
            devices,
            refused: VecDeque::new(),
        }
    }

    /// The devices, in the order of the volume; those that are missing are not there.
    pub fn devices(&self) -> impl Iterator<Item = Option<&D>> {
        self.devices.iter().map(Option::as_ref)
    }

    /// The same, to change them.
    pub fn devices_mut(&mut self) -> impl Iterator<Item = Option<&mut D>> {
        self.devices.iter_mut().map(Option::as_mut)
    }

    /// Gives the devices back, with what is known of them.
    pub fn into_parts(self) -> (Arc<Members>, Vec<Option<D>>) {
        (self.members, self.devices)
    }

    /// Hands out what there is to do.
    fn push(&mut self) {
        while let Some(part) = self.splitter.next_part() {
            let id = ActionId(part.id.0);
            let device = self.devices[part.device].as_mut();
            let device = device.expect("missing devices are not in use");
            device.submit(Action { id, op: part.op });
        }
    }

    /// Takes one completion of a device; `wait`ing devices are asked in turn until one has something.
    fn pull(&mut self, wait: bool) -> bool {
        let mut any = false;
        for device in self.devices.iter_mut().flatten() {
            // Who waits for one device lets the others wait too; they go on by themselves meanwhile.
            if let Some((id, result)) = device.poll(wait && !any) {
                any = true;
                self.splitter.part_done(PartId(id.0), result);
            }
        }
        any
    }
}

impl ArrayDevice<FileDevice> {
    /// Looks again how large the device is, if there is only one: those of an array have the size they had when it was
    /// formatted.
    ///
    /// # Errors
    /// When the system does not tell; the size stays what it was.
    pub fn measure_again(&mut self) -> std::io::Result<()> {
        if let [Some(device)] = &mut self.devices[..] {
            device.measure_again()?;
            let grains = device.len_bytes() / GRAIN_BYTES as u64;
            self.members.list()[0].set_grains(grains);
        }
        Ok(())
    }
}

impl<D: Device> Device for ArrayDevice<D> {
    fn len_bytes(&self) -> u64 {
        let grains: u64 = self.members.list().iter().map(Member::grains).sum();
        grains * GRAIN_BYTES as u64
    }

    fn submit(&mut self, action: Action) {
        if let Err(error) = check(&action.op, self.len_bytes()) {
            self.refused.push_back((action.id, Err(error)));
            return;
        }
        self.splitter.split(action);
        self.push();
    }

    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        loop {
            let done = self.refused.pop_front();
            if let Some(done) = done.or_else(|| self.splitter.next_done()) {
                return Some(done);
            }
            if self.splitter.is_idle() {
                return None;
            }
            // First whoever is ready; only then somebody is waited for.
            let any = self.pull(false) || wait && self.pull(true);
            self.push();
            if !any && !wait {
                return self.splitter.next_done();
            }
        }
    }

    fn rest(&mut self) -> bool {
        // The time that passes is that of all.
        let first = self.devices.iter_mut().flatten().next();
        first.is_some_and(Device::rest)
    }

    fn members(&self) -> Option<&Arc<Members>> {
        (self.members.list().len() > 1).then_some(&self.members)
    }
}

#[cfg(test)]
mod tests;
