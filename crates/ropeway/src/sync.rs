//! The one door to atomics, and the points at which a model may kill a participant.
//!
//! Everything that reads or writes memory shared between processes takes its atomics from here,
//! so that loom and shuttle can put their own in place. Their atomics differ in size from the real
//! ones; therefore the algorithms take references and only `layout` casts bytes.

#[cfg(any(feature = "crash-points", loom, shuttle))]
mod deadly;

#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{Ordering, fence};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic::{Ordering, fence};

#[cfg(any(feature = "crash-points", loom, shuttle))]
pub use deadly::{AtomicU16, AtomicU32, AtomicU64};
#[cfg(not(any(feature = "crash-points", loom, shuttle)))]
pub use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// The word itself, for system calls.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn bare(word: &AtomicU32) -> &std::sync::atomic::AtomicU32 {
    #[cfg(feature = "crash-points")]
    return &word.value;
    #[cfg(not(feature = "crash-points"))]
    word
}

/// Tells the processor (or the model) that this thread spins.
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
}

/// Keeps a `SeqCst` read-modify-write before the `SeqCst` loads that follow it.
///
/// The memory model does that by itself, given a `SeqCst` fence between the store and the loads of
/// the other side (C++20, [atomics.order]), and processors have no more to do for it. loom takes
/// `SeqCst` accesses for `AcqRel` ones and knows fences alone.
pub fn model_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// A named instant before or after a store to shared memory, at which a participant may die.
///
/// Every store has a point before it without being asked (`store`, see `deadly.rs`). The others are for
/// deaths that are to be aimed, and stand where a system call changes what others see.
///
/// Costs nothing in an ordinary build. With the feature `crash-points` the process kills itself
/// with SIGKILL at the point that `ROPEWAY_CRASH` names (`NAME` or `NAME:N` for the N-th passage).
/// In a model the installed hook decides (see `crates/ropeway/tests/model`).
macro_rules! crash_point {
    ($name:literal) => {
        #[cfg(any(feature = "crash-points", loom, shuttle))]
        $crate::sync::crash::reached($name);
    };
}
pub(crate) use crash_point;

/// Death at a crash point.
#[cfg(any(feature = "crash-points", loom, shuttle))]
pub mod crash {
    #[cfg(any(loom, shuttle))]
    use std::cell::RefCell;

    /// Every named point, in the order in which a member's life passes them.
    pub const POINTS: [&str; 28] = [
        "store",
        "join.before",
        "join.after",
        "claim.before",
        "claim.after",
        "extent.reserved",
        "extent.recorded",
        "commit.before",
        "commit.after",
        "blob.before",
        "publish.ticket",
        "move.before",
        "move.after",
        "advance.after",
        "loss.before",
        "sweep.before",
        "sweep.after",
        "bury.before",
        "bury.after",
        "close.before",
        "close.after",
        "leave.after",
        "depart.after",
        "serial.before",
        "mark.after",
        "unmark.after",
        "punch.before",
        "poison.after",
    ];

    /// What a modelled participant unwinds with when it dies.
    #[cfg(any(loom, shuttle))]
    pub struct Died;

    #[cfg(loom)]
    use loom::thread_local;
    #[cfg(shuttle)]
    use shuttle::thread_local;

    /// Decides at each named point whether the participant dies there.
    #[cfg(any(loom, shuttle))]
    pub type Hook = Box<dyn FnMut(&'static str) -> bool>;

    // The model's threads share one of the system's, so these are the model's own.
    #[cfg(any(loom, shuttle))]
    thread_local! {
        static HOOK: RefCell<Option<Hook>> = RefCell::new(None);
    }

    /// Installs the hook of the calling participant.
    #[cfg(any(loom, shuttle))]
    pub fn install(hook: Option<Hook>) {
        HOOK.with(|h| *h.borrow_mut() = hook);
    }

    /// Does something that isn't the participant's doing: nobody dies in it.
    #[cfg(any(loom, shuttle))]
    pub fn spared<T>(work: impl FnOnce() -> T) -> T {
        let hook = HOOK.with(|h| h.borrow_mut().take());
        let done = work();
        install(hook);
        done
    }

    /// Dies here if the hook says so. Models call it for points of their own.
    #[cfg(any(loom, shuttle))]
    pub fn reached(name: &'static str) {
        let dies = HOOK.with(|h| h.borrow_mut().as_mut().is_some_and(|hook| hook(name)));
        if dies {
            std::panic::resume_unwind(Box::new(Died));
        }
    }

    #[cfg(all(feature = "crash-points", not(any(loom, shuttle))))]
    pub(crate) fn reached(name: &'static str) {
        use std::sync::OnceLock;
        use std::sync::atomic::{AtomicU64, Ordering};
        static ARMED: OnceLock<Option<(String, u64)>> = OnceLock::new();
        static PASSED: AtomicU64 = AtomicU64::new(0);
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("ROPEWAY_CRASH").ok()?;
            let (name, nth) = text.split_once(':').unwrap_or((&text, "1"));
            Some((name.to_owned(), nth.parse().ok()?))
        });
        if let Some((at, nth)) = armed
            && at == name
            && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *nth
        {
            ropeway_sys::process::kill_self();
        }
    }
}
