//! How users name a remote path: `HOST[:PORT]/PATH`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::control::PORT;
use crate::error::ClientError;

/// A path on a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePath {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Absolute path in the volume.
    pub path: String,
}

impl RemotePath {
    /// All addresses of the host, at least one.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, ClientError> {
        let unknown = |cause: String| ClientError::UnknownHost {
            host: self.host.clone(),
            cause,
        };
        let addresses: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| unknown(error.to_string()))?
            .collect();
        if addresses.is_empty() {
            return Err(unknown("it has no address".into()));
        }
        Ok(addresses)
    }

    /// Last part of the path.
    pub fn file_name(&self) -> Option<&str> {
        self.path.rsplit('/').find(|part| !part.is_empty())
    }
}

impl FromStr for RemotePath {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        Self::with_port(text, PORT)
    }
}

impl RemotePath {
    /// Reads a path; `port_unsaid` is the port of a target that the text names none of.
    pub fn with_port(text: &str, port_unsaid: u16) -> Result<Self, ClientError> {
        let wrong = || ClientError::Syntax(text.to_owned());
        let (authority, path) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, "/"),
        };
        let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or_else(wrong)?),
            };
            (host, port)
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        if host.is_empty() {
            return Err(wrong());
        }
        let port = port.map_or(Ok(port_unsaid), |port| port.parse().map_err(|_| wrong()))?;
        Ok(Self {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if self.port != PORT {
            write!(f, ":{}", self.port)?;
        }
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood() {
        let parse = |text: &str| text.parse::<RemotePath>().map(|r| (r.host, r.port, r.path));
        let whole = |host: &str, port, path: &str| (host.to_owned(), port, path.to_owned());
        assert_eq!(parse("h/a/b").unwrap(), whole("h", PORT, "/a/b"));
        assert_eq!(parse("h:5/a").unwrap(), whole("h", 5, "/a"));
        assert_eq!(parse("h").unwrap(), whole("h", PORT, "/"));
        assert_eq!(parse("[::1]:5/a").unwrap(), whole("::1", 5, "/a"));
        assert_eq!(parse("[::1]/a").unwrap(), whole("::1", PORT, "/a"));
        let tls = RemotePath::with_port("h/a", 9).unwrap();
        assert_eq!(tls.to_string(), "h:9/a");
        assert_eq!(RemotePath::with_port("h:5/a", 9).unwrap().port, 5);
        for wrong in ["", "/a", "h:x/a", "[::1/a", "h:70000/a", "[::1]5/a", "[]/a"] {
            assert!(matches!(parse(wrong), Err(ClientError::Syntax(_))));
        }
    }
}
