//! A monitoring system.

use std::net::SocketAddr;
use std::time::Duration;

/// How long an answer may take, whoever else is connected.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Status, type and text of a page.
pub fn get(at: SocketAddr, path: &str) -> (u16, String, String) {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .build()
        .new_agent();
    let mut answer = agent.get(format!("http://{at}{path}")).call().unwrap();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let text = answer.body_mut().read_to_string().unwrap();
    (answer.status().as_u16(), kind, text)
}

pub fn scrape(at: SocketAddr) -> String {
    let (status, kind, text) = get(at, "/metrics");
    assert_eq!((status, &kind[..11]), (200, "text/plain;"));
    assert!(text.contains("\nflashnet_build_info{version="), "{text}");
    text
}

/// The number at the end of the only line that begins so.
pub fn sample(text: &str, begin: &str) -> f64 {
    let mut found = text.lines().filter_map(|line| line.strip_prefix(begin));
    let value = found.next().unwrap_or_else(|| panic!("{begin}\n{text}"));
    assert_eq!(found.next(), None, "{begin}");
    value.trim().parse().unwrap()
}
