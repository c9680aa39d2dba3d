//! What is measured, where it runs, and which of the two processes this is.

use std::error::Error;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str =
    "usage: ropeway-floor futex|spin|pool [--slots N] [--bytes N] [--seconds S] [--cores NEAR,FAR]";

/// How the token travels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Means {
    /// Counters in shared memory; who waits sleeps on a futex at once.
    Futex,
    /// Counters in shared memory; who waits spins.
    Spin,
    /// ropeway's own pool.
    Pool,
}

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// The process that was started by the user: it keeps the time.
    Near,
    /// The process that the near one started.
    Far,
}

/// The command line.
#[derive(Clone, Debug)]
pub struct Options {
    pub means: Means,
    pub side: Side,
    pub slots: u32,
    pub bytes: usize,
    pub seconds: f64,
    /// The cores of the near and of the far process; `None` leaves both to the scheduler.
    pub cores: Option<(usize, usize)>,
}

impl Options {
    /// Reads the command line, less the program's name.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let means = match words.next().as_deref() {
            Some("futex") => Means::Futex,
            Some("spin") => Means::Spin,
            Some("pool") => Means::Pool,
            _ => return Err(USAGE.into()),
        };
        let mut options = Self { means, side: Side::Near, slots: 1, bytes: 4096, seconds: 0.3, cores: None };
        while let Some(word) = words.next() {
            if word == "--far" {
                options.side = Side::Far;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value; {USAGE}"))?;
            match word.as_str() {
                "--slots" => options.slots = value.parse()?,
                "--bytes" => options.bytes = value.parse()?,
                "--seconds" => options.seconds = value.parse()?,
                "--cores" => options.cores = Some(core_pair(&value)?),
                _ => return Err(format!("{word} is not an option; {USAGE}").into()),
            }
        }
        if options.slots == 0 || options.bytes == 0 {
            return Err(format!("--slots and --bytes must be at least 1, found {options:?}").into());
        }
        Ok(options)
    }

    /// Pins this process to its core, if one was asked for.
    pub fn pin(&self) -> Result<()> {
        let Some((near, far)) = self.cores else {
            return Ok(());
        };
        let mut set = CpuSet::new();
        set.set(if self.side == Side::Near { near } else { far });
        sched_setaffinity(None, &set)?;
        Ok(())
    }

    /// Starts the far process with the same options and `input` as its standard input.
    ///
    /// The far process ends with the near one, whatever becomes of that.
    pub fn start_far(&self, input: OwnedFd) -> Result<FarProcess> {
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .arg("--far")
            .stdin(Stdio::from(input))
            .spawn()?;
        Ok(FarProcess(child))
    }

    /// Asks the kernel to end this far process when the near one ends.
    pub fn follow_near(&self) -> Result<()> {
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }
}

/// The far process; dropping it ends it.
pub struct FarProcess(Child);

impl Drop for FarProcess {
    fn drop(&mut self) {
        // Both fail only where the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn core_pair(text: &str) -> Result<(usize, usize)> {
    let (near, far) =
        text.split_once(',').ok_or_else(|| format!("--cores expects NEAR,FAR, found {text}"))?;
    Ok((near.parse()?, far.parse()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> std::result::Result<Options, String> {
        Options::parse(line.split(' ').map(String::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_line_says_who_runs_where() {
        let options = parse("spin --slots 16 --cores 0,1 --far").unwrap();
        assert_eq!((options.means, options.side), (Means::Spin, Side::Far));
        assert_eq!((options.slots, options.cores), (16, Some((0, 1))));
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_named() {
        for (line, part) in
            [("pigeon", "usage"), ("spin --slots", "--slots needs"), ("spin --bytes 0", "at least 1")]
        {
            assert!(parse(line).unwrap_err().contains(part), "{line}");
        }
    }
}
