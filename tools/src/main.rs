//! The `flashnet` program.
fn main() {}
