//! The catalogue: the recipes of "Correct, Fast Remote Persistence" (Kashyap, Qin, Byan, Marathe, Nalli), and the two
//! tables that say which of them a scenario takes on RDMA hardware.
//!
//! Nothing here is believed: [`Prover`](super::Prover) runs every recipe in every scenario. Departures from the printed
//! tables, which follow the text of the paper, are named in the crate's `docs/persistence.md`.

use RecipeId::{
    C1, C2, C3, C4, C4Wait, C5, C6, C7, C8, C9, C10, C11, C12, S1, S2, S3, S4, S5, S6, S7, S8, S9,
    S10,
};
use RequesterStep::{AtomicWrite, ReceiveAck, Send, Wait};
use ResponderStep::{Ack, Copy, Flush, Receive, Release};

use super::recipe::{
    Barrier, Item, Payload, Recipe, RecipeId, Recovery, RequesterStep, ResponderStep, Tag,
};
use super::scenario::{Config, Ddio, Domain, Primary, ReceiveQueue, Scenario};
use Item::{A, B};
use Recovery::{Nothing, Replay};

const WRITE_A: RequesterStep = RequesterStep::Write(A, Tag::Plain);
const WRITE_B: RequesterStep = RequesterStep::Write(B, Tag::Plain);
const IMM_A: RequesterStep = RequesterStep::WriteImm(A, Tag::Plain);
const IMM_B: RequesterStep = RequesterStep::WriteImm(B, Tag::Plain);
const FLUSH: RequesterStep = RequesterStep::Barrier(Barrier::Flush);
const SEND_AT_A: RequesterStep = Send(Payload::AddressOf(A));
const SEND_AT_B: RequesterStep = Send(Payload::AddressOf(B));
const SEND_A: RequesterStep = Send(Payload::A);
const SEND_AB: RequesterStep = Send(Payload::Both);

/// What a responder does with a message that it may take its time with.
const APPLY_A: &[ResponderStep] = &[Receive, Copy(A), Flush(A), Release];
const APPLY_AB: &[ResponderStep] = &[Receive, Copy(A), Flush(A), Copy(B), Flush(B), Release];

type Row = (
    RecipeId,
    &'static [RequesterStep],
    &'static [ResponderStep],
    Recovery,
);

#[rustfmt::skip]
const RECIPES: [Row; 23] = [
    (S1, &[WRITE_A, SEND_AT_A, ReceiveAck], &[Receive, Flush(A), Ack], Nothing),
    (S2, &[IMM_A, ReceiveAck], &[Receive, Flush(A), Ack], Nothing),
    (S3, &[SEND_A, ReceiveAck], &[Receive, Copy(A), Flush(A), Ack], Nothing),
    (S4, &[WRITE_A, FLUSH, Wait], &[], Nothing),
    (S5, &[IMM_A, FLUSH, Wait], &[], Nothing),
    (S6, &[SEND_A, FLUSH, Wait], APPLY_A, Replay),
    (S7, &[SEND_A, ReceiveAck], &[Receive, Copy(A), Ack], Nothing),
    (S8, &[WRITE_A, Wait], &[], Nothing),
    (S9, &[IMM_A, Wait], &[], Nothing),
    (S10, &[SEND_A, Wait], APPLY_A, Replay),

    (C1, &[WRITE_A, SEND_AT_A, ReceiveAck, WRITE_B, SEND_AT_B, ReceiveAck],
        &[Receive, Flush(A), Ack, Receive, Flush(B), Ack], Nothing),
    (C2, &[IMM_A, ReceiveAck, IMM_B, ReceiveAck],
        &[Receive, Flush(A), Ack, Receive, Flush(B), Ack], Nothing),
    (C3, &[SEND_AB, ReceiveAck], &[Receive, Copy(A), Flush(A), Copy(B), Flush(B), Ack], Nothing),
    (C4, &[WRITE_A, FLUSH, AtomicWrite(B), FLUSH, Wait], &[], Nothing),
    (C4Wait, &[WRITE_A, FLUSH, Wait, WRITE_B, FLUSH, Wait], &[], Nothing),
    (C5, &[IMM_A, FLUSH, Wait, IMM_B, FLUSH, Wait], &[], Nothing),
    (C6, &[WRITE_A, WRITE_B, FLUSH, Wait], &[], Nothing),
    (C7, &[IMM_A, IMM_B, FLUSH, Wait], &[], Nothing),
    (C8, &[SEND_AB, FLUSH, Wait], APPLY_AB, Replay),
    (C9, &[SEND_AB, ReceiveAck], &[Receive, Copy(A), Copy(B), Ack], Nothing),
    (C10, &[WRITE_A, WRITE_B, Wait], &[], Nothing),
    (C11, &[IMM_A, IMM_B, Wait], &[], Nothing),
    (C12, &[SEND_AB, Wait], APPLY_AB, Replay),
];

/// The two printed tables: per row singleton and compound of WRITE, WRITE_IMM, SEND, under DMP, MHP and WSP.
type Pair = (RecipeId, RecipeId);

#[rustfmt::skip]
const PRINTED: [(Ddio, ReceiveQueue, [[Pair; 3]; 3]); 4] = [
    (Ddio::On, ReceiveQueue::Dram,
        [[(S1, C1), (S2, C2), (S3, C3)], [(S4, C6), (S5, C7), (S7, C9)], [(S8, C10), (S9, C11), (S7, C9)]]),
    (Ddio::On, ReceiveQueue::Pm,
        [[(S1, C1), (S2, C2), (S3, C3)], [(S4, C6), (S5, C7), (S6, C8)], [(S8, C10), (S9, C11), (S10, C12)]]),
    (Ddio::Off, ReceiveQueue::Dram,
        [[(S4, C4), (S5, C5), (S3, C3)], [(S4, C6), (S5, C7), (S7, C9)], [(S8, C10), (S9, C11), (S7, C9)]]),
    (Ddio::Off, ReceiveQueue::Pm,
        [[(S4, C4), (S5, C5), (S6, C8)], [(S4, C6), (S5, C7), (S6, C8)], [(S8, C10), (S9, C11), (S10, C12)]]),
];

/// All recipes, with FLUSH and plain STags.
pub fn recipes() -> impl Iterator<Item = Recipe> {
    RECIPES.iter().map(recipe_of)
}

/// The recipe of that name.
#[must_use]
pub fn recipe(id: RecipeId) -> Recipe {
    let row = RECIPES
        .iter()
        .find(|row| row.0 == id)
        .expect("every recipe has its row: a test goes through them");
    recipe_of(row)
}

fn recipe_of(&(id, requester, responder, recovery): &Row) -> Recipe {
    Recipe {
        id,
        requester: requester.to_vec(),
        responder: responder.to_vec(),
        recovery,
    }
}

/// What the tables print for a scenario. They know tails of at most 8 bytes.
#[must_use]
pub fn printed(scenario: Scenario) -> RecipeId {
    let Config {
        domain,
        ddio,
        receive_queue,
    } = scenario.config;
    let column = match domain {
        Domain::Dmp => 0,
        Domain::Mhp => 1,
        Domain::Wsp => 2,
    };
    let place = match scenario.primary {
        Primary::Write => 0,
        Primary::WriteImm => 1,
        Primary::Send => 2,
    };
    let row = PRINTED
        .iter()
        .find(|row| (row.0, row.1) == (ddio, receive_queue))
        .expect("four rows, four pairs");
    let (singleton, compound) = row.2[column][place];
    if scenario.update.is_compound() {
        compound
    } else {
        singleton
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `recipe` finds every name that the tables or `recipes` know.
    #[test]
    fn every_recipe_has_its_row() {
        for scenario in Scenario::all() {
            let found = recipe(printed(scenario));
            assert_eq!(found.primary(), scenario.primary);
            assert!(found.is_for(scenario.update));
        }
        let ids: Vec<RecipeId> = recipes().map(|recipe| recipe.id).collect();
        assert!(ids.is_sorted() && ids.len() == 23);
        assert_eq!(ids.iter().filter(|&&id| id < C1).count(), 10);
    }

    #[test]
    fn recipes_can_be_read() {
        let printed = recipe(S1).to_string();
        assert_eq!(
            printed,
            "S1: Rq WRITE a, SEND(&a), receive ack; Rsp receive, flush a, SEND ack"
        );
        let form = recipe(C6).in_form(Barrier::ReadNothing, Tag::Sync);
        assert_eq!(
            form.to_string(),
            "C6[sync READ(0)]: Rq WRITE a (sync STag), WRITE b (sync STag), READ(0), wait"
        );
        assert!(
            recipe(S6)
                .to_string()
                .ends_with("; recovery replays the receive queue")
        );
    }
}
