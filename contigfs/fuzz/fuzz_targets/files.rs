#![no_main]

#[path = "../../tests/crafting/mod.rs"]
mod crafting;

use std::sync::LazyLock;

use crafting::input::Files;

static FILES: LazyLock<Files> = LazyLock::new(Files::new);

libfuzzer_sys::fuzz_target!(|data: &[u8]| FILES.run(data));
