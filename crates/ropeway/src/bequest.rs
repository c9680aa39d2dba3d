#![allow(unsafe_code)]
//! What a process leaves to a child that it forks: memberships of its arenas.
//!
//! Before a fork the parent joins each arena once more for the child and marks its arrays for it,
//! so there is no instant at which the child's arrays are held by nobody. The child takes the
//! membership over; if the fork fails, the lock goes with the parent's copy and a sweep tidies up.

use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Arc, Mutex, Once};

use ropeway_sys::fork::{self, Hooks};
use ropeway_sys::liveness::Alive;
use ropeway_sys::process;

use crate::arena::{Arena, Open};
use crate::attachment::Attachment;
use crate::extents::KnownGuard;
use crate::member::{Membership, claim_entry, introduce};
use crate::process::Process;

/// A membership that the parent has claimed for a child to be forked, with the arrays marked for it.
struct Inheritance {
    /// Held over the fork, so that the child finds what it guards whole and unlocked.
    _known: KnownGuard<'static>,
    at: Arc<Attachment>,
    member: Membership,
    open: Open,
}

static INHERITED: AtomicPtr<Vec<Inheritance>> = AtomicPtr::new(std::ptr::null_mut());

/// Has forks noticed from now on.
pub(crate) fn register_hooks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| fork::on_fork(Hooks { prepare: bequeath, parent: withdraw, child: || () }));
}

/// In the parent, before a fork: joins for the child and marks what it will inherit.
fn bequeath() {
    let arenas = Process::current().arenas();
    let bequests: Vec<_> = arenas.iter().filter_map(|arena| arena.bequest()).collect();
    if !bequests.is_empty() {
        INHERITED.store(Box::into_raw(Box::new(bequests)), Release);
    }
}

/// In the parent, after a fork: the child has its own copies.
fn withdraw() {
    drop(take_inherited());
}

fn take_inherited() -> Option<Vec<Inheritance>> {
    let found = INHERITED.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: a non-null pointer came from Box::into_raw in `bequeath`, and the swap gives it to
    // one caller only.
    (!found.is_null()).then(|| unsafe { *Box::from_raw(found) })
}

/// In a forked child: the arenas in which the parent has joined for it.
pub(crate) fn inherited() -> Vec<Arc<Arena>> {
    let bequests = take_inherited().unwrap_or_default();
    bequests.into_iter().map(|bequest| Arc::new(bequest.accept())).collect()
}

impl Arena {
    fn bequest(&self) -> Option<Inheritance> {
        let member = claim_entry(&self.at.board, Alive::hold_inheritable).ok()?;
        // Locked until all are marked: other threads let go of arrays, also without the interpreter.
        let open = {
            let open = self.lock();
            for &slot in open.counts.keys() {
                self.at.board.set_mark(member.me, member.tenancy, slot);
            }
            open.clone()
        };
        let known = self.at.memory.lock_known();
        // SAFETY: the guard is dropped before `at`, which keeps the lock (fields drop in order).
        let known = unsafe { std::mem::transmute::<KnownGuard<'_>, KnownGuard<'static>>(known) };
        Some(Inheritance { _known: known, at: self.at.clone(), member, open })
    }
}

impl Inheritance {
    fn accept(self) -> Arena {
        drop(self._known);
        let Membership { me, tenancy, alive } = self.member;
        let _ = alive.stop_inheriting();
        introduce(&self.at.board.0, me, process::pid(), self.at.memory.fd.raw());
        Arena {
            at: self.at,
            me,
            tenancy,
            cookie: fork::cookie(),
            alive: Some(alive),
            open: Mutex::new(self.open),
        }
    }
}
