//! Entry points for fuzzing: what clients and targets say to each other in messages, and at the door. Plain functions, which
//! a test calls as well as a fuzzer (`tools/client/fuzz`).
//!
//! What is accepted says the same when it is written again, and no token is believed whose MAC nobody has made.

use std::sync::LazyLock;

use crate::control::{MESSAGE_BYTES_MAX, Reply, Request};
use crate::credentials::token::{from_text, to_text};
use crate::credentials::{Denial, Greeting, Key};

/// An entry point.
pub type Entry = fn(&[u8]);

/// All of them, by name.
pub const ENTRIES: [(&str, Entry); 5] = [
    ("greeting", greeting),
    ("token_text", token_text),
    ("denial", denial),
    ("request", request),
    ("reply", reply),
];

/// The private data of a connection request: token, session block, both, or of a stranger.
pub fn greeting(data: &[u8]) {
    static KEY: LazyLock<Key> =
        LazyLock::new(|| Key::derive(b"nobody has made tokens with this").expect("long enough"));
    let Ok(greeting) = Greeting::parse(data) else {
        return;
    };
    if let Some(session) = greeting.session {
        assert!(data.ends_with(&session.emit()));
    }
    if let Some(token) = greeting.token {
        assert!(!token.tenant().as_str().is_empty());
        assert_eq!(token.verify(&KEY), None);
    }
}

/// A token as a file holds it.
pub fn token_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(token) = from_text(text) {
        assert_eq!(from_text(&to_text(&token)), Ok(token));
    }
}

/// The private data of a refusal.
pub fn denial(data: &[u8]) {
    if let Some(denial) = Denial::parse(data) {
        assert_eq!(denial.emit(), data);
    }
}

/// A request of the control protocol.
pub fn request(data: &[u8]) {
    let data = &data[..data.len().min(MESSAGE_BYTES_MAX)];
    if let Ok(request) = Request::parse(data) {
        let again = request.emit();
        assert!(again.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Request::parse(&again), Ok(request));
    }
}

/// A reply of the control protocol.
pub fn reply(data: &[u8]) {
    let data = &data[..data.len().min(MESSAGE_BYTES_MAX)];
    if let Ok(reply) = Reply::parse(data) {
        let again = reply.emit();
        assert!(again.len() <= MESSAGE_BYTES_MAX);
        let same = Reply::parse(&again).expect("it was written here");
        // A text that is no UTF-8, or for no terminal, gets longer when it is read, and then may be cut.
        let expected = Reply {
            message: same.message.clone(),
            ..reply
        };
        assert_eq!(same, expected);
    }
}
