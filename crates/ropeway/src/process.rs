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

/// The attachment that is valid in this process; a forked child puts its own in place.
pub(crate) struct Link(AtomicPtr<Arc<Attachment>>);

impl Link {
    pub fn new(attachment: Arc<Attachment>) -> Link {
        Link(AtomicPtr::new(Box::into_raw(Box::new(attachment))))
    }

    fn found(&self) -> &Arc<Attachment> {
        // SAFETY: the pointer came from Box::into_raw; what it points to is given up in Drop only.
        unsafe { &*self.0.load(Acquire) }
    }

    /// The attachment, as it was when this process got it.
    pub fn inherited(&self) -> &Attachment {
        self.found()
    }

    /// The attachment of this process; attaches anew in a forked child.
    pub fn get(&self) -> Result<&Arc<Attachment>> {
        let found = self.found();
        if found.is_mine() { Ok(found) } else { self.attach_again(found) }
    }

    #[cold]
    fn attach_again(&self, parents: &Arc<Attachment>) -> Result<&Arc<Attachment>> {
        let parents = std::ptr::from_ref(parents).cast_mut();
        // SAFETY: as in `found`.
        let fresh = Box::into_raw(Box::new(unsafe { &*parents }.again()?));
        // The parent's is leaked on purpose: its locks may be held by a thread that isn't here.
        if self.0.compare_exchange(parents, fresh, AcqRel, Acquire).is_err() {
            // SAFETY: `fresh` came from into_raw just above and wasn't stored.
            drop(unsafe { Box::from_raw(fresh) });
        }
        Ok(self.found())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw and belongs to this link.
        drop(unsafe { Box::from_raw(*self.0.get_mut()) });
    }
}

/// Marks every membership of this process as cleanly left: what it reads counts as consumed.
/// For exit handlers; the process claims no slot any more.
pub fn leave_all() {
    Process::current().leave_all();
}
