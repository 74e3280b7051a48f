//! The shape of the group of an epoch, as members and clients make it out of a configuration, alike.

use softrdma::Config;

use crate::group::GroupShape;
use crate::log::LayoutError;
use crate::membership::Configuration;

/// Clients at once: one for each slot that locks can name.
const LANES: u16 = crate::lock::SLOTS_MAX as u16;

/// The group of this epoch.
///
/// # Errors
/// If the configuration is of memory that can not be.
pub(crate) fn shape_of(config: &Configuration) -> Result<GroupShape, LayoutError> {
    let birth = &config.birth;
    let size = birth.layout()?.size();
    Ok(GroupShape {
        topology: birth.topology,
        persistent: birth.durable,
        lanes: LANES,
        ..GroupShape::new(birth.token, config.epoch.0, config.chain.len(), size)
    })
}

/// Settings of links between members and clients. By TLS each record is authenticated already.
pub(crate) fn link_config(by_tls: bool) -> Config {
    Config {
        private_profile: true,
        crc: !by_tls,
        ..Config::default()
    }
}
