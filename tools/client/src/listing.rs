//! What a target answers to who lists a directory: replies that go on where the one before has ended.

use crate::control::{Entry, Op, Reply, Request};
use crate::error::ClientError;

/// Replies and entries of one listing. A target that comes to more means never to end.
const MOST: u64 = 1 << 24;

/// A listing that is not at its end yet.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    entries: Vec<Entry>,
    cookie: u64,
    replies: u64,
}

impl Listing {
    /// What to ask next.
    pub(crate) fn request(&self, path: &str) -> Request {
        Request {
            offset: self.cookie,
            ..Request::new(Op::List, path)
        }
    }

    /// Takes a reply; at the end there are the entries of all.
    ///
    /// # Errors
    /// If it has no end.
    pub(crate) fn take(&mut self, reply: Reply) -> Result<Option<Vec<Entry>>, ClientError> {
        self.replies += 1;
        self.entries.extend(reply.entries);
        if reply.cookie == 0 {
            return Ok(Some(std::mem::take(&mut self.entries)));
        }
        let (replies, entries) = (self.replies, self.entries.len() as u64);
        // Cookies grow: one that does not leads round in a circle.
        if reply.cookie <= self.cookie || replies + entries > MOST {
            return Err(ClientError::Endless { replies, entries });
        }
        self.cookie = reply.cookie;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(cookie: u64) -> Reply {
        let entry = Entry {
            size: 0,
            mtime_ns: 0,
            mode: 0,
            name: b"x".to_vec(),
        };
        Reply {
            cookie,
            entries: vec![entry],
            ..Reply::default()
        }
    }

    /// A target that goes round in circles, or on for ever, is not followed; others are.
    #[test]
    fn a_listing_has_an_end() {
        let mut listing = Listing::default();
        for cookie in [5, 7] {
            assert!(listing.take(reply(cookie)).unwrap().is_none());
            assert_eq!(listing.request("/").offset, cookie);
        }
        assert_eq!(listing.take(reply(0)).unwrap().unwrap().len(), 3);

        for again in [5, 4] {
            let mut listing = Listing::default();
            assert!(listing.take(reply(5)).unwrap().is_none());
            let circle = listing.take(reply(again)).unwrap_err();
            assert!(matches!(circle, ClientError::Endless { replies: 2, .. }));
        }

        let mut listing = Listing::default();
        let empty = |cookie| Reply {
            cookie,
            ..Reply::default()
        };
        let taken = (1..=MOST + 1).map(|cookie| listing.take(empty(cookie)));
        assert_eq!(taken.filter(Result::is_err).count(), 1);
    }
}
