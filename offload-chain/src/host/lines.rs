//! The connections by which other members speak to this one. Each member has places of its own: who says that it is another, or one
//! that the group does not have, takes no place of its (I16).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::membership::MemberId;

/// Of one member at once: that of a former life may not have ended yet.
const PLACES: usize = 2;
/// And so many more that have been told to end.
const ENDING_MAX: usize = 2;

/// The lines of all members.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    /// Who may speak.
    names: BTreeSet<MemberId>,
    /// The oldest first.
    taken: BTreeMap<MemberId, VecDeque<Place>>,
    next: u64,
}

#[derive(Debug)]
struct Place {
    number: u64,
    stream: TcpStream,
}

/// A place, for as long as somebody hears the connection.
#[derive(Debug)]
pub(super) struct Line {
    lines: Lines,
    from: MemberId,
    number: u64,
}

impl Lines {
    /// Only these may speak from now on.
    pub(super) fn know(&self, names: BTreeSet<MemberId>) {
        let mut places = lock(&self.0);
        if places.names == names {
            return;
        }
        for (_, left) in places
            .taken
            .iter()
            .filter(|(from, _)| !names.contains(from))
        {
            left.iter().for_each(Place::end);
        }
        places.names = names;
    }

    /// A place for somebody who has proven to be of the group, and says that it is this member. When all of that member's are taken the oldest
    /// connection ends.
    ///
    /// # Errors
    /// If the group has no such member, too many of its connections are still ending, or the system says no.
    pub(super) fn take(&self, from: MemberId, stream: &TcpStream) -> io::Result<Line> {
        let mut places = lock(&self.0);
        if !places.names.contains(&from) {
            return Err(io::Error::other("the group has no such member"));
        }
        let number = places.next;
        let own = places.taken.entry(from).or_default();
        if own.len() >= PLACES + ENDING_MAX {
            return Err(io::Error::other("it has too many connections"));
        }
        let stream = stream.try_clone()?;
        own.push_back(Place { number, stream });
        let over = own.len().saturating_sub(PLACES);
        own.iter().take(over).for_each(Place::end);
        places.next += 1;
        let lines = self.clone();
        Ok(Line {
            lines,
            from,
            number,
        })
    }
}

impl Place {
    fn end(&self) {
        // It fails if it has ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut places = lock(&self.lines.0);
        if let Some(own) = places.taken.get_mut(&self.from) {
            own.retain(|place| place.number != self.number);
            if own.is_empty() {
                places.taken.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, far)
    }

    fn has_ended(mut far: &TcpStream) -> bool {
        far.set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        match far.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        }
    }

    /// I16: more connections of one member end its oldest and no other's; who is no member has no place, and who is none any more
    /// loses it.
    #[test]
    fn a_member_has_places_of_its_own() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let [first, second, nobody] = [1, 2, 3].map(MemberId);
        let lines = Lines::default();
        lines.know([first, second].into());
        let (near, other) = connect(&listener);
        let kept = lines.take(second, &near).unwrap();
        assert!(lines.take(nobody, &near).is_err());
        let mut held = Vec::new();
        for _ in 0..PLACES + ENDING_MAX {
            let (near, far) = connect(&listener);
            held.push((lines.take(first, &near).unwrap(), near, far));
        }
        let ended = |(_, _, far): &(Line, TcpStream, TcpStream)| has_ended(far);
        let ended: Vec<bool> = held.iter().map(ended).collect();
        assert_eq!(ended, [true, true, false, false]);
        assert!(!has_ended(&other));
        // Until one that was told to has ended.
        assert!(lines.take(first, &near).is_err());
        held.remove(0);
        lines.take(first, &near).unwrap();
        lines.know([first].into());
        assert!(has_ended(&other));
        drop((kept, held));
        assert!(lock(&lines.0).taken.is_empty());
    }
}
