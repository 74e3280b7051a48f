//! Waiting for a target at the beginning, when nothing is under way yet that could go on.
//!
//! Where nobody takes a connection, nobody is waited for: most often the address is wrong, or no target runs. A target that takes
//! it and is silent has been stopped, opens its volume, or is being replaced, and is waited for.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use softrdma::CloseReason;

use crate::backoff::Backoff;
use crate::error::ClientError;

/// Connections that may end without a word. One of a target that ends is followed by none, or by one of the next; more of them are of a
/// program that understands nothing of what it hears.
const MUTE_MAX: u32 = 8;

/// Tries until there is an answer, for `patience` at most. `waits` hears once why it waits.
///
/// # Errors
/// Those of the attempt: at once if nobody is there, or the answer is no.
pub fn until_answered<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, ClientError>,
    waits: impl FnOnce(&ClientError),
) -> Result<T, ClientError> {
    let begun = Instant::now();
    let (mut backoff, mut rng) = (Backoff::default(), SmallRng::from_rng(&mut rand::rng()));
    let (mut waits, mut mute) = (Some(waits), 0);
    loop {
        let error = match attempt() {
            Err(error) if begun.elapsed() < patience => error,
            done => return done,
        };
        mute += u32::from(is_mute(&error));
        let is_silent = matches!(error, ClientError::TimedOut { .. });
        let was_there = waits.is_none() && matches!(error, ClientError::Connect { .. });
        if mute > MUTE_MAX || !(is_silent || was_there || is_mute(&error)) {
            return Err(error);
        }
        if let Some(waits) = waits.take() {
            waits(&error);
        }
        std::thread::sleep(backoff.next(&mut rng));
    }
}

/// Whether a connection has ended, and nobody has said why.
fn is_mute(error: &ClientError) -> bool {
    match error {
        ClientError::Closed { reason, .. } => {
            matches!(reason, CloseReason::Graceful | CloseReason::Lost)
        }
        ClientError::Tls { cause, .. } => cause.passes(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use super::*;

    const AT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn refused() -> ClientError {
        let cause = io::ErrorKind::ConnectionRefused.into();
        ClientError::Connect { address: AT, cause }
    }

    fn closed(reason: CloseReason) -> ClientError {
        let address = AT;
        ClientError::Closed { address, reason }
    }

    fn silent() -> ClientError {
        let seconds = 10;
        ClientError::TimedOut {
            address: AT,
            seconds,
        }
    }

    /// What comes of attempts that fail so, and then succeed: how many there were, and how often it was told.
    fn tried(errors: Vec<ClientError>) -> (bool, usize, usize) {
        let (mut errors, mut attempts, mut told) = (errors.into_iter(), 0, 0);
        let attempt = || {
            attempts += 1;
            errors.next().map_or(Ok(()), Err)
        };
        let done = until_answered(Duration::from_secs(600), attempt, |_| told += 1);
        (done.is_ok(), attempts, told)
    }

    /// Nobody waits a minute for an address that is wrong, or for who says no.
    #[test]
    fn who_is_not_there_or_says_no_is_not_waited_for() {
        assert_eq!(tried(vec![refused()]), (false, 1, 0));
        let other = closed(CloseReason::Setup(softrdma::SetupError::BadKey));
        assert_eq!(tried(vec![other]), (false, 1, 0));
        let rejected = closed(CloseReason::Rejected(vec![]));
        assert_eq!(tried(vec![silent(), rejected]), (false, 2, 1));
        let mute = || closed(CloseReason::Lost);
        let many = std::iter::repeat_with(mute).take(100).collect();
        assert_eq!(tried(many), (false, MUTE_MAX as usize + 1, 1));
    }

    /// A target that was there a moment ago comes back.
    #[test]
    fn who_was_there_is_waited_for() {
        assert_eq!(tried(vec![]), (true, 1, 0));
        assert_eq!(tried(vec![silent(), silent()]), (true, 3, 1));
        let ended = closed(CloseReason::Graceful);
        assert_eq!(tried(vec![ended, refused(), refused()]), (true, 4, 1));
    }

    /// Also that has an end.
    #[test]
    fn nobody_is_waited_for_without_end() {
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            Err::<(), _>(silent())
        };
        until_answered(Duration::ZERO, attempt, |_| panic!("it does not wait")).unwrap_err();
        assert_eq!(attempts, 1);
    }
}
