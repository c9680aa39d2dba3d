//! `ropeway-floor`: two processes pass slots to each other and back, with nothing between them that is not needed.
//!
//! The far process waits for a slot, reads one byte of it and gives it back; the near one waits for it, reads one byte
//! and lets it go again. With one slot each turn is a round trip; with more, the turns a second are the rate of one-way
//! hand-offs from far to near. The result is one line of JSON.

mod clock;
mod memory;
mod options;
mod pool;
mod token;

use std::process::ExitCode;

use options::{Means, Options, Side};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ropeway-floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse(std::env::args().skip(1))?;
    options.pin()?;
    match (options.means, options.side) {
        (Means::Pool, Side::Near) => println!("{}", pool::near(&options)?),
        (Means::Pool, Side::Far) => pool::far(&options)?,
        (_, Side::Near) => println!("{}", token::near(&options)?),
        (_, Side::Far) => token::far(&options)?,
    }
    Ok(())
}
