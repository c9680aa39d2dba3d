//! One round: forks all its processes, lets their fates come, waits until all are gone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::belongings::Belongings;
use crate::deeds::quit;
use crate::judge::Judge;
use crate::ledger::{Ledger, now, state};
use crate::plan::{Fate, Plan, Role};
use crate::roles::{Actor, Unwound};

/// After that long a round counts as hung.
const WATCHDOG: Duration = Duration::from_secs(30);

/// When those who come late come if nobody has gone.
const LATE: Duration = Duration::from_millis(5);

/// What came of a round.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Processes that came to an end that wasn't their own.
    pub gone: u32,
    /// For each of them, how long its slots stayed away, in ns.
    pub recoveries: Vec<u64>,
    /// Messages that the pool reported lost.
    pub lost: u32,
    /// Processes that had to be killed because they never ended.
    pub hung: u32,
    /// What was wrong.
    pub complaints: String,
}

/// Plays a round. This process has one thread and never touches a pool.
pub fn play(plan: &Plan, ledger: &'static Ledger) -> Outcome {
    ledger.clear();
    let before = Belongings::of_this_process();
    let judge = fork(|| judge(plan, ledger));
    for (index, part) in plan.parts.iter().enumerate() {
        let person = &ledger.people[index];
        person.state.store(state::RUNNING, SeqCst);
        if !part.late {
            let pid = fork(|| act(plan, ledger, index, part.role));
            person.pid.store(pid as u32, SeqCst);
        }
    }
    let stages = vec![0; plan.parts.len()];
    let mut master = Master { plan, ledger, judge, start: now(), stages, hung: 0, joined_at: None };
    master.see_it_through();
    let left = before.left().or_else(|| Belongings::of_the_system().story());
    if let Some(left) = left {
        ledger.complain(format!("left behind: {left}"));
    }
    let people = ledger.people.iter().filter(|person| person.is_gone());
    let recoveries = people.clone().filter_map(|person| person.recovery.load(SeqCst).checked_sub(1));
    Outcome {
        gone: people.clone().count() as u32,
        recoveries: recoveries.collect(),
        lost: ledger.lost.load(SeqCst),
        hung: master.hung,
        complaints: ledger.complaints(),
    }
}

// ---- the processes ------------------------------------------------------------------------------

fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: this process has one thread, so its child may do what it could.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        // SAFETY: the calls touch no memory of this program; the child dies with its parent, and
        // when it has taken far too long.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(WATCHDOG.as_secs() as u32 - 5);
        }
        let good = catch_unwind(AssertUnwindSafe(body)).is_ok();
        quit(if good { 0 } else { 101 });
    }
    pid
}

fn judge(plan: &Plan, ledger: &Ledger) {
    if let Err(e) = Judge::new(plan, ledger).watch() {
        ledger.complain(format!("the judge: {e}"));
    }
}

fn act(plan: &Plan, ledger: &'static Ledger, index: usize, role: Role) {
    let fate = &plan.parts[index].fate;
    if let Fate::Point(point) = fate {
        // SAFETY: this process has one thread.
        unsafe { std::env::set_var("ROPEWAY_CRASH", point) };
        if point.starts_with("poison.") {
            // Free slots are filled with a pattern where that is asked for.
            // SAFETY: as above.
            unsafe { std::env::set_var("ROPEWAY_DEBUG", "1") };
        }
    }
    let plan = plan.clone();
    let play = move || {
        let mut actor = Actor::new(&plan, ledger, index);
        if let Err(e) = actor.play(role) {
            ledger.complain(format!("{role:?}: {e}"));
        }
        actor.me().leave(state::FINISHED);
    };
    match fate {
        Fate::LeaderGone(_) => {
            std::thread::spawn(move || {
                play();
                quit(0);
            });
            // SAFETY: ends this thread only; nothing on its stack is used by the other.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        Fate::Do(_, crate::plan::Deed::Panic) => {
            while let Err(why) = std::thread::spawn(play.clone()).join() {
                assert!(why.is::<Unwound>(), "a thread has panicked");
            }
        }
        _ => play(),
    }
}

// ---- the one who waits for them -------------------------------------------------------------------

struct Master<'a> {
    plan: &'a Plan,
    ledger: &'static Ledger,
    judge: libc::pid_t,
    start: u64,
    /// How far each fate has come.
    stages: Vec<u32>,
    hung: u32,
    /// When all had opened the pool.
    joined_at: Option<u64>,
}

impl Master<'_> {
    fn see_it_through(&mut self) {
        while self.reap() {
            let passed = Duration::from_nanos(now() - self.start);
            if passed > WATCHDOG {
                self.end_all();
            }
            for (index, part) in self.plan.parts.iter().enumerate() {
                if part.late { self.let_in(index, passed) } else { self.advance(index, passed) }
            }
            std::thread::sleep(Duration::from_micros(60));
        }
    }

    /// Starts those who come late, once somebody is gone, or else after a while.
    fn let_in(&mut self, index: usize, passed: Duration) {
        let someone_is_gone = self.ledger.people.iter().any(|person| person.is_gone());
        if self.stages[index] == 0 && (someone_is_gone || passed > LATE) {
            let (plan, ledger, role) = (self.plan, self.ledger, self.plan.parts[index].role);
            let pid = fork(|| act(plan, ledger, index, role));
            self.ledger.people[index].pid.store(pid as u32, SeqCst);
            self.stages[index] = 1;
        }
    }

    /// Lets the next thing befall a process, if its time has come.
    fn advance(&mut self, index: usize, passed: Duration) {
        let (stage, person) = (self.stages[index], &self.ledger.people[index]);
        let passed =
            if self.plan.parts[index].role == Role::Maker { self.since_all_joined() } else { passed };
        let signal = match (&self.plan.parts[index].fate, stage) {
            (Fate::Kill(at) | Fate::LeaderGone(at), 0) if passed > *at => libc::SIGKILL,
            (Fate::Stop(at, _) | Fate::StopAndKill(at, _), 0) if passed > *at => libc::SIGSTOP,
            (Fate::Stop(at, more), 1) if passed >= *at + *more => libc::SIGCONT,
            (Fate::StopAndKill(at, more), 1) if passed >= *at + *more => libc::SIGKILL,
            _ => return,
        };
        self.stages[index] += 1;
        let pid = person.pid.load(SeqCst);
        // Once it is reaped the number may be another's.
        if pid != 0 && !self.is_reaped(index) {
            // SAFETY: the call touches no memory; the pid is that of an unreaped child.
            unsafe { libc::kill(pid as libc::pid_t, signal) };
            if signal == libc::SIGKILL {
                person.leave(state::GONE);
            }
        }
    }

    /// Nobody finds a pool whose only member is dead, so its maker lives until all have joined.
    fn since_all_joined(&mut self) -> Duration {
        let all_joined = self.ledger.joined.load(SeqCst) as usize >= self.plan.parts.len();
        if all_joined && self.joined_at.is_none() {
            self.joined_at = Some(now());
        }
        self.joined_at.map_or(Duration::ZERO, |at| Duration::from_nanos(now() - at))
    }

    fn is_reaped(&self, index: usize) -> bool {
        self.stages[index] == u32::MAX
    }

    /// Notes whoever has ended; false when nobody is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
            match pid {
                0 => return true,
                -1 => return false,
                pid => self.note(pid, status),
            }
        }
    }

    fn note(&mut self, pid: libc::pid_t, status: i32) {
        let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
        let well = status == 0;
        let index =
            (0..self.plan.parts.len()).find(|&k| self.ledger.people[k].pid.load(SeqCst) == pid as u32);
        let Some(index) = index else {
            // The judge, or a child of somebody who went first.
            if !well {
                let who = if pid == self.judge { "the judge" } else { "a child of a child" };
                self.ledger.complain(format!("{who} ended with status {status:#x}"));
            }
            return;
        };
        let fated = self.plan.parts[index].fate.is_an_end();
        if !(well || killed && fated) {
            let role = self.plan.parts[index].role;
            self.ledger.complain(format!("{role:?} ({pid}) ended with status {status:#x}"));
        }
        self.ledger.people[index].leave(state::GONE);
        self.stages[index] = u32::MAX;
    }

    /// Kills whoever is left, after saying where they are.
    fn end_all(&mut self) {
        let pids = self.ledger.people.iter().map(|person| person.pid.load(SeqCst) as libc::pid_t);
        let left: Vec<_> = pids
            .enumerate()
            .filter(|&(k, pid)| pid != 0 && k < self.stages.len() && !self.is_reaped(k))
            .map(|(_, pid)| pid)
            .chain([self.judge])
            .collect();
        for pid in left {
            if let Ok(place) = std::fs::read_to_string(format!("/proc/{pid}/stat")) {
                self.ledger.complain(format!("hung: {}", place.trim()));
                self.hung += 1;
                // SAFETY: the call touches no memory; this process is waiting for that child.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        self.start = now();
    }
}
