//! What a forked child must not share with its parent.
//!
//! Three things: its identity ([`cookie`]), the memory of others
//! ([`privatize_in_child`]) and whatever the layers above name ([`on_fork`]).
//! One set of `pthread_atfork` handlers serves them all, so that `fork` from any
//! language is seen. They must be async-signal-safe: tables of fixed size, made
//! of atomics, no allocation. A `clone` that runs no handlers still changes the
//! cookie, by the kernel's hand.

use std::ffi::c_void;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};
use rustix::param::page_size;

use crate::descriptor::shows;
use crate::mapping::{Access, Mapping};
use crate::memfd::Memfd;
use crate::process;

// The process cookie.

/// A page that reads 0 after each fork.
static COOKIE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Returns a number that isn't 0 and that no other process has: a fork changes it.
///
/// # Panics
///
/// If there is no memory for one page at the first call.
pub fn cookie() -> u64 {
    let page = COOKIE.load(Acquire);
    if page.is_null() {
        return renew(new_cookie_page());
    }
    // SAFETY: `new_cookie_page` mapped it, and it is never unmapped.
    let cookie = unsafe { &*page };
    match cookie.load(Relaxed) {
        0 => renew(cookie),
        value => value,
    }
}

#[cold]
fn renew(cookie: &AtomicU64) -> u64 {
    let fresh = u64::from_ne_bytes(process::random()).max(1);
    match cookie.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => fresh,
        Err(other_thread) => other_thread,
    }
}

#[cold]
fn new_cookie_page() -> &'static AtomicU64 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: an anonymous map at a new address disturbs nobody. The advice fails before Linux
    // 4.14, where only `in_child` wipes the page.
    let page = unsafe {
        let page = mmap_anonymous(ptr::null_mut(), page_size(), protection, MapFlags::PRIVATE);
        let page = page.expect("mapping one page for the process cookie failed");
        let _ = madvise(page, page_size(), Advice::LinuxWipeOnFork);
        page
    };
    let page = match COOKIE.compare_exchange(ptr::null_mut(), page.cast(), AcqRel, Acquire) {
        Ok(_) => page.cast(),
        Err(other_thread) => {
            // SAFETY: the page was mapped above and nobody else has seen it.
            let _ = unsafe { munmap(page, page_size()) };
            other_thread
        }
    };
    // SAFETY: a page of zeros is an `AtomicU64`, and it is never unmapped.
    unsafe { &*page }
}

// Maps that become private in a child.

const ENTRIES: usize = 1024;
/// What an entry's ticket is while the entry is written.
const BUSY: u64 = u64::MAX;

struct Entry {
    /// 0 if the entry is free; else its index, and above it a number that is never used again.
    ticket: AtomicU64,
    start: AtomicPtr<c_void>,
    len: AtomicUsize,
    writable: AtomicBool,
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    offset: AtomicU64,
}

static TABLE: [Entry; ENTRIES] = [const { Entry::free() }; ENTRIES];
static TICKETS: AtomicU64 = AtomicU64::new(1);

/// A registration by [`privatize_in_child`]; dropping it ends it, dropping the map does too.
#[derive(Debug)]
pub struct Privatized(u64);

/// Makes each forked child see the map as a private copy: the views that it inherits can be
/// read, and what it writes through them reaches nobody.
///
/// `fd` and `offset` are those that the map was made from. Where a child can't map it again, as
/// the descriptor was closed, it may only read. A second registration replaces the first; maps
/// that are private already need none, and get one without effect.
///
/// # Errors
///
/// `QuotaExceeded` if 1,024 maps are registered.
pub fn privatize_in_child(mapping: &Mapping, fd: &Memfd, offset: u64) -> io::Result<Privatized> {
    if mapping.access == Access::Private {
        return Ok(Privatized(0));
    }
    let free = |(_, entry): &(usize, &Entry)| entry.ticket.compare_exchange(0, BUSY, AcqRel, Relaxed).is_ok();
    let Some((index, entry)) = TABLE.iter().enumerate().find(free) else {
        let text = format!("{ENTRIES} maps are registered for fork already");
        return Err(io::Error::new(ErrorKind::QuotaExceeded, text));
    };
    entry.fill(mapping, fd, offset);
    let ticket = TICKETS.fetch_add(1, Relaxed) * ENTRIES as u64 + index as u64;
    entry.ticket.store(ticket, Release);
    deregister(mapping.ticket.swap(ticket, AcqRel));
    Ok(Privatized(ticket))
}

impl Drop for Privatized {
    fn drop(&mut self) {
        deregister(self.0);
    }
}

/// Frees the entry of this ticket, unless that has been done already.
pub(crate) fn deregister(ticket: u64) {
    if ticket != 0 {
        let entry = &TABLE[ticket as usize % ENTRIES];
        let _ = entry.ticket.compare_exchange(ticket, 0, AcqRel, Relaxed);
    }
}

impl Entry {
    const fn free() -> Entry {
        Entry {
            ticket: AtomicU64::new(0),
            start: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            fd: AtomicI32::new(0),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            offset: AtomicU64::new(0),
        }
    }

    fn fill(&self, mapping: &Mapping, fd: &Memfd, offset: u64) {
        let (device, inode) = fd.inode();
        self.start.store(mapping.ptr().as_ptr().cast(), Relaxed);
        self.len.store(mapping.len(), Relaxed);
        self.writable.store(mapping.access != Access::ReadOnly, Relaxed);
        self.fd.store(fd.raw(), Relaxed);
        self.device.store(device, Relaxed);
        self.inode.store(inode, Relaxed);
        self.offset.store(offset, Relaxed);
    }

    /// Runs in the child. Frees the entry, so that a grandchild keeps what the child wrote.
    fn privatize(&self) {
        let ticket = self.ticket.load(Acquire);
        if ticket == 0 || ticket == BUSY {
            return;
        }
        self.ticket.store(0, Release);
        let (start, len) = (self.start.load(Relaxed), self.len.load(Relaxed));
        // SAFETY: the entry is valid, so its map hasn't been dropped (`Mapping::drop` frees the
        // entry first), and this process has it at the same place as the parent.
        unsafe {
            let write = ProtFlags::READ | ProtFlags::WRITE;
            // A strict kernel may refuse a private map as large as this, unless it's read-only.
            let again = (self.writable.load(Relaxed) && self.map_again(start, len, write))
                || self.map_again(start, len, ProtFlags::READ);
            if !again {
                let _ = mprotect(start, len, MprotectFlags::READ);
            }
            let _ = madvise(start, len, Advice::LinuxDontDump);
        }
    }

    /// # Safety
    ///
    /// The range must be that of a live `Mapping`.
    unsafe fn map_again(&self, start: *mut c_void, len: usize, protection: ProtFlags) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let file = (self.device.load(Relaxed), self.inode.load(Relaxed));
        let offset = self.offset.load(Relaxed);
        // SAFETY: the number comes from a `Memfd`, so it isn't -1.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd.load(Relaxed)) };
        // SAFETY: the range is replaced by another map of the same part of the same file, which
        // keeps every pointer into it valid.
        shows(fd, file) && unsafe { mmap(start, len, protection, flags, fd, offset) }.is_ok()
    }
}

// Handlers.

/// What a layer above does around a fork. `child` must be async-signal-safe.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Runs in the parent, before.
    pub prepare: fn(),
    /// Runs in the parent, after.
    pub parent: fn(),
    /// Runs in the child, which has a new cookie and private maps by then.
    pub child: fn(),
}

static HOOKS: [OnceLock<Hooks>; 8] = [const { OnceLock::new() }; 8];
static FORKING: AtomicBool = AtomicBool::new(false);

/// Adds hooks for the rest of the process's life; they run in the order in which they came.
///
/// # Panics
///
/// At the ninth set of hooks.
pub fn on_fork(hooks: Hooks) {
    let added = HOOKS.iter().any(|place| place.set(hooks).is_ok());
    assert!(added, "there is room for {} sets of fork hooks only", HOOKS.len());
}

/// Runs `section` while no other thread is in the middle of a fork; it must be short, must not
/// fork, and must not be nested.
pub(crate) fn without_fork<T>(section: impl FnOnce() -> T) -> T {
    struct Unlock;
    impl Drop for Unlock {
        fn drop(&mut self) {
            FORKING.store(false, Release);
        }
    }
    lock();
    let _unlock = Unlock;
    section()
}

fn lock() {
    while FORKING.swap(true, Acquire) {
        rustix::thread::sched_yield();
    }
}

/// Registers the handlers when the program or library is loaded. Later would be a race: a thread
/// that relies on them could fork while another is about to register them. The number lets it run
/// before constructors without one, which may fork too.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static AT_LOAD: extern "C" fn() = install;

extern "C" fn install() {
    // SAFETY: the handlers live as long as the program text, and `in_child` is
    // async-signal-safe as long as the hooks are, which `Hooks` asks for.
    let error = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
    assert_eq!(error, 0, "registering fork handlers failed");
}

fn hooks() -> impl Iterator<Item = &'static Hooks> {
    HOOKS.iter().map_while(OnceLock::get)
}

unsafe extern "C" fn prepare() {
    hooks().for_each(|hooks| (hooks.prepare)());
    lock();
}

unsafe extern "C" fn in_parent() {
    FORKING.store(false, Release);
    hooks().for_each(|hooks| (hooks.parent)());
}

unsafe extern "C" fn in_child() {
    FORKING.store(false, Release);
    let page = COOKIE.load(Acquire);
    if !page.is_null() {
        // SAFETY: `new_cookie_page` mapped it, and it is never unmapped.
        unsafe { &*page }.store(0, Relaxed);
    }
    TABLE.iter().for_each(Entry::privatize);
    hooks().for_each(|hooks| (hooks.child)());
}
