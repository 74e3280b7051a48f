//! A listing of the map: what is mapped, and where it lies.

use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::check::Checked;
use crate::map::Location;
use std::collections::BTreeMap;

impl Core {
    /// What the media hold of each grain that is mapped, in the words of the judge. What is only in memory is not there.
    pub(crate) fn listing(&self, cx: Cx<'_>) -> BTreeMap<Lba, Checked> {
        let mapped = self.index.mapped(LbaRange::SPACE);
        let held = mapped.filter_map(|(lba, _)| {
            let checked = match self.location(cx, lba) {
                Location::Nowhere => return None,
                Location::Media(pba) => {
                    let leaf = self.index.leaf(lba).expect("leaf of a mapped grain");
                    let crc = leaf.crc(lba);
                    Checked::Data { pba, crc }
                }
                Location::Zero(_) => Checked::Zero,
            };
            Some((lba, checked))
        });
        held.collect()
    }
}
