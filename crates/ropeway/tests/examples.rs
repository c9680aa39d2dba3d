//! The examples do what they say.

use std::process::Command;

#[test]
fn two_processes_hand_over_every_batch() {
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().with_file_name("examples").join("two_processes");
    let run = Command::new(&example).output().unwrap_or_else(|e| {
        panic!("{}: {e}; `cargo test` builds it, or `cargo build --examples`", example.display())
    });
    let said = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success() && run.stderr.is_empty(), "{}: {said}", run.status);
    assert_eq!(said, "read 50 batches of images, 1926 MB, without copying one\n");
}
