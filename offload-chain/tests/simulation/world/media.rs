//! Media that fail: a page that cannot be read, a FLUSH that is not made; once, or until media are replaced or well again.
//!
//! What a process has been told of a failure it does not forget (`device.rs`), so it has to start again, as somebody who is called
//! would make it do; before that its media may be well again. A member that sealed on failed media may not take part in that epoch.

use super::super::device::{MediaBug, Trouble};
use super::{Planted, What, World};

impl World {
    pub(super) fn media_fault(&mut self, member: usize) {
        let host = &self.members[member];
        let pages = (host.memory.with(|mem| mem.bytes().len())).div_ceil(softrdma::PAGE_BYTES);
        let trouble = match self.rng.below(2) {
            0 => Trouble::Flush,
            _ => Trouble::Read(self.rng.below(pages as u64)),
        };
        let believed = self.believes_flushes();
        let trouble = if believed { Trouble::Flush } else { trouble };
        let lasts = self.rng.permille(400) && !believed;
        self.note(&format!(
            "media of member {member}: {trouble:?}, lasts: {lasts}"
        ));
        for at in 0..self.members.len() {
            if at == member || believed {
                self.members[at].memory.trouble(trouble, lasts);
            }
        }
        let length = self.rng.range(20_000, 800_000);
        self.after(length, What::Mended(member));
    }

    /// Then other troubles only hide what that does, and it shows when nobody has it any more.
    fn believes_flushes(&self) -> bool {
        self.planted == Some(Planted::Media(MediaBug::FlushBelieved))
    }

    /// They are, or others have taken their place; the process starts again, if it has to, or just to be sure.
    pub(super) fn mended(&mut self, member: usize) {
        let memory = &self.members[member].memory;
        memory.mend();
        if self.believes_flushes() {
            return (0..self.members.len()).for_each(|member| self.kill(member));
        }
        let replaced = self.now < self.faults_until && self.rng.permille(300);
        let sure = self.now < self.faults_until && self.rng.permille(500);
        if memory.has_failed() || replaced || sure {
            self.note(&format!("media of member {member} are well again"));
            self.kill(member);
        }
        if replaced && !self.members[member].up {
            self.wipe(member);
        }
    }

    /// The engine of a member of the model meets its media.
    pub(super) fn broken_by_media(&mut self, member: usize) {
        let Some((epoch, _)) = self.members[member].open.take() else {
            return;
        };
        self.note(&format!(
            "member {member} in {epoch}: its media have failed"
        ));
        self.members[member].pending.clear();
        for (lane, hop) in self.links_into(member) {
            self.lose(lane, hop);
        }
        let node = super::Node::Member(member);
        let mut port = self.port(node);
        self.members[member].agent.doubt(&mut port, epoch, None);
        self.return_port(node, port);
    }
}
