//! Other processes for the tests: started ones, which play a role, and forked ones.
//!
//! Each has a watchdog, so whoever waits for one waits a minute at most.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ropeway_sys::memfd::Memfd;

const WATCHDOG: u32 = 60;

/// A copy of the test binary that plays a role of it; killed when dropped.
pub struct Peer {
    pub child: Child,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts this test binary with only its test `roles`, which asks [`role`] what to do.
    pub fn start(role: &str, file: &Memfd) -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "roles", "--nocapture"])
            .env("PEER_ROLE", role)
            .env("PEER_FILE", format!("{} {}", std::process::id(), file.raw()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Peer { child, output }
    }

    /// Waits for the next [`say`], and returns what was said.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the peer ended without a word");
            if let Some((_, said)) = line.split_once("PEER ") {
                return said.trim().to_owned();
            }
        }
    }

    /// Lets [`listen`] return.
    pub fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Kills the peer and waits until it is dead, but leaves it unreaped.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        let pid = self.child.id();
        // SAFETY: all zeros is a valid `siginfo_t`, which the call fills.
        let waited = unsafe {
            let mut info = std::mem::zeroed();
            libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        assert_eq!(waited, 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a peer: its role and the file it was started with.
pub fn role() -> Option<(String, Memfd)> {
    let role = std::env::var("PEER_ROLE").ok()?;
    watchdog();
    let file = std::env::var("PEER_FILE").unwrap();
    let (pid, fd) = file.split_once(' ').unwrap();
    let file = Memfd::open_peer(pid.parse().unwrap(), fd.parse().unwrap()).unwrap();
    Some((role, file))
}

pub fn say(words: impl std::fmt::Display) {
    println!("PEER {words}");
}

/// Waits for [`Peer::tell`], or until the starter is gone.
pub fn listen() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Forks; the child runs `body`, which must be async-signal-safe, and exits with its result.
pub fn fork(body: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child does what its author promises to be async-signal-safe, and exits.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            watchdog();
            libc::_exit(body());
        }
        assert!(pid > 0);
        pid
    }
}

/// Waits for a forked child, and returns the wait status.
pub fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Waits until something is so, but not as long as the watchdogs, whose work it might mistake for it.
pub fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(u64::from(WATCHDOG) / 2);
    while !so() {
        assert!(Instant::now() < end, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn watchdog() {
    // SAFETY: the call touches no memory; `SIGALRM` kills this process.
    unsafe { libc::alarm(WATCHDOG) };
}
