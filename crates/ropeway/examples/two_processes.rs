//! A producer fills batches of images, a consumer in another process reads the same bytes.
//!
//! ```sh
//! cargo run --release -p ropeway --example two_processes
//! ```

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use ropeway::{Error, Field, Handle, Options, Pool};

const BATCHES: u64 = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("consume") { consume() } else { produce() }
}

fn produce() -> Result<(), Box<dyn std::error::Error>> {
    let images = Field::new("images", "<f4", 4, &[64, 3, 224, 224])?;
    let labels = Field::new("labels", "<i8", 8, &[64])?;
    let pool = Pool::create(&Options::new(2).fields(vec![images, labels]))?;

    // What travels to the other process is a handle: some bytes, by whatever way there is.
    let mut consumer = Command::new(std::env::current_exe()?).arg("consume").stdin(Stdio::piped()).spawn()?;
    consumer.stdin.take().expect("it is piped").write_all(&pool.handle()?.to_bytes())?;

    for batch in 0..BATCHES {
        let mut slot = pool.acquire()?; // waits while both slots are filled or being read
        slot.slice_mut::<f32>("images")?.fill(batch as f32);
        slot.slice_mut::<i64>("labels")?.fill(batch as i64);
        slot.publish()?;
    }
    pool.close()?; // what is published can still be taken
    consumer.wait()?;
    Ok(())
}

fn consume() -> Result<(), Box<dyn std::error::Error>> {
    let mut handle = Vec::new();
    std::io::stdin().read_to_end(&mut handle)?;
    let pool = Pool::attach(&Handle::from_bytes(&handle)?)?;
    let (mut batches, mut bytes) = (0, 0);
    loop {
        match pool.take() {
            Ok(slot) => {
                let (images, labels) = (slot.slice::<f32>("images")?, slot.slice::<i64>("labels")?);
                assert!(images[0] == images[images.len() - 1] && labels[0] == images[0] as i64);
                (batches, bytes) = (batches + 1, bytes + size_of_val(&*images));
            } // the slot goes back here
            Err(Error::Closed(_)) => break,
            Err(e) => return Err(e.into()),
        }
    }
    println!("read {batches} batches of images, {} MB, without copying one", bytes / 1_000_000);
    Ok(())
}
