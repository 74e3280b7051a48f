//! The JSON of etcd's gateway: what is said, and what is heard.
//!
//! Keys and values are base64, 64-bit integers strings (numbers are understood, too). What has its default value may be
//! left out, so only what never has it is demanded: the header with its revision, which starts at 1. That is also what
//! tells etcd's answer from somebody else's JSON.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::super::Revision;

/// gRPC's INVALID_ARGUMENT, NOT_FOUND, UNAVAILABLE, UNAUTHENTICATED.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

/// Bytes, written in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Self).map_err(de::Error::custom)
    }
}

/// A 64-bit integer, written as a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Int(pub(super) i64);

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Int;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit integer")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Int, E> {
                text.parse().map(Int).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Int, E> {
                Ok(Int(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Int, E> {
                i64::try_from(number).map(Int).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// One key, or several.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Range {
    key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    range_end: Option<Base64>,
}

impl Range {
    pub(super) fn of(key: Base64) -> Self {
        Self {
            key,
            range_end: None,
        }
    }

    /// All keys with a prefix: from it to the first one that is larger than all of them. `\0` is larger than all, and stands for
    /// the empty key, which etcd does not take.
    pub(super) fn with_prefix(prefix: Base64) -> Self {
        let mut end = prefix.0.clone();
        while end.pop_if(|last| *last == u8::MAX).is_some() {}
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end.push(0),
        }
        let key = if prefix.0.is_empty() {
            Base64(vec![0])
        } else {
            prefix
        };
        Self {
            key,
            range_end: Some(Base64(end)),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Put {
    pub(super) key: Base64,
    pub(super) value: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease: Option<Int>,
}

#[derive(Debug, Serialize)]
pub(super) enum Op {
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Range),
    #[serde(rename = "request_range")]
    Range(Range),
}

#[derive(Debug, Serialize)]
pub(super) struct Compare {
    key: Base64,
    target: &'static str,
    result: &'static str,
    mod_revision: Int,
}

impl Compare {
    /// That the key was last changed by this revision; etcd, too, has 0 for a key that is not there.
    pub(super) fn revision(key: Base64, revision: Revision) -> Self {
        // A revision that no etcd has is none that it finds.
        let mod_revision = Int(i64::try_from(revision.0).unwrap_or(i64::MAX));
        Self {
            key,
            target: "MOD",
            result: "EQUAL",
            mod_revision,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Txn {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Op>,
    pub(super) failure: Vec<Op>,
}

impl Txn {
    pub(super) fn always(op: Op) -> Self {
        Self {
            compare: Vec::new(),
            success: vec![op],
            failure: Vec::new(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct LeaseGrant {
    #[serde(rename = "TTL")]
    pub(super) seconds: Int,
}

#[derive(Debug, Serialize)]
pub(super) struct LeaseName {
    #[serde(rename = "ID")]
    pub(super) id: Int,
}

#[derive(Debug, Serialize)]
pub(super) struct Authenticate<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchCreate {
    create_request: Created,
}

#[derive(Debug, Serialize)]
struct Created {
    #[serde(flatten)]
    range: Range,
    /// Large answers in parts.
    fragment: bool,
}

impl WatchCreate {
    /// From the revision after the one that etcd has when it creates the watch.
    pub(super) fn of(range: Range) -> Self {
        Self {
            create_request: Created {
                range,
                fragment: true,
            },
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    revision: Int,
}

impl Header {
    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.0.unsigned_abs())
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct KeyValue {
    pub(super) key: Base64,
    #[serde(default)]
    pub(super) value: Base64,
    mod_revision: Int,
}

impl KeyValue {
    pub(super) fn revision(&self) -> Revision {
        Revision(self.mod_revision.0.unsigned_abs())
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Ranged {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TxnDone {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    pub(super) responses: Vec<TxnResponse>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TxnResponse {
    #[serde(default, rename = "response_range")]
    pub(super) range: Option<Ranged>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Granted {
    #[serde(rename = "ID")]
    pub(super) id: Int,
}

#[derive(Debug, Deserialize)]
pub(super) struct Revoked {
    #[serde(rename = "header")]
    _header: Header,
}

/// The only answer of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct KeptAlive {
    pub(super) result: Alive,
}

#[derive(Debug, Deserialize)]
pub(super) struct Alive {
    #[serde(rename = "header")]
    _header: Header,
    /// How long it lasts; 0 if there is no such lease.
    #[serde(default, rename = "TTL")]
    pub(super) seconds: Int,
}

#[derive(Debug, Deserialize)]
pub(super) struct Authenticated {
    pub(super) token: String,
}

/// One of a stream of answers.
#[derive(Debug, Deserialize)]
pub(super) struct Watched {
    #[serde(default)]
    pub(super) result: Option<WatchResult>,
    #[serde(default)]
    pub(super) error: Option<Refused>,
}

#[derive(Debug, Deserialize)]
pub(super) struct WatchResult {
    #[serde(default)]
    pub(super) created: bool,
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) cancel_reason: String,
    /// That there are some is all that matters.
    #[serde(default)]
    pub(super) events: Vec<IgnoredAny>,
}

/// What etcd says when it did not carry something out, or does not know.
#[derive(Debug, Deserialize)]
pub(super) struct Refused {
    /// gRPC's.
    #[serde(alias = "grpc_code")]
    code: i32,
    #[serde(default)]
    pub(super) message: String,
}

/// The same, where a stream would answer.
#[derive(Deserialize)]
struct RefusedStream {
    error: Refused,
}

impl Refused {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let refused = serde_json::from_slice(bytes);
        let stream = || serde_json::from_slice(bytes).map(|stream: RefusedStream| stream.error);
        refused.or_else(|_| stream()).ok()
    }

    /// This member can not carry anything out now; another may.
    pub(super) fn is_unavailable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// The member has no leader. Who wants one is told before anything is carried out.
    pub(super) fn has_no_leader(&self) -> bool {
        self.is_unavailable() && self.message == "etcdserver: no leader"
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code == NOT_FOUND
    }

    /// A token that is over, or older than the last change of users (of which the second is called an argument). Neither
    /// was carried out.
    pub(super) fn wants_new_token(&self) -> bool {
        matches!(self.code, UNAUTHENTICATED | INVALID_ARGUMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: &impl Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }

    #[test]
    fn requests_are_what_etcd_documents() {
        let key = || Base64(b"a".to_vec());
        let put = Op::Put(Put {
            key: key(),
            value: Base64(vec![0xff, 0]),
            lease: Some(Int(i64::MAX)),
        });
        let txn = Txn {
            compare: vec![Compare::revision(key(), Revision(7))],
            success: vec![put],
            failure: vec![Op::Range(Range::of(key()))],
        };
        assert_eq!(
            json(&txn),
            concat!(
                r#"{"compare":[{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"7"}],"#,
                r#""success":[{"request_put":{"key":"YQ==","value":"/wA=","lease":"9223372036854775807"}}],"#,
                r#""failure":[{"request_range":{"key":"YQ=="}}]}"#
            )
        );
        let watch = WatchCreate::of(Range::with_prefix(key()));
        assert_eq!(
            json(&watch),
            r#"{"create_request":{"key":"YQ==","range_end":"Yg==","fragment":true}}"#
        );
    }

    #[test]
    fn prefixes_end_where_the_next_one_begins() {
        for (prefix, key, end) in [
            (&b"ab"[..], &b"ab"[..], &b"ac"[..]),
            (b"a\xff\xff", b"a\xff\xff", b"b"),
            (b"\xff", b"\xff", b"\0"),
            (b"", b"\0", b"\0"),
        ] {
            let range = Range::with_prefix(Base64(prefix.to_vec()));
            assert_eq!(range.key.0, key);
            assert_eq!(range.range_end.unwrap().0, end);
        }
    }

    #[test]
    fn refusals_are_understood_wherever_they_stand() {
        for said in [
            r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#,
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#,
            r#"{"error":{"code":14,"message":"etcdserver: no leader","details":[]}}"#,
        ] {
            let refused = Refused::parse(said.as_bytes()).unwrap();
            assert!(refused.has_no_leader(), "{refused:?}");
        }
        assert!(Refused::parse(b"{}").is_none() && Refused::parse(b"").is_none());
    }

    #[test]
    fn answers_without_a_header_are_nobodys() {
        serde_json::from_str::<Ranged>("{}").unwrap_err();
        serde_json::from_str::<TxnDone>(r#"{"succeeded":true}"#).unwrap_err();
        serde_json::from_str::<Revoked>(r#"{"header":{}}"#).unwrap_err();
        let found: Ranged = serde_json::from_str(
            r#"{"header":{"revision":3,"raft_term":"2"},"kvs":[{"key":"YQ==","mod_revision":"2"}],"count":"1"}"#,
        )
        .unwrap();
        assert_eq!(found.header.revision(), Revision(3));
        assert_eq!(found.kvs[0].value.0, b"");
    }
}
