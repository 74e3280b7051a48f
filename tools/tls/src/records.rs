//! An established TLS connection: bytes in, bytes out, no I/O.

use std::io::{BufRead, ErrorKind, Write};

use rustls::Connection;

use crate::error::TlsError;

/// Turns received records into bytes, and bytes into records. Whoever has it also has the socket.
#[derive(Debug)]
pub struct Records {
    tls: Connection,
    /// Bytes that came along with the end of the handshake.
    early: Vec<u8>,
    /// The peer has announced its end.
    ended: bool,
}

impl Records {
    /// Of a handshake that is done, if the peer has named the same protocol.
    pub(crate) fn new(mut tls: Connection, protocol: &[u8]) -> Result<Self, TlsError> {
        // TLS is content with a peer that names none.
        if tls.alpn_protocol() != Some(protocol) {
            return Err(TlsError::OtherProtocol);
        }
        // What is sealed is taken out at once; who calls bounds how much.
        tls.set_buffer_limit(None);
        let mut records = Self {
            tls,
            early: Vec::new(),
            ended: false,
        };
        let mut early = Vec::new();
        records.process(&mut |bytes| early.extend_from_slice(bytes))?;
        records.early = early;
        Ok(records)
    }

    /// The first bytes of the stream, if they came along with the end of the handshake. Before anything is opened.
    #[must_use]
    pub fn take_early(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.early)
    }

    /// Takes what was received, and hands out what is in it, in pieces. After an error nothing more can be opened, and
    /// [`flush`](Self::flush) has a word for the peer.
    pub fn open(
        &mut self,
        mut received: &[u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        // What comes behind the announced end is not part of the stream.
        while !received.is_empty() && !self.ended {
            match self.tls.read_tls(&mut received) {
                Ok(0) => break,
                Ok(_) => self.process(&mut take)?,
                // It has no room for more than the largest record.
                Err(_) => return Err(TlsError::NotTls),
            }
        }
        Ok(())
    }

    fn process(&mut self, take: &mut impl FnMut(&[u8])) -> Result<(), TlsError> {
        let state = self.tls.process_new_packets();
        // What was good before something was not is good, however the two were received.
        let mut reader = self.tls.reader();
        loop {
            match reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => {
                    let count = bytes.len();
                    take(bytes);
                    reader.consume(count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Err(TlsError::Truncated),
            }
        }
        self.ended |= state?.peer_has_closed();
        Ok(())
    }

    /// Whether the peer has announced the end of what it sends. An end of the socket before that is none of the stream.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Appends the records of `bytes` to `out`, behind what TLS itself has to say. After an error only the latter: there is nobody any
    /// more who could be told anything else.
    pub fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        // The buffer has no limit, so an error is one of what was received.
        let _ = self.tls.writer().write_all(bytes);
        self.flush(out);
    }

    /// Appends what TLS itself has to say, if anything.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() {
            let taken = self.tls.write_tls(out);
            taken.expect("memory takes everything");
        }
    }

    /// Appends the announcement that nothing more will be sent.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.tls.send_close_notify();
        self.flush(out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use rustls::version::TLS13;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::*;
    use crate::{PROTOCOL, provider};

    /// After it has announced its end, an end bears what it can not believe.
    #[test]
    fn nonsense_behind_the_own_end() {
        let (mut client, mut server) = pair(b"");
        let mut sealed = Vec::new();
        client.seal(b"one", &mut sealed);
        let last = sealed.len() - 1;
        sealed[last] ^= 1;
        let mut out = Vec::new();
        server.finish(&mut out);
        assert!(server.open(&sealed, |_| ()).is_err());
        server.seal(b"an answer", &mut out);
    }

    /// Both ends of a connection: client, server. What the client says behind the handshake comes along with its end.
    fn pair(early: &[u8]) -> (Records, Records) {
        let [client, server] =
            ends(early, [PROTOCOL; 2]).map(|end| Records::new(end, PROTOCOL).unwrap());
        (client, server)
    }

    /// The same before anybody looked which protocols they named.
    fn ends(early: &[u8], [of_client, of_server]: [&[u8]; 2]) -> [Connection; 2] {
        let named = |name: &[u8]| match name {
            [] => Vec::new(),
            name => vec![name.to_vec()],
        };
        let made = rcgen::generate_simple_self_signed(["target".to_owned()]).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = named(of_client);
        server.alpn_protocols = named(of_server);
        let name = ServerName::try_from("target").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while server.is_handshaking() {
            let mut said = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut said).unwrap();
            }
            if !client.is_handshaking() {
                client.writer().write_all(early).unwrap();
                client.write_tls(&mut said).unwrap();
            }
            let mut said = &said[..];
            while !said.is_empty() {
                server.read_tls(&mut said).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut said = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut said).unwrap();
            }
            let mut said = &said[..];
            while !said.is_empty() {
                client.read_tls(&mut said).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        [client.into(), server.into()]
    }

    /// Who does not say what it speaks inside of TLS speaks something else: neither end goes on with it.
    #[test]
    fn both_name_the_protocol() {
        for named in [[PROTOCOL, b""], [b"", PROTOCOL], [b"", b""]] {
            for end in ends(b"", named) {
                assert_eq!(
                    Records::new(end, PROTOCOL).unwrap_err(),
                    TlsError::OtherProtocol
                );
            }
        }
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n * 7 % 251) as u8).collect()
    }

    /// A stream is the same however its records are cut, its end is one only where it was announced, and what comes behind that
    /// is none of it.
    #[test]
    fn every_cut_opens_to_the_same() {
        let (mut client, mut server) = pair(b"");
        let mut wanted = Vec::new();
        for cut in 0..400 {
            let bytes = content(cut + 1);
            let mut sealed = Vec::new();
            client.seal(&bytes[..cut / 2], &mut sealed);
            client.seal(&bytes[cut / 2..], &mut sealed);
            let (head, tail) = sealed.split_at(cut.min(sealed.len()));
            let mut found = Vec::new();
            for part in [head, tail] {
                let take = |bytes: &[u8]| found.extend_from_slice(bytes);
                server.open(part, take).unwrap();
            }
            assert!(found == bytes, "cut at {cut}");
            wanted.extend(bytes);
        }
        assert!(!server.has_ended());
        let mut sealed = Vec::new();
        client.finish(&mut sealed);
        sealed.extend_from_slice(b"nonsense behind the end");
        let nothing = |bytes: &[u8]| assert!(bytes.is_empty());
        server.open(&sealed, nothing).unwrap();
        assert!(server.has_ended());
        // The other direction goes on.
        let mut sealed = Vec::new();
        server.seal(&wanted, &mut sealed);
        let mut found = Vec::new();
        let take = |bytes: &[u8]| found.extend_from_slice(bytes);
        client.open(&sealed, take).unwrap();
        assert!(found == wanted && !client.has_ended());
    }

    /// Not a byte that was changed on the way comes out, nor anything behind it, and the peer is told.
    #[test]
    fn every_changed_byte_is_noticed() {
        // But for the second byte of the version, which says nothing (RFC 8446 §5.1).
        for at in (0..60).filter(|&at| at != 2) {
            let (mut client, mut server) = pair(b"");
            let mut sealed = Vec::new();
            client.seal(b"one", &mut sealed);
            let first = sealed.len();
            client.seal(&content(40), &mut sealed);
            let mut found = Vec::new();
            sealed[first + at] ^= 0x10;
            // Behind a length that has grown it waits for the rest.
            sealed.extend([0; 1 << 15]);
            let opened = server.open(&sealed, |bytes| found.extend_from_slice(bytes));
            assert!(opened.is_err(), "byte {at}");
            assert_eq!(found, b"one");
            let mut alert = Vec::new();
            server.seal(b"an answer", &mut alert);
            assert!(client.open(&alert, |_| ()).is_err());
            assert!(server.open(&sealed[..first], |_| ()).is_err());
        }
    }

    /// What came along with the end of the handshake is the beginning of the stream, and much at once is no more than that.
    #[test]
    fn early_and_much() {
        let (mut client, mut server) = pair(b"early");
        assert_eq!(server.take_early(), b"early");
        assert!(server.take_early().is_empty() && client.take_early().is_empty());
        let much = content(1 << 20);
        let mut sealed = Vec::new();
        client.seal(&much, &mut sealed);
        let mut found = Vec::new();
        for part in sealed.chunks(65_536) {
            let take = |bytes: &[u8]| found.extend_from_slice(bytes);
            server.open(part, take).unwrap();
        }
        assert!(found == much);
        let mut nothing = Vec::new();
        client.seal(b"", &mut nothing);
        assert!(nothing.is_empty());
    }
}
