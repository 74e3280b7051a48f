//! Pauses between attempts to connect: none at first, then longer and longer, with chance in them so that many clients of a
//! target that has come back do not come all at once.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

/// First pause.
const FIRST: Duration = Duration::from_millis(5);
/// Longest pause.
const LONGEST: Duration = Duration::from_millis(500);

/// The pauses of one loss of connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    /// The next pause.
    pub(crate) fn next(&mut self, rng: &mut SmallRng) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).clamp(FIRST, LONGEST);
        pause.mul_f64(rng.random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// The first attempt is made at once, later ones never far apart.
    #[test]
    fn pauses_grow_to_a_bound() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next(&mut rng)).collect();
        assert_eq!(pauses[0], Duration::ZERO);
        assert!(pauses[1] >= FIRST / 2 && pauses[1] <= FIRST);
        assert!(pauses[19] >= LONGEST / 2);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST));
    }
}
