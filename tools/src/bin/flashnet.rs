//! The `flashnet` program: target, clients, benches in one binary.
fn main() {}
