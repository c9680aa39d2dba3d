#![allow(unsafe_code)]
//! What a process has open, and what becomes of it in a forked child.

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ropeway_sys::fork;

use crate::arena::Arena;
use crate::attachment::Attachment;
use crate::bequest;
use crate::error::Result;

/// What this process has open. A forked child leaves its parent's behind and makes its own.
pub(crate) struct Process {
    cookie: u64,
    attached: Mutex<HashMap<[u8; 16], Weak<Attachment>>>,
    /// The arenas that this process has open, its session's first.
    arenas: OnceLock<Mutex<Vec<Arc<Arena>>>>,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

impl Process {
    /// The state of this process. The parent's, after a fork, is leaked: no lock of it is touched.
    pub fn current() -> &'static Process {
        let cookie = fork::cookie();
        let found = PROCESS.load(Acquire);
        // SAFETY: the pointer is null or came from Box::leak below; it is never freed.
        if let Some(process) = unsafe { found.as_ref() }.filter(|p| p.cookie == cookie) {
            return process;
        }
        let fresh = Process { cookie, attached: Mutex::default(), arenas: OnceLock::new() };
        let fresh = Box::into_raw(Box::new(fresh));
        match PROCESS.compare_exchange(found, fresh, AcqRel, Acquire) {
            // SAFETY: just leaked, never freed.
            Ok(_) => unsafe { &*fresh },
            Err(_) => {
                // SAFETY: made above and not shared with anybody.
                drop(unsafe { Box::from_raw(fresh) });
                Process::current()
            }
        }
    }

    /// Locks the table of pools, and forgets those that are closed here.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Weak<Attachment>>> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|_, weak| weak.strong_count() > 0);
        attached
    }

    /// The arenas that this process has open; in a forked child those in which its parent has
    /// joined for it.
    pub fn arenas(&self) -> MutexGuard<'_, Vec<Arc<Arena>>> {
        let arenas = self.arenas.get_or_init(|| Mutex::new(bequest::inherited()));
        arenas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a pool that was just made.
    pub fn remember(&self, attachment: &Arc<Attachment>) {
        self.lock().insert(attachment.config().id, Arc::downgrade(attachment));
    }

    /// Leaves every pool cleanly: for exit handlers.
    pub fn leave_all(&self) {
        let open: Vec<_> = self.lock().values().filter_map(Weak::upgrade).collect();
        for attachment in open {
            attachment.leave();
        }
    }
}

/// A pointer to the attachment that is valid in this process, replaced in a forked child.
pub(crate) struct Link(AtomicPtr<Attachment>);

impl Link {
    pub fn new(attachment: Arc<Attachment>) -> Link {
        Link(AtomicPtr::new(Arc::into_raw(attachment).cast_mut()))
    }

    /// The attachment, as it was when this process got it.
    pub fn inherited(&self) -> &Attachment {
        // SAFETY: the pointer comes from Arc::into_raw; its count is only given up in Drop.
        unsafe { &*self.0.load(Acquire) }
    }

    /// The attachment of this process; attaches anew in a forked child.
    pub fn get(&self) -> Result<Arc<Attachment>> {
        let found = self.0.load(Acquire);
        // SAFETY: as in `inherited`.
        if unsafe { &*found }.is_mine() {
            // SAFETY: as above; the count goes up for the Arc that is given out.
            unsafe { Arc::increment_strong_count(found) };
            // SAFETY: the count was just taken.
            return Ok(unsafe { Arc::from_raw(found) });
        }
        // SAFETY: as in `inherited`.
        let again = unsafe { &*found }.again()?;
        let fresh = Arc::into_raw(again.clone()).cast_mut();
        if self.0.compare_exchange(found, fresh, AcqRel, Acquire).is_err() {
            // SAFETY: `fresh` came from into_raw just above and wasn't stored.
            drop(unsafe { Arc::from_raw(fresh) });
        }
        // The parent's count is leaked on purpose: its objects may be locked by a thread that
        // doesn't exist here.
        Ok(again)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let found = *self.0.get_mut();
        // SAFETY: the pointer came from Arc::into_raw and its count belongs to this link.
        drop(unsafe { Arc::from_raw(found) });
    }
}

/// Marks every membership of this process as cleanly left: what it reads counts as consumed.
/// For exit handlers; the process claims no slot any more.
pub fn leave_all() {
    Process::current().leave_all();
}
