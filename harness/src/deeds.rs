//! What processes do to themselves in the middle of a lease.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ropeway::{Error, Handle, Pool, WriteLease};

use crate::ledger::state;
use crate::plan::Deed;
use crate::roles::{Actor, unwind};

/// Does it.
pub fn commit(deed: Deed, actor: &Actor<'_>, mut slot: Option<&mut WriteLease>) {
    let bytes = slot.as_mut().and_then(|slot| slot.slice_mut::<u64>("n").ok()).map(|mut n| n.as_mut_ptr());
    let forks = matches!(deed, Deed::Fork | Deed::ForkOfFork | Deed::Clone | Deed::ForkAndDie);
    actor.ledger.children.fetch_add(u32::from(forks), SeqCst);
    match deed {
        Deed::Exec => exec(actor),
        Deed::Exit => {
            ropeway::leave_all();
            actor.me().leave(state::GONE);
            quit(0)
        }
        Deed::QuickExit => {
            actor.me().leave(state::GONE);
            quit(0)
        }
        Deed::Panic => unwind(),
        Deed::Fork => misuse(fork(), actor, slot, bytes),
        Deed::ForkOfFork if fork() == 0 => {
            misuse(fork(), actor, slot, bytes);
            quit(0)
        }
        Deed::ForkOfFork => {}
        // Without a fork handler the memory of the pool stays shared.
        Deed::Clone => misuse(clone(), actor, slot, None),
        Deed::ForkAndDie => {
            misuse(fork(), actor, slot, bytes);
            actor.me().leave(state::GONE);
            // SAFETY: the call touches no memory.
            unsafe { libc::raise(libc::SIGKILL) };
        }
    }
}

/// Becomes a program that lives on for a moment under the same pid.
fn exec(actor: &Actor<'_>) {
    let arguments = [c"sleep".as_ptr(), c"0.02".as_ptr(), std::ptr::null()];
    actor.me().leave(state::GONE);
    // SAFETY: both strings and the array, which ends with null, outlive the call.
    unsafe { libc::execv(c"/bin/sleep".as_ptr(), arguments.as_ptr()) };
    actor.ledger.complain("can't become /bin/sleep");
}

/// In a child (`pid` is 0): misuses what it has inherited, uses the pool as a member of its own,
/// and quits.
fn misuse(pid: libc::pid_t, actor: &Actor<'_>, slot: Option<&mut WriteLease>, bytes: Option<*mut u64>) {
    if pid != 0 {
        return;
    }
    // SAFETY: the call touches no memory; a child that hangs is killed.
    unsafe { libc::alarm(10) };
    if let Some(bytes) = bytes {
        // SAFETY: the array has 8 numbers or more, and is still mapped, privately, in the child.
        unsafe { bytes.add(3).write_volatile(666) };
    }
    let refused = slot.is_none_or(|slot| {
        slot.publish().is_err() && slot.release().is_err() && slot.slice_mut::<u64>("n").is_err()
    });
    if !refused {
        actor.ledger.complain("a forked child could use its parent's lease");
    }
    let own = Handle::from_bytes(&actor.ledger.handle().unwrap_or_default());
    let own = own.and_then(|handle| Pool::attach(&handle));
    match own.and_then(|pool| pool.acquire_timeout(Duration::from_millis(1)).map(drop)) {
        Ok(()) | Err(Error::Timeout(_) | Error::Closed(_) | Error::PeerDied(_)) => {}
        Err(e) => actor.ledger.complain(format!("a forked child can't use the pool: {e}")),
    }
    actor.ledger.children.fetch_sub(1, SeqCst);
    quit(0)
}

fn fork() -> libc::pid_t {
    // SAFETY: processes of a round have one thread where they fork, so a child may do all.
    unsafe { libc::fork() }
}

fn clone() -> libc::pid_t {
    // SAFETY: a clone with no flags but the signal is a fork that runs no handlers; one thread.
    unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
}

/// Ends the process without any handler.
pub fn quit(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}
