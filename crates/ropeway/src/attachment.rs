#![allow(unsafe_code)]
//! A process's place in a pool: the mapped segments, its membership, its patience.
//!
//! One attachment per process and pool: unpickling a pool that is open already gives the same one.
//! Whoever holds an `Arc` of it (pool objects, leases, exports) keeps the memory mapped and the
//! membership alive; closing a pool never unmaps. A forked child inherits the bytes of all this but
//! none of the rights: the cookie tells, and the child attaches anew when it first uses the pool.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32 as LocalU32, AtomicU64 as LocalU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ropeway_sys::liveness::Alive;
use ropeway_sys::memfd::Memfd;
use ropeway_sys::names::{self, Name};
use ropeway_sys::{fork, limits, process};

use crate::board::{Board, Phase, Store, Tenancy};
use crate::config::{Config, Options, hex};
use crate::error::{Error, Result};
use crate::handle::{Handle, Route};
use crate::layout::{Control, POOL_END, creator_tag};
use crate::memory::{Memory, segment_len};
use crate::wait::{SLICE, Spin};
use crate::word::{MAX_MEMBERS, Word};

/// This process's membership of one pool.
pub(crate) struct Attachment {
    pub board: Board<Control>,
    pub memory: Memory,
    /// Bases of the fields of a packed pool.
    pub regions: Option<Vec<u64>>,
    pub me: usize,
    pub tenancy: Tenancy,
    pub cookie: u64,
    pub spins: Vec<Spin>,
    /// Where the last free slot was found; the next search begins behind it.
    pub hint: LocalU32,
    pub creator: bool,
    pub leaving: AtomicBool,
    swept_at: LocalU64,
    alive: Mutex<Option<Alive>>,
    _name: Option<Name>,
}

impl Attachment {
    /// Makes a pool and joins it.
    pub fn create(options: &Options) -> Result<Arc<Attachment>> {
        let mut config = Config::new(options, process::random_id())?;
        let data_len = segment_len(&config);
        let memory = Memory::create(data_len, &config.label(), false)?;
        (config.data_len, config.data_inode) = (data_len, memory.fd.inode());
        config.creator_pid = process::pid();
        let control = Control::create(config, POOL_END)?;
        for index in 0..control.config.slots {
            control.slot(index).word.store(Word::FREE.0, Relaxed);
        }
        control.header().slots.0.store(control.config.slots as u32, Release);
        let name = match &control.config.name {
            None => None,
            Some(name) => Some(Name::bind(name, control.fd.raw()).map_err(Error::system(format!(
                "pool {name:?}: can't take the name (is there another pool of that name?)"
            )))?),
        };
        let attachment = Attachment::join(control, memory, name, true)?;
        let config = attachment.config();
        if let Some(bytes) = config.slot_bytes() {
            let all = bytes.saturating_mul(config.slots as u64);
            attachment.memory.check_promise(&attachment.board.0, attachment.me, all)?;
        }
        let attachment = Arc::new(attachment);
        Process::current().remember(&attachment);
        Ok(attachment)
    }

    /// Opens a pool by its handle, or gives back the attachment that this process has.
    pub fn attach(handle: &Handle) -> Result<Arc<Attachment>> {
        let here = Process::current();
        let mut attached = here.lock();
        if let Some(found) = attached.get(&handle.id).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let mut tried = Vec::new();
        for route in &handle.routes {
            match open_control(route.pid, route.control, Some(handle.id)) {
                Ok(control) => {
                    let attachment = Arc::new(Attachment::open(control, Some(*route))?);
                    attached.insert(handle.id, Arc::downgrade(&attachment));
                    return Ok(attachment);
                }
                Err(e @ Error::Incompatible(_)) => return Err(e),
                Err(e) => tried.push(format!("process {}: {e}", route.pid)),
            }
        }
        Err(Error::Gone(format!(
            "pool {}: no process that the handle names has it open any more ({})",
            hex(&handle.id[..4]),
            tried.join("; ")
        )))
    }

    /// Opens the pool of that name.
    pub fn find(name: &str) -> Result<Arc<Attachment>> {
        let found = names::list().map_err(Error::system("can't read the list of names"))?;
        let mut tried = Vec::new();
        for entry in found.iter().filter(|f| f.name == name) {
            match open_control(entry.pid, entry.fd, None) {
                Ok(control) if control.config.name.as_deref() == Some(name) => {
                    let here = Process::current();
                    let mut attached = here.lock();
                    let id = control.config.id;
                    if let Some(open) = attached.get(&id).and_then(Weak::upgrade) {
                        return Ok(open);
                    }
                    let attachment = Arc::new(Attachment::open(control, None)?);
                    attached.insert(id, Arc::downgrade(&attachment));
                    return Ok(attachment);
                }
                Ok(control) => {
                    tried.push(format!("process {} has {} there", entry.pid, control.config.label()))
                }
                Err(e @ Error::Incompatible(_)) => return Err(e),
                Err(e) => tried.push(format!("process {}: {e}", entry.pid)),
            }
        }
        let others: Vec<_> = found.iter().map(|f| f.name.as_str()).collect();
        Err(Error::Gone(match tried.is_empty() {
            true => format!("no pool is named {name:?}; there are {others:?}"),
            false => format!("pool {name:?} can't be opened: {}", tried.join("; ")),
        }))
    }

    fn open(control: Control, route: Option<Route>) -> Result<Attachment> {
        let data = open_data(&control, route)?;
        let memory = Memory::open(data, &control.config, false)?;
        Attachment::join(control, memory, None, false)
    }

    fn join(control: Control, memory: Memory, name: Option<Name>, creator: bool) -> Result<Attachment> {
        let longest = match std::env::var("ROPEWAY_SPIN").ok().and_then(|us| us.parse().ok()) {
            Some(us) => Duration::from_micros(us),
            None if limits::cpus() < 2 => Duration::ZERO,
            None => Duration::from_micros(100),
        };
        let spins = control.config.stages.iter().map(|_| Spin::new(longest)).collect();
        let regions = if control.config.is_packed() { control.config.regions() } else { None };
        let board = Board(control);
        let (me, tenancy, alive) = become_member(&board)?;
        let entry = board.0.member_entry(me);
        entry.pid.store(process::pid().into(), Relaxed);
        entry.start_time.store(process::start_time(process::pid()).unwrap_or(0), Relaxed);
        entry.pid_namespace.store(process::pid_namespace(), Relaxed);
        let descriptors = u64::from(board.0.fd.raw() as u32) | u64::from(memory.fd.raw() as u32) << 32;
        entry.descriptors.store(descriptors, Relaxed);
        entry.announced.store(0, Relaxed);
        if creator {
            board.0.header().creator.0.store(creator_tag(me, tenancy), Release);
        }
        Ok(Attachment {
            board,
            memory,
            regions,
            me,
            tenancy,
            cookie: fork::cookie(),
            spins,
            hint: LocalU32::new(0),
            creator,
            leaving: AtomicBool::new(false),
            swept_at: LocalU64::new(0),
            alive: Mutex::new(Some(alive)),
            _name: name,
        })
    }

    pub fn config(&self) -> &Config {
        &self.board.0.config
    }

    /// False in a forked child, which has inherited this object and none of its rights.
    pub fn is_mine(&self) -> bool {
        self.cookie == fork::cookie()
    }

    /// True, once, when this process hasn't looked for the dead for a slice.
    pub fn sweep_due(&self) -> bool {
        let now = process::monotonic_coarse_ns();
        let last = self.swept_at.load(Relaxed);
        now.saturating_sub(last) >= SLICE.as_nanos() as u64
            && self.swept_at.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
    }

    /// A handle that names this process and the creator.
    pub fn handle(&self) -> Handle {
        let mine = Route { pid: process::pid(), control: self.board.0.fd.raw(), data: self.memory.fd.raw() };
        let mut routes = vec![mine];
        let tag = self.board.0.header().creator.0.load(Acquire) & 0xffff;
        if let Some(index) = (tag as usize).checked_sub(1).filter(|&k| k < MAX_MEMBERS && k != self.me) {
            routes.push(route_of(&self.board.0, index));
        }
        Handle { id: self.config().id, routes }
    }

    /// The same pool again for a forked child, as a member of its own.
    pub fn again(&self) -> Result<Arc<Attachment>> {
        let id = self.config().id;
        let mine = Route { pid: process::pid(), control: self.board.0.fd.raw(), data: self.memory.fd.raw() };
        let parent = (0..self.board.0.members()).map(|k| route_of(&self.board.0, k));
        let routes = std::iter::once(mine).chain(parent).filter(|r| r.pid != 0).collect();
        Attachment::attach(&Handle { id, routes })
    }

    /// Marks the membership as cleanly left: what it read is consumed, and it claims nothing more.
    pub fn leave(&self) {
        if !self.is_mine() || self.leaving.swap(true, AcqRel) {
            return;
        }
        if self.creator {
            self.board.enter(Phase::Closed);
        }
        self.board.leave(self.me, self.tenancy);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.is_mine() {
            return;
        }
        self.leave();
        // Nothing is held any more, so the entry goes while the lock is still there to guard it.
        self.board.depart(self.me);
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn route_of(control: &Control, member: usize) -> Route {
    let entry = control.member_entry(member);
    let descriptors = entry.descriptors.load(Relaxed);
    let live = control.member(member).load(Acquire) & 1 != 0;
    let pid = if live { entry.pid.load(Relaxed) as u32 } else { 0 };
    Route { pid, control: descriptors as u32 as i32, data: (descriptors >> 32) as u32 as i32 }
}

fn open_control(pid: u32, fd: i32, id: Option<[u8; 16]>) -> Result<Control> {
    let memfd =
        Memfd::open_peer(pid, fd).map_err(Error::system(format!("descriptor {fd} can't be opened")))?;
    let control = Control::open(memfd, POOL_END)?;
    match id {
        Some(id) if id != control.config.id => {
            Err(Error::Gone(format!("descriptor {fd} is another pool now")))
        }
        _ => Ok(control),
    }
}

/// Opens the data segment through the given route, or through any live member.
fn open_data(control: &Control, first: Option<Route>) -> Result<Memfd> {
    let members = (0..control.members()).map(|k| route_of(control, k));
    let mut last = Error::Gone(format!("{}: no member has its data segment open", control.config.label()));
    for route in first.into_iter().chain(members).filter(|r| r.pid != 0) {
        match Memfd::open_peer(route.pid, route.data) {
            Ok(fd) if fd.inode() == control.config.data_inode => return Ok(fd),
            Ok(_) => {}
            Err(e) => {
                last = Error::system(format!("{}: can't open its data segment", control.config.label()))(e)
            }
        }
    }
    Err(last)
}

/// Locks a free member index and claims it: the lock first, so that no sweep meets a newborn.
fn become_member(board: &Board<Control>) -> Result<(usize, Tenancy, Alive)> {
    let what = board.0.config.label();
    for round in 0..2 {
        for index in 0..MAX_MEMBERS {
            if board.tenancy(index).is_live() {
                continue;
            }
            let lock = Alive::hold(&board.0.fd, Control::lock_byte(index))
                .map_err(Error::system(format!("{what}: can't hold a member's lock")))?;
            let Some(lock) = lock else { continue };
            board.0.header().members.0.fetch_max(index as u32 + 1, AcqRel);
            if let Some(tenancy) = board.join(index) {
                return Ok((index, tenancy, lock));
            }
        }
        if round == 0 {
            board.sweep();
        }
    }
    Err(Error::Incompatible(format!("{what}: it has {MAX_MEMBERS} members already, no more fit")))
}

/// What this process has open. A forked child leaves its parent's behind and makes its own.
pub(crate) struct Process {
    cookie: u64,
    attached: Mutex<HashMap<[u8; 16], Weak<Attachment>>>,
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
        let fresh = Box::into_raw(Box::new(Process { cookie, attached: Mutex::default() }));
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

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 16], Weak<Attachment>>> {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.retain(|_, weak| weak.strong_count() > 0);
        attached
    }

    fn remember(&self, attachment: &Arc<Attachment>) {
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
