//! Where etcd is, and who asks it.

use std::fmt;

use ureq::http::uri::Authority;

use super::tls::EtcdTlsError;

/// Why there is no store in etcd. Whether etcd is there is found out when it is asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdOpenError {
    /// It needs one at least.
    #[error("no endpoint of etcd is given; give http://host:port, or https://host:port")]
    NoEndpoint,
    /// It is not of the form.
    #[error(
        "{endpoint} is no endpoint of etcd: {why}; give http://host:port, or https://host:port"
    )]
    Endpoint {
        /// What was given, without what may be a password.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What TLS needs is not there.
    #[error("no TLS to etcd")]
    Tls(#[from] EtcdTlsError),
    /// The system refused.
    #[error("cannot start a thread to ask etcd: {0}")]
    Thread(std::io::Error),
}

/// A member of an etcd cluster.
pub(super) struct Endpoint {
    scheme: &'static str,
    authority: Authority,
    pub(super) user: Option<User>,
}

/// Who asks, if etcd wants to know.
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: String,
}

impl Endpoint {
    pub(super) fn parse(text: &str) -> Result<Self, EtcdOpenError> {
        let shown = match text.rsplit_once('@') {
            Some((_, host)) => format!("...@{host}"),
            None => text.to_owned(),
        };
        let wrong = |why| EtcdOpenError::Endpoint {
            endpoint: shown.clone(),
            why,
        };
        let schemes = ["http://", "https://"].into_iter();
        let mut schemes = schemes.filter_map(|scheme| Some((scheme, text.strip_prefix(scheme)?)));
        let (scheme, rest) = (schemes.next())
            .ok_or_else(|| wrong("it starts neither with http:// nor with https://"))?;
        let (user, place) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((user, place)) => {
                let (name, password) = user
                    .split_once(':')
                    .ok_or_else(|| wrong("before the @ belongs user:password"))?;
                let (name, password) = (name.to_owned(), password.to_owned());
                (Some(User { name, password }), place)
            }
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        let authority: Authority = (place.parse()).map_err(|_| wrong("that is no host:port"))?;
        if authority.host().is_empty() || authority.port_u16().is_none_or(|port| port == 0) {
            return Err(wrong("host or port is missing"));
        }
        Ok(Self {
            scheme,
            authority,
            user,
        })
    }

    pub(super) fn has_tls(&self) -> bool {
        self.scheme == "https://"
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{self}/v3/{path}")
    }
}

/// Without the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scheme, self.authority)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_with_ports() {
        for (text, url) in [
            ("http://a:1", "http://a:1/v3/x"),
            ("http://10.0.0.1:2379/", "http://10.0.0.1:2379/v3/x"),
            ("http://[::1]:2379", "http://[::1]:2379/v3/x"),
            ("http://me:p@ss:word@a:1", "http://a:1/v3/x"),
            ("https://me:p@ss:word@a:1", "https://a:1/v3/x"),
        ] {
            let endpoint = Endpoint::parse(text).unwrap();
            assert_eq!(endpoint.url("x"), url);
            assert!(!format!("{endpoint:?} {endpoint}").contains("ss:word"));
        }
        let endpoint = Endpoint::parse("http://me:p@ss:word@a:1").unwrap();
        let user = endpoint.user.unwrap();
        assert_eq!((&*user.name, &*user.password), ("me", "p@ss:word"));
    }

    #[test]
    fn what_is_none_is_refused_with_a_way_out_and_without_the_password() {
        for text in [
            "",
            "a:1",
            "http://",
            "http://a",
            "http://a:",
            "http://:1",
            "http://a:0",
            "http://a:65536",
            "http://a:1/x",
            "http://a b:1",
            "http://secret@a:1",
            "https://me:secret@a",
            "ftp://me:secret@a:1",
        ] {
            let Err(error) = Endpoint::parse(text) else {
                panic!("{text}")
            };
            let said = error.to_string();
            assert!(said.contains("give http://host:port"), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
    }
}
