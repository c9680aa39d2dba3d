//! ropeway's own pool in Rust, to be set against the floor.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, Write, stdin};

use ropeway::{Element, Field, Handle, Pool};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::clock;
use crate::options::Options;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ARRAY: &str = "array";
/// What every byte of every slot holds.
const MARK: u8 = 0x5a;

/// Sends the slots round from the near side and tells how long a turn took.
pub fn near(options: &Options) -> Result<String> {
    let pool = filled(options)?;
    let mut handle = File::from(memfd_create("ropeway-floor", MemfdFlags::CLOEXEC)?);
    handle.write_all(&pool.handle()?.to_bytes())?;
    handle.rewind()?;
    let _far = options.start_far(handle.into())?;
    let round_trip = options.slots == 1;
    clock::time(options.seconds, || {
        if round_trip {
            pool.acquire()?.publish()?;
        }
        let slot = pool.take()?;
        look(&slot.slice(ARRAY)?);
        Ok(slot.release()?)
    })
}

/// Returns every slot that arrives at the far side, until the near process ends.
///
/// With more slots than one it is the producer.
pub fn far(options: &Options) -> Result<()> {
    options.follow_near()?;
    let mut handle = Vec::new();
    stdin().read_to_end(&mut handle)?;
    let pool = Pool::attach(&Handle::from_bytes(&handle)?)?;
    let round_trip = options.slots == 1;
    for turn in 0u64.. {
        let slot = if round_trip { pool.take_mut("there")? } else { pool.acquire()? };
        let array = slot.slice::<u8>(ARRAY)?;
        if turn < 2 * u64::from(options.slots) {
            assert!(array.iter().all(|&byte| byte == MARK), "a slot holds the wrong contents");
        }
        look(&array);
        drop(array);
        slot.publish()?;
    }
    Ok(())
}

/// A pool whose slots have all been filled once and are free.
fn filled(options: &Options) -> Result<Pool> {
    let array = Field::new(ARRAY, u8::DTYPE, 1, &[options.bytes as u64])?;
    let stages: &[&str] = if options.slots == 1 { &["fill", "there", "back"] } else { &["fill", "use"] };
    let made = ropeway::Options::new(options.slots as usize).fields(vec![array]);
    let pool = Pool::create(&made.stages(stages.iter().copied()))?;
    let mut slots = (0..options.slots).map(|_| pool.acquire()).collect::<ropeway::Result<Vec<_>>>()?;
    for slot in &mut slots {
        slot.slice_mut(ARRAY)?.fill(MARK);
    }
    drop(slots);
    Ok(pool)
}

/// Reads one byte, as every receiver does.
fn look(array: &[u8]) {
    assert_eq!(array[0], MARK, "a slot holds the wrong contents");
}
