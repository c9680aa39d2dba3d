//! The floor: slots go round with nothing but two counters.

use std::error::Error;
use std::io::stdin;

use crate::clock;
use crate::memory::Memory;
use crate::options::Options;

/// Sends the slots round from the near side and tells how long a turn took.
pub fn near(options: &Options) -> Result<String, Box<dyn Error>> {
    let (memory, file) = Memory::create(options)?;
    let _far = options.start_far(file)?;
    for _ in 0..options.slots {
        memory.there().advance();
    }
    let mut turn = 0u32;
    clock::time(options.seconds, || {
        memory.back().pass(turn, options.means);
        memory.look(turn % options.slots);
        memory.there().advance();
        turn = turn.wrapping_add(1);
        Ok(())
    })
}

/// Returns every slot that arrives at the far side, until the near process ends.
pub fn far(options: &Options) -> Result<(), Box<dyn Error>> {
    options.follow_near()?;
    let memory = Memory::open(stdin(), options)?;
    for turn in (0..=u32::MAX).cycle() {
        memory.there().pass(turn, options.means);
        memory.look(turn % options.slots);
        memory.back().advance();
    }
    Ok(())
}
