#![no_main]

#[path = "../../tests/crafting/mod.rs"]
mod crafting;

use std::sync::LazyLock;

use crafting::input::Logs;

static LOGS: LazyLock<Logs> = LazyLock::new(Logs::new);

libfuzzer_sys::fuzz_target!(|data: &[u8]| LOGS.run(data));
