//! What is on the volume: headers, tenants and registrations, each with a checksum over itself and its place.
//!
//! `tools/docs/credentials.md` has the crash argument: a grain is written whole or not at all, and no structure crosses one.

use ftl::GRAIN_BYTES;
use softrdma::{ProtectionDomain, Stag};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::token::{TENANT_BYTES_MAX, TenantName};

/// Registrations that are remembered, living and retired.
pub const SLOTS: usize = 16_384;
/// Tenants that are remembered.
pub const TENANTS_MAX: usize = GRAIN_BYTES / size_of::<RawTenant>();
/// Bytes of the file.
pub const FILE_BYTES: u64 = SLOTS_AT + (SLOTS * size_of::<RawRecord>()) as u64;
/// Where the tenants are.
pub const TENANTS_AT: u64 = GRAIN_BYTES as u64;
/// Where the slots are.
const SLOTS_AT: u64 = 2 * GRAIN_BYTES as u64;
/// Slots in a grain.
pub const SLOTS_PER_GRAIN: usize = GRAIN_BYTES / size_of::<RawRecord>();

const MAGIC: [u8; 8] = *b"FNCREDS1";
/// Nobody has counted so far: behind it there is always a next one.
const SEQUENCE_MAX: u64 = u64::MAX / 2;
const LIVES: u8 = 1;
const RETIRED: u8 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawHeader {
    magic: [u8; 8],
    slots: U32,
    crc: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 16);

/// The first grain.
pub fn emit_header() -> Vec<u8> {
    let mut raw = RawHeader {
        magic: MAGIC,
        slots: (SLOTS as u32).into(),
        crc: 0.into(),
    };
    raw.crc = crc(0, &raw.as_bytes()[..12]).into();
    let mut grain = raw.as_bytes().to_vec();
    grain.resize(GRAIN_BYTES, 0);
    grain
}

/// Whether the file begins as it should.
pub fn is_header(grain: &[u8]) -> bool {
    grain.starts_with(&emit_header()[..size_of::<RawHeader>()])
}

/// Where the farewell is, behind the header and in its grain.
pub const FAREWELL_AT: u64 = 64;
/// Bytes of a farewell.
pub const FAREWELL_BYTES: usize = size_of::<RawFarewell>();

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawFarewell {
    session: U64,
    verifier: U64,
    reserved: U32,
    crc: U32,
}
const _: () = assert!(FAREWELL_BYTES == 24);

/// What a target writes that ends in order, when everything it has acknowledged is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Its session of the volume.
    pub session: u64,
    /// Its verifier, for which the next one may speak.
    pub verifier: u64,
}

impl Farewell {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut raw = RawFarewell {
            session: self.session.into(),
            verifier: self.verifier.into(),
            reserved: 0.into(),
            crc: 0.into(),
        };
        raw.crc = crc(FAREWELL_AT as usize, &raw.as_bytes()[..FAREWELL_BYTES - 4]).into();
        raw.as_bytes().to_vec()
    }

    /// The one in the first grain; none if it is damaged, or was never written.
    pub fn parse(grain: &[u8]) -> Option<Self> {
        let bytes = grain.get(FAREWELL_AT as usize..)?.get(..FAREWELL_BYTES)?;
        let raw = RawFarewell::read_from_bytes(bytes).ok()?;
        let whole = crc(FAREWELL_AT as usize, &bytes[..FAREWELL_BYTES - 4]);
        (raw.crc.get() == whole).then(|| Self {
            session: raw.session.get(),
            verifier: raw.verifier.get(),
        })
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawTenant {
    name: [u8; TENANT_BYTES_MAX],
    epoch: U64,
    seen: U64,
    domain: U32,
    name_bytes: u8,
    reserved: [u8; 7],
    crc: U32,
}
const _: () = assert!(size_of::<RawTenant>() == 64);

/// What the volume remembers of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRecord {
    /// Its name.
    pub name: TenantName,
    /// Number of its domain.
    pub domain: ProtectionDomain,
    /// Highest epoch seen.
    pub epoch: u64,
    /// Latest time seen, Unix seconds.
    pub seen: u64,
}

/// The grain of the tenants, at most [`TENANTS_MAX`].
pub fn emit_tenants(tenants: &[TenantRecord]) -> Vec<u8> {
    assert!(tenants.len() <= TENANTS_MAX);
    let mut grain = Vec::with_capacity(GRAIN_BYTES);
    for (n, tenant) in tenants.iter().enumerate() {
        let text = tenant.name.as_str();
        let mut name = [0; TENANT_BYTES_MAX];
        name[..text.len()].copy_from_slice(text.as_bytes());
        let mut raw = RawTenant {
            name,
            epoch: tenant.epoch.into(),
            seen: tenant.seen.into(),
            domain: tenant.domain.0.into(),
            name_bytes: text.len() as u8,
            reserved: [0; 7],
            crc: 0.into(),
        };
        raw.crc = crc(n, &raw.as_bytes()[..60]).into();
        grain.extend_from_slice(raw.as_bytes());
    }
    grain.resize(GRAIN_BYTES, 0);
    grain
}

/// The tenants in a grain; none if one of them is damaged. A fuzz entry.
pub fn parse_tenants(grain: &[u8]) -> Option<Vec<TenantRecord>> {
    let parse = |(n, bytes): (usize, &[u8])| {
        let raw = RawTenant::read_from_bytes(bytes).ok()?;
        if raw.crc.get() != crc(n, &bytes[..60]) || raw.domain.get() == 0 {
            return None;
        }
        let text = std::str::from_utf8(raw.name.get(..usize::from(raw.name_bytes))?).ok()?;
        Some(TenantRecord {
            name: text.parse().ok()?,
            domain: ProtectionDomain(raw.domain.get()),
            epoch: raw.epoch.get(),
            seen: raw.seen.get(),
        })
    };
    let places = grain.chunks_exact(size_of::<RawTenant>()).enumerate();
    let used = places.filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0));
    used.map(parse).collect()
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RawRecord {
    state: u8,
    writable: u8,
    reserved: [u8; 6],
    sequence: U64,
    stag: U32,
    sync_stag: U32,
    inode: U64,
    generation: U64,
    offset: U64,
    length: U64,
    base: U64,
    epoch: U64,
    exports: U64,
    expires: U64,
    domain: U32,
    reserved_too: [u8; 32],
    crc: U32,
}
const _: () = assert!(size_of::<RawRecord>() == 128);
const _: () = assert!(GRAIN_BYTES.is_multiple_of(RECORD_BYTES));

/// Bytes of a record.
pub const RECORD_BYTES: usize = size_of::<RawRecord>();

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// It lives; otherwise it is retired.
    pub lives: bool,
    /// May be written.
    pub writable: bool,
    /// Grows from retirement to retirement.
    pub sequence: u64,
    /// Plain STag.
    pub stag: Stag,
    /// Sync STag.
    pub sync_stag: Stag,
    /// Number of the file.
    pub inode: u64,
    /// Its generation.
    pub generation: u64,
    /// First byte in the file.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Tagged offset of the first byte.
    pub base: u64,
    /// Epoch of the tenant.
    pub epoch: u64,
    /// Digest of what the tenant may use.
    pub exports: u64,
    /// Unix time in seconds.
    pub expires: u64,
    /// Whose it is.
    pub domain: ProtectionDomain,
}

impl Record {
    /// First byte behind it in the file; none if that is no address.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// Where slot `n` is in the file.
    pub fn place(n: usize) -> u64 {
        SLOTS_AT + (n * RECORD_BYTES) as u64
    }

    /// The bytes of slot `n`.
    pub fn emit(&self, n: usize) -> Vec<u8> {
        let mut raw = RawRecord {
            state: if self.lives { LIVES } else { RETIRED },
            writable: u8::from(self.writable),
            reserved: [0; 6],
            sequence: self.sequence.into(),
            stag: self.stag.0.into(),
            sync_stag: self.sync_stag.0.into(),
            inode: self.inode.into(),
            generation: self.generation.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            base: self.base.into(),
            epoch: self.epoch.into(),
            exports: self.exports.into(),
            expires: self.expires.into(),
            domain: self.domain.0.into(),
            reserved_too: [0; 32],
            crc: 0.into(),
        };
        raw.crc = crc(n, &raw.as_bytes()[..RECORD_BYTES - 4]).into();
        raw.as_bytes().to_vec()
    }

    /// What slot `n` holds; none if it is empty or damaged. A fuzz entry.
    pub fn parse(n: usize, bytes: &[u8]) -> Option<Self> {
        let raw = RawRecord::read_from_bytes(bytes).ok()?;
        let whole = raw.crc.get() == crc(n, &bytes[..RECORD_BYTES - 4]);
        let counts = raw.sequence.get() <= SEQUENCE_MAX;
        let known = matches!(raw.state, LIVES | RETIRED) && raw.writable <= 1 && counts;
        (whole && known).then(|| Self {
            lives: raw.state == LIVES,
            writable: raw.writable == 1,
            sequence: raw.sequence.get(),
            stag: Stag(raw.stag.get()),
            sync_stag: Stag(raw.sync_stag.get()),
            inode: raw.inode.get(),
            generation: raw.generation.get(),
            offset: raw.offset.get(),
            length: raw.length.get(),
            base: raw.base.get(),
            epoch: raw.epoch.get(),
            exports: raw.exports.get(),
            expires: raw.expires.get(),
            domain: ProtectionDomain(raw.domain.get()),
        })
    }
}

/// The place is part of it, so that what was written elsewhere shows.
fn crc(place: usize, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&(place as u64).to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            lives: true,
            writable: true,
            sequence: 1,
            stag: Stag(0x100),
            sync_stag: Stag(0x181),
            inode: 5,
            generation: 6,
            offset: 7,
            length: 8,
            base: 9,
            epoch: 10,
            exports: 11,
            expires: 12,
            domain: ProtectionDomain(13),
        }
    }

    /// What is written is read again, only in its own place, and not with any bit changed.
    #[test]
    fn records_in_their_places() {
        let bytes = record().emit(3);
        assert_eq!(Record::parse(3, &bytes), Some(record()));
        assert_eq!(Record::parse(4, &bytes), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::parse(3, &damaged), None, "bit {bit}");
        }
        assert_eq!(Record::parse(3, &[0; RECORD_BYTES]), None);
        // A crafted one leaves no number for those behind it.
        let last = Record {
            sequence: u64::MAX,
            ..record()
        };
        assert_eq!(Record::parse(3, &last.emit(3)), None);
        assert_eq!(Record::place(SLOTS), FILE_BYTES);
    }

    /// A farewell does not hide the header, and counts only as it was written.
    #[test]
    fn a_farewell_behind_the_header() {
        let farewell = Farewell {
            session: 7,
            verifier: 8,
        };
        let mut grain = emit_header();
        assert_eq!(Farewell::parse(&grain), None);
        let at = FAREWELL_AT as usize;
        grain[at..at + FAREWELL_BYTES].copy_from_slice(&farewell.emit());
        assert!(is_header(&grain));
        assert_eq!(Farewell::parse(&grain), Some(farewell));
        for bit in 0..FAREWELL_BYTES * 8 {
            let mut damaged = grain.clone();
            damaged[at + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Farewell::parse(&damaged), None, "bit {bit}");
        }
        assert_eq!(Farewell::parse(&grain[..at]), None);
    }

    #[test]
    fn tenants_in_a_grain() {
        let tenants = ["beta", "alpha"].map(|name| TenantRecord {
            name: name.parse().unwrap(),
            domain: ProtectionDomain(4),
            epoch: 5,
            seen: 6,
        });
        let mut grain = emit_tenants(&tenants);
        assert_eq!(parse_tenants(&grain), Some(tenants.to_vec()));
        grain[70] ^= 1;
        assert_eq!(parse_tenants(&grain), None);
        assert_eq!(parse_tenants(&[0; GRAIN_BYTES]), Some(Vec::new()));
        assert!(is_header(&emit_header()) && !is_header(&[0; GRAIN_BYTES]));
    }
}
