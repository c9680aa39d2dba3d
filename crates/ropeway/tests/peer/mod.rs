//! Other processes for the tests: copies of the test binary that play one of its roles.
//!
//! A role runs before `main`, so its process has one thread and may fork. Nobody waits for ever:
//! each process kills itself when it has been silent for too long, and whoever listens to it gives up
//! before that.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod segment;
pub mod starving;

use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, Command, Stdio, exit};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ropeway::sweep::Swept;
use ropeway::wait::SLICE;
use ropeway::{Field, Handle, Options, Pool, Result, Wait, WriteLease};

/// How long anybody waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A time that is long enough for what must not happen.
pub const MOMENT: Duration = Duration::from_millis(120);

/// What a peer does with the words it was started with.
pub type Role = fn(&str);

/// Names the functions of this file that peers play.
macro_rules! roles {
    ($($role:ident),+ $(,)?) => {
        /// Runs before `main`: a peer plays its role and exits.
        #[used]
        #[unsafe(link_section = ".init_array")]
        static BEFORE_MAIN: extern "C" fn() = {
            extern "C" fn before_main() {
                peer::play(&[$((stringify!($role), $role as peer::Role)),+]);
            }
            before_main
        };
    };
}
pub(crate) use roles;

/// A copy of the test binary; killed when dropped.
pub struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Peer {
    /// Starts a peer with a role and some words.
    pub fn start(role: &str, given: &str) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("PEER_ROLE", role).env("PEER_GIVEN", given);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (speaker, said) = channel();
        std::thread::spawn(move || {
            output.lines().map_while(|line| line.ok()).all(|line| speaker.send(line).is_ok())
        });
        Peer { input: child.stdin.take(), child, said }
    }

    /// Waits for the next thing that the peer says.
    pub fn hear(&mut self) -> String {
        self.said.recv_timeout(PATIENCE).expect("the peer says nothing more")
    }

    /// Waits for the next thing that the peer says, which is a number.
    pub fn hear_number<T: std::str::FromStr>(&mut self) -> T {
        let said = self.hear();
        said.parse().unwrap_or_else(|_| panic!("a number expected, {said:?} heard"))
    }

    /// Sends the peer a line, for its [`listen`].
    pub fn tell(&mut self, words: &str) {
        writeln!(self.input.as_mut().unwrap(), "{words}").unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the peer and waits until it is dead, but leaves it unreaped.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.wait_dead();
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the call touches no memory; the peer isn't reaped, so the pid is its own.
        assert_eq!(unsafe { libc::kill(self.pid() as libc::pid_t, signal) }, 0);
    }

    /// Waits until the peer is dead, however it died, but leaves it unreaped.
    pub fn wait_dead(&mut self) {
        eventually("the peer is dead", || {
            // SAFETY: all zeros is a valid `siginfo_t`, which the call fills.
            let pid = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
                assert_eq!(libc::waitid(libc::P_PID, self.pid(), &mut info, flags), 0);
                info.si_pid()
            };
            pid != 0
        });
    }

    /// How the peer has ended.
    pub fn status(&mut self) -> std::process::ExitStatus {
        self.wait_dead();
        self.child.wait().unwrap()
    }

    /// Lets the peer go to its end, which must be a good one.
    pub fn finish(mut self) {
        self.input = None;
        let status = self.status();
        assert!(status.success(), "the peer ended with {status}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays the role that this process was started for, if it was, and exits.
pub fn play(roles: &[(&str, Role)]) {
    let Ok(name) = std::env::var("PEER_ROLE") else { return };
    watchdog();
    let role = roles.iter().find(|(role, _)| *role == name).unwrap_or_else(|| panic!("no role {name:?}")).1;
    let given = std::env::var("PEER_GIVEN").unwrap_or_default();
    exit(if catch_unwind(|| role(&given)).is_ok() { 0 } else { 101 })
}

/// Says something to whoever started this peer.
pub fn say(words: impl std::fmt::Display) {
    watchdog();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{words}").unwrap();
    out.flush().unwrap();
}

/// Waits for a line from whoever started this peer; empty when it is gone.
pub fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Forks this peer; the child runs `body` and exits.
pub fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: a peer has one thread, so its child may do what it could.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        in_child(body);
    }
    pid
}

/// Forks this peer in a way that no fork handler hears of.
pub fn clone(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: a clone with no flags but the signal is a fork; a peer has one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t;
    assert!(pid >= 0, "clone failed");
    if pid == 0 {
        in_child(body);
    }
    pid
}

fn in_child(body: impl FnOnce()) -> ! {
    watchdog();
    let good = catch_unwind(AssertUnwindSafe(body)).is_ok();
    // SAFETY: ends the process without the parent's exit handlers.
    unsafe { libc::_exit(if good { 0 } else { 101 }) }
}

/// Waits for a forked child, which must come to a good end.
pub fn reap(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` outlives the call. The child has a watchdog.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the forked child failed");
}

/// Says that a test was left out, past the test harness, which keeps quiet about what passes.
pub fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// Waits until something is so.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits without a limit, as nothing should be waited for for long; interrupts itself if it is.
pub fn endless<T>(wait: impl FnOnce(&mut Wait<'_>) -> Result<T>) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    wait(&mut Wait::new(None, &mut || Instant::now() < end))
}

/// Waits until no more than `living` members live, and sweeps once.
///
/// A process that was waited for may still seem to live for a moment, while anybody reads its
/// entry in `/proc`.
pub fn sweep(pool: &Pool, living: usize) -> Swept {
    let alive = || pool.status().members.iter().filter(|member| member.alive).count();
    eventually("the dead are gone", || alive() <= living);
    pool.sweep().unwrap()
}

/// Waits for something and counts the slices that pass after `kill` was called in the first one.
///
/// A load-proof way to say "within 100 ms": two slices, whatever else the machine does.
pub fn slices_after<T>(kill: impl FnOnce(), wait: impl FnOnce(&mut Wait<'_>) -> Result<T>) -> (T, u32) {
    let (mut kill, mut slices) = (Some(kill), 0);
    let mut pulse = || {
        match kill.take() {
            Some(kill) => kill(),
            None => slices += 1,
        }
        true
    };
    let got = wait(&mut Wait::new(Some(PATIENCE), &mut pulse)).unwrap();
    assert!(kill.is_none(), "there was nothing to wait for");
    (got, slices)
}

/// The slices that a waiter may need to see what a death has freed.
pub const TWO_SLICES: u32 = (100 / SLICE.as_millis()) as u32;

// ---- pools ----------------------------------------------------------------------------------------

/// A pool of slots with one packed array, `n`, of eight numbers.
pub fn numbers(slots: usize) -> Options {
    Options::new(slots).fields(vec![Field::new("n", "<u8", 8, &[8]).unwrap()])
}

/// A field of bytes.
pub fn bytes(name: &str, len: u64) -> Field {
    Field::new(name, "|u1", 1, &[len]).unwrap()
}

/// Acquires a slot of `numbers`, writes `n`, publishes.
pub fn put(pool: &Pool, n: u64) -> Result<()> {
    let mut slot = pool.acquire_timeout(PATIENCE)?;
    slot.slice_mut::<u64>("n")?.fill(n);
    slot.publish()
}

/// Takes a slot of `numbers`, reads it, gives it back.
pub fn get(pool: &Pool) -> Result<u64> {
    let slot = pool.take_timeout(PATIENCE)?;
    let n = slot.slice::<u64>("n")?[0];
    slot.release()?;
    Ok(n)
}

/// Takes a slot at a stage to change it.
pub fn change(pool: &Pool, stage: &str) -> Result<WriteLease> {
    pool.take_mut_with(stage, None, &mut Wait::new(Some(PATIENCE), &mut || true))
}

/// The words by which a peer finds a pool.
pub fn words(pool: &Pool) -> String {
    hex(&pool.handle().unwrap().to_bytes())
}

/// In a peer: the pool that was given in words.
pub fn pool(words: &str) -> Pool {
    Pool::attach(&Handle::from_bytes(&unhex(words)).unwrap()).unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn watchdog() {
    // SAFETY: the call touches no memory; `SIGALRM` kills this process.
    unsafe { libc::alarm(2 * PATIENCE.as_secs() as u32) };
}
