//! Which store: by its URL.

use std::path::Path;

use super::{EtcdOpenError, EtcdStore, EtcdTls, FileStore, FileStoreError, Store};

/// Why there is no store at a URL.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not in the file.
    #[error(transparent)]
    File(#[from] FileStoreError),
    /// Not in etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdOpenError),
    /// It is no such URL.
    #[error(
        "{scheme}: names no kind of store; give file:/path, a path, or etcd://host:port[,host:port...]/prefix (etcds: with TLS)"
    )]
    Scheme {
        /// What it starts with.
        scheme: String,
    },
    /// What is behind the question mark.
    #[error(
        "{option}: no option of a store in etcd; give etcds://host:port/prefix?cacert=FILE&cert=FILE&key=FILE, cert and key together"
    )]
    Option {
        /// What it is.
        option: String,
    },
}

/// Opens the store that a URL names.
///
/// | URL | store |
/// |---|---|
/// | `file:/path`, or only a path | [`FileStore`] |
/// | `etcd://host:port[,host:port...]/prefix`, also with `user:password@` before the hosts | [`EtcdStore`] with keys below `prefix/` |
/// | `etcds://host:port.../prefix?cacert=FILE&cert=FILE&key=FILE` | the same with TLS, see [`EtcdTls`]; each option may be left out, cert and key both |
///
/// A path with a colon before its first slash is written `file:` or `./`, so that nothing misspelt becomes a file.
///
/// # Errors
/// If it names no store, or the store cannot be opened. Whether etcd is there is found out when it is asked.
pub fn open(url: &str) -> Result<Box<dyn Store + Send>, OpenError> {
    if let Some(path) = file_of(url) {
        return Ok(Box::new(FileStore::open(path)?));
    }
    match scheme(url) {
        Some((scheme @ ("etcd" | "etcds"), rest)) => {
            let rest = rest.strip_prefix("//").unwrap_or(rest);
            let (http, options) = match scheme {
                // A password may have any character.
                "etcds" => ("https", rest.rfind('@').unwrap_or(0)),
                _ => ("http", rest.len()),
            };
            let (rest, tls) = match rest[options..].find('?') {
                Some(at) => (&rest[..options + at], tls(&rest[options + at + 1..])?),
                None => (rest, EtcdTls::default()),
            };
            let (endpoints, prefix) = etcd(http, rest);
            Ok(Box::new(EtcdStore::open(&endpoints, &prefix, &tls)?))
        }
        other => Err(OpenError::Scheme {
            scheme: other.map_or(url, |(scheme, _)| scheme).to_owned(),
        }),
    }
}

/// The file that a URL names, if it names one, which need not be there.
pub fn file_of(url: &str) -> Option<&Path> {
    match scheme(url) {
        None => Some(Path::new(url)),
        Some(("file", path)) => Some(Path::new(path.strip_prefix("//").unwrap_or(path))),
        Some(_) => None,
    }
}

/// What is before the first colon and behind it, unless that is part of a path.
fn scheme(url: &str) -> Option<(&str, &str)> {
    url.split_once(':')
        .filter(|(before, _)| !before.contains('/'))
}

/// What is behind the question mark. No path has an ampersand or an at sign.
fn tls(options: &str) -> Result<EtcdTls, OpenError> {
    let wrong = |option: &str| OpenError::Option {
        option: option.to_owned(),
    };
    let (mut cacert, mut cert, mut key) = (None, None, None);
    for option in options.split('&') {
        let (name, path) = option.split_once('=').ok_or_else(|| wrong(option))?;
        let place = match name {
            "cacert" => &mut cacert,
            "cert" => &mut cert,
            "key" => &mut key,
            _ => return Err(wrong(option)),
        };
        *place = Some(path.into());
    }
    let own = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(wrong(options)),
    };
    Ok(EtcdTls { cacert, own })
}

/// Endpoints, and the prefix of keys.
fn etcd(http: &str, rest: &str) -> (Vec<String>, String) {
    // A password may have slashes; a host has none.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let endpoints = (hosts.split(',').filter(|host| !host.is_empty()))
        .map(|host| format!("{http}://{user}{host}"))
        .collect();
    let prefix = path.trim_matches('/');
    let end = if prefix.is_empty() { "" } else { "/" };
    (endpoints, format!("{prefix}{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_etcd_have_hosts_and_a_prefix() {
        for (rest, endpoints, prefix) in [
            ("a:1", &["http://a:1"][..], ""),
            ("a:1/", &["http://a:1"], ""),
            ("a:1/group/7", &["http://a:1"], "group/7/"),
            ("a:1,[::1]:2/g/", &["http://a:1", "http://[::1]:2"], "g/"),
            (
                "me:p/w@a:1,b:2/g",
                &["http://me:p/w@a:1", "http://me:p/w@b:2"],
                "g/",
            ),
            ("", &[], ""),
        ] {
            let (found, at) = etcd("http", rest);
            assert_eq!(found, endpoints, "{rest}");
            assert_eq!(at, prefix, "{rest}");
        }
    }

    #[test]
    fn options_are_files() {
        let found = tls("cacert=/ca&key=k&cert=a=b").unwrap();
        let own = Some(("a=b".into(), "k".into()));
        let cacert = Some("/ca".into());
        assert_eq!(found, EtcdTls { cacert, own });
    }

    #[test]
    fn what_names_no_store_is_refused_with_a_way_out() {
        for url in [
            "http://a:1",
            "ectd://a:1/g",
            "etcd://",
            "etcd://a/g",
            "etcd://,/g",
            "etcds://a:1/g?ca=/f",
            "etcds://a:1/g?cert=/f",
            "etcds://a:1/g?cacert",
        ] {
            let Err(error) = open(url) else {
                panic!("{url}")
            };
            let said = error.to_string();
            assert!(said.contains("give"), "{said}");
        }
    }
}
