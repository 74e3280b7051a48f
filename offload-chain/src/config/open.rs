//! Which store: by its URL.

use std::path::Path;

use super::{EtcdOpenError, EtcdStore, FileStore, FileStoreError, Store};

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
        "{scheme}: names no kind of store; give file:/path, a path, or etcd://host:port[,host:port...]/prefix"
    )]
    Scheme {
        /// What it starts with.
        scheme: String,
    },
}

/// Opens the store that a URL names.
///
/// | URL | store |
/// |---|---|
/// | `file:/path`, or only a path | [`FileStore`] |
/// | `etcd://host:port[,host:port...]/prefix`, also with `user:password@` before the hosts | [`EtcdStore`] with keys below `prefix/` |
///
/// A path with a colon before its first slash is written `file:` or `./`, so that nothing misspelt becomes a file.
///
/// # Errors
/// If it names no store, or the store cannot be opened. Whether etcd is there is found out when it is asked.
pub fn open(url: &str) -> Result<Box<dyn Store + Send>, OpenError> {
    let scheme = url
        .split_once(':')
        .filter(|(before, _)| !before.contains('/'));
    match scheme {
        None => Ok(Box::new(FileStore::open(Path::new(url))?)),
        Some(("file", path)) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            Ok(Box::new(FileStore::open(Path::new(path))?))
        }
        Some(("etcd", rest)) => {
            let (endpoints, prefix) = etcd(rest.strip_prefix("//").unwrap_or(rest));
            Ok(Box::new(EtcdStore::open(&endpoints, &prefix)?))
        }
        Some((scheme, _)) => Err(OpenError::Scheme {
            scheme: scheme.to_owned(),
        }),
    }
}

/// Endpoints, and the prefix of keys.
fn etcd(rest: &str) -> (Vec<String>, String) {
    // A password may have slashes; a host has none.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let endpoints = (hosts.split(',').filter(|host| !host.is_empty()))
        .map(|host| format!("http://{user}{host}"))
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
            let (found, at) = etcd(rest);
            assert_eq!(found, endpoints, "{rest}");
            assert_eq!(at, prefix, "{rest}");
        }
    }

    #[test]
    fn what_names_no_store_is_refused_with_a_way_out() {
        for url in [
            "http://a:1",
            "ectd://a:1/g",
            "etcd://",
            "etcd://a/g",
            "etcd://,/g",
        ] {
            let Err(error) = open(url) else {
                panic!("{url}")
            };
            let said = error.to_string();
            assert!(said.contains("give"), "{said}");
        }
    }
}
