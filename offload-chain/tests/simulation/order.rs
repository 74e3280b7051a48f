//! Is what was read of a log what was appended to it? For logs whose records stay until they are truncated (I1, I13).
//!
//! Who has the log's lock sees all there is and nothing that is under way: such a reading is *exact*, and with every acknowledged
//! record it says for good which record has which number. No two may say different things of a number, or give two numbers to
//! one record, and what was seen to be truncated does not return. Any reading has everything that was acknowledged before it began and that was not truncated, in order and without gaps; and
//! nothing that was truncated before.

use std::collections::BTreeMap;
use std::time::Duration;

/// A record that was to be appended.
#[derive(Clone, Debug)]
pub struct Append {
    /// What it says. No two records say the same.
    pub value: u64,
    pub begin: Duration,
    /// The numbers it was posted under, one after the other.
    pub posted: Vec<u64>,
    /// When it was acknowledged, and under which number.
    pub end: Option<(Duration, u64)>,
}

/// Records before this number were to be given up.
#[derive(Clone, Copy, Debug)]
pub struct Truncation {
    pub before: u64,
    pub begin: Duration,
    pub end: Option<Duration>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Reading {
    pub begin: Duration,
    pub end: Duration,
    pub exact: bool,
    /// Number of the first record.
    pub first: u64,
    pub values: Vec<u64>,
}

/// What a client, or all of them, did with a log.
#[derive(Clone, Debug, Default)]
pub struct Account {
    pub appends: Vec<Append>,
    pub truncations: Vec<Truncation>,
    pub readings: Vec<Reading>,
}

impl Reading {
    fn records(&self) -> impl Iterator<Item = (u64, u64)> {
        (self.first..).zip(self.values.iter().copied())
    }
}

impl Account {
    /// Adds what another one did.
    pub fn take(&mut self, other: Self) {
        self.appends.extend(other.appends);
        self.truncations.extend(other.truncations);
        self.readings.extend(other.readings);
    }

    /// What is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), String> {
        self.for_good()?;
        for reading in &self.readings {
            self.is_complete(reading)
                .and_then(|()| self.has_nothing_else(reading))
                .map_err(|wrong| format!("{wrong}\n  in {reading:?}"))?;
        }
        Ok(())
    }

    /// One record to a number, one number to a record.
    fn for_good(&self) -> Result<(), String> {
        let acknowledged = self.appends.iter();
        let acknowledged = acknowledged.filter_map(|one| Some((one.end?.1, one.value)));
        let exact = self.readings.iter().filter(|reading| reading.exact);
        let mut values = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for (number, value) in acknowledged.chain(exact.flat_map(Reading::records)) {
            let other = *values.entry(number).or_insert(value);
            if other != value {
                return Err(format!("record {number} is {other:x}, and is {value:x}"));
            }
            let other = *numbers.entry(value).or_insert(number);
            if other != number {
                return Err(format!("{value:x} is there twice: as {other} and {number}"));
            }
        }
        Ok(())
    }

    /// Nothing is missing that was acknowledged and not truncated.
    fn is_complete(&self, reading: &Reading) -> Result<(), String> {
        let begun = self
            .truncations
            .iter()
            .filter(|one| one.begin <= reading.end);
        let asked = begun.map(|one| one.before).max().unwrap_or(1);
        if reading.first > asked {
            return Err(format!(
                "truncated to {asked}, but gone to {}",
                reading.first
            ));
        }
        let found: BTreeMap<u64, u64> = reading.records().collect();
        for one in &self.appends {
            let Some((at, number)) = one.end else {
                continue;
            };
            let due = at < reading.begin && number >= reading.first;
            if due && found.get(&number) != Some(&one.value) {
                return Err(format!("record {number} is lost: {one:?}"));
            }
        }
        Ok(())
    }

    /// Nothing is there that was truncated or not appended.
    fn has_nothing_else(&self, reading: &Reading) -> Result<(), String> {
        let over = |one: &&Truncation| one.end.is_some_and(|end| end < reading.begin);
        let told = self.truncations.iter().filter(over).map(|one| one.before);
        let earlier = |one: &&Reading| one.exact && one.end < reading.begin;
        let seen = self.readings.iter().filter(earlier).map(|one| one.first);
        let gone = told.chain(seen).max().unwrap_or(1);
        if reading.first < gone {
            let first = reading.first;
            return Err(format!("begins at {first}, was truncated to {gone}"));
        }
        for (number, value) in reading.records() {
            let known = self.appends.iter().any(|one| {
                one.value == value && one.begin <= reading.end && one.posted.contains(&number)
            });
            if !known {
                return Err(format!("{value:x} was never appended as {number}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn append(value: u64, number: u64, begin: u64, end: Option<u64>) -> Append {
        Append {
            value,
            begin: at(begin),
            posted: vec![number],
            end: end.map(|end| (at(end), number)),
        }
    }

    fn reading(exact: bool, begin: u64, first: u64, values: &[u64]) -> Reading {
        Reading {
            begin: at(begin),
            end: at(begin + 1),
            exact,
            first,
            values: values.to_vec(),
        }
    }

    /// Three records, the third unknown; truncated to the second.
    fn account(readings: Vec<Reading>) -> Account {
        Account {
            appends: vec![
                append(10, 1, 0, Some(2)),
                append(20, 2, 3, Some(5)),
                append(30, 3, 6, None),
            ],
            truncations: vec![Truncation {
                before: 2,
                begin: at(20),
                end: Some(at(25)),
            }],
            readings,
        }
    }

    #[test]
    fn logs_that_are_and_are_not() {
        let good = [
            reading(false, 1, 1, &[]),
            reading(false, 1, 1, &[10]),
            reading(false, 10, 1, &[10, 20]),
            reading(true, 10, 1, &[10, 20, 30]),
            reading(false, 21, 1, &[10, 20]),
            reading(false, 21, 2, &[20]),
            reading(true, 30, 2, &[20, 30]),
        ];
        for one in good {
            assert_eq!(account(vec![one]).check(), Ok(()));
        }
        let bad = [
            // Lost, out of order, twice, out of nothing; truncated too early, not at all.
            reading(false, 10, 1, &[10]),
            reading(false, 10, 1, &[20, 10]),
            reading(false, 10, 1, &[10, 20, 10]),
            reading(false, 10, 1, &[10, 20, 40]),
            reading(false, 10, 2, &[20]),
            reading(false, 30, 1, &[10, 20]),
        ];

        for one in bad {
            assert!(account(vec![one.clone()]).check().is_err(), "{one:?}");
        }
    }

    /// What was seen under the lock is so for good.
    #[test]
    fn exact_readings_agree() {
        let seen = reading(true, 21, 2, &[20]);
        let again = reading(false, 23, 1, &[10, 20]);
        assert_eq!(account(vec![again.clone()]).check(), Ok(()));
        assert!(account(vec![seen, again]).check().is_err());
        let mut twice = account(vec![
            reading(true, 10, 1, &[10, 20, 30]),
            reading(true, 30, 2, &[20, 30, 50]),
        ]);
        twice.appends.push(append(50, 4, 11, None));
        assert_eq!(twice.check(), Ok(()));
        twice.appends[2].posted.push(4);
        twice.readings[1].values[2] = 30;
        twice.readings[1].values[1] = 30;
        assert!(twice.check().is_err());
        twice.readings[1].values = vec![20, 50];
        twice.appends[3].posted.push(3);
        let said = twice.check().unwrap_err();
        assert!(said.contains("record 3"), "{said}");
    }
}
