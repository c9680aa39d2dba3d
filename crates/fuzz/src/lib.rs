//! What a fuzzer feeds to ropeway: each target takes any bytes and must neither panic nor stray.
//!
//! The functions are the targets of `fuzz/`, where libFuzzer drives them with an eye on coverage. The
//! tests of this crate run them over the same corpus and over random mutations of it, on any machine.

mod attach;
mod bytes;
mod control;
mod exchange;
mod handles;
mod pools;
mod slot;

pub use attach::attach;
pub use control::control;
pub use exchange::exchange;
pub use handles::handles;
pub use slot::slot;

/// What is done with an input.
pub type Target = fn(&[u8]);

/// The targets by name.
pub const TARGETS: [(&str, Target); 5] =
    [("attach", attach), ("control", control), ("exchange", exchange), ("handles", handles), ("slot", slot)];

/// Inputs that go deep: where mutations begin.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "attach" => attach::seeds(),
        "control" => control::seeds(),
        "exchange" => exchange::seeds(),
        "handles" => handles::seeds(),
        "slot" => slot::seeds(),
        other => panic!("no target {other:?}"),
    }
}
