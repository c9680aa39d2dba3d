//! Times a loop in small groups of turns, so that reading the clock costs a turn next to nothing.

use std::error::Error;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Turns between two readings of the clock.
const GROUP: u32 = 16;

/// Repeats `turn` for about `seconds`, after a tenth of that to warm up, and writes what a turn took as JSON.
pub fn time(seconds: f64, mut turn: impl FnMut() -> Result<()>) -> Result<String> {
    groups(seconds / 10.0, &mut turn)?;
    let (mut micros, wall) = groups(seconds, &mut turn)?;
    micros.sort_by(f64::total_cmp);
    let at = |share: f64| micros[(share * (micros.len() - 1) as f64) as usize];
    let turns = micros.len() as u32 * GROUP;
    Ok(format!(
        r#"{{"turns": {turns}, "p50_us": {}, "p99_us": {}, "min_us": {}, "per_s": {}}}"#,
        at(0.5),
        at(0.99),
        at(0.0),
        f64::from(turns) / wall.as_secs_f64(),
    ))
}

/// The mean of a turn in microseconds for each group, and the time of all groups together.
fn groups(seconds: f64, turn: &mut impl FnMut() -> Result<()>) -> Result<(Vec<f64>, Duration)> {
    let start = Instant::now();
    let mut last = start;
    let mut micros = Vec::new();
    while micros.is_empty() || last.duration_since(start).as_secs_f64() < seconds {
        (0..GROUP).try_for_each(|_| turn())?;
        let now = Instant::now();
        micros.push(now.duration_since(last).as_secs_f64() * 1e6 / f64::from(GROUP));
        last = now;
    }
    Ok((micros, last.duration_since(start)))
}
