//! The microVM process.
fn main() {}
