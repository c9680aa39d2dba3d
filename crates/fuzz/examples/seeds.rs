//! Writes the seeds of all targets into the corpus: `cargo run -p ropeway-fuzz --example seeds`.

use std::path::Path;

use ropeway_fuzz::{TARGETS, seeds};

fn main() -> std::io::Result<()> {
    for (target, _) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (n, seed) in seeds(target).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{n:02}")), seed)?;
        }
    }
    Ok(())
}
