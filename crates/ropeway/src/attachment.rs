//! A process's place in a pool: the mapped segments, its membership, its patience.
//!
//! One attachment per process and pool: unpickling a pool that is open already gives the same one.
//! Whoever holds an `Arc` of it (pool objects, leases, exports) keeps the memory mapped and the
//! membership alive; closing a pool never unmaps. A forked child inherits the bytes of all this but
//! none of the rights: the cookie tells, and the child attaches anew when it first uses the pool.

use std::sync::atomic::{AtomicBool, AtomicU32 as LocalU32, AtomicU64 as LocalU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ropeway_sys::liveness::Alive;
use ropeway_sys::names::{self, Found, Name};
use ropeway_sys::{fork, process};

use crate::board::{Board, Phase, Store, Taken};
use crate::config::{Config, Options, hex};
use crate::error::{Error, Result};
use crate::exports::Exports;
use crate::guard::Guard;
use crate::handle::{Handle, Route};
use crate::layout::{ARENA_END, Control, POOL_END, creator_tag};
use crate::member::{Membership, claim_entry, introduce, open_control, open_data, route_of};
use crate::memory::{Memory, segment_len};
use crate::process::Process;
use crate::sweep::Tenancy;
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
    /// What it has taken at each stage.
    pub taken: Vec<Taken>,
    /// Deaths that this process has been told of.
    pub mourned: LocalU64,
    pub leaving: AtomicBool,
    pub exports: Exports,
    /// Traps for stale pointers, where they are asked for.
    pub guard: Option<Guard>,
    swept_at: LocalU64,
    /// Counts leases, roughly.
    leases: LocalU32,
    alive: Mutex<Option<Alive>>,
    _name: Option<Name>,
}

impl Attachment {
    /// Makes a pool and joins it.
    pub fn create(options: &Options) -> Result<Arc<Attachment>> {
        let attachment = Arc::new(Attachment::found(options, POOL_END)?);
        let config = attachment.config();
        if let Some(bytes) = config.slot_bytes() {
            let all = bytes.saturating_mul(config.slots as u64);
            attachment.memory.check_promise(&attachment.board.0, attachment.me, all)?;
        }
        Process::current().remember(&attachment);
        Ok(attachment)
    }

    /// Makes the segments, with a control segment of that length, and joins as the first member.
    pub fn found(options: &Options, control_len: usize) -> Result<Attachment> {
        let mut config = Config::new(options, process::random_id())?;
        let data_len = segment_len(&config);
        let memory = Memory::create(data_len, &config.label(), control_len != ARENA_END)?;
        (config.data_len, config.data_inode) = (data_len, memory.fd.inode());
        config.creator_pid = process::pid();
        let control = Control::create(config, control_len)?;
        for index in 0..control.config.slots {
            control.slot(index).word.store(Word::FREE.0, Relaxed);
        }
        control.header().slots.0.store(control.config.slots as u32, Release);
        let name = control.config.name.as_deref().map(|name| take_name(name, &control)).transpose()?;
        let board = Board(control);
        let member = claim_entry(&board, Alive::hold)?;
        Ok(Attachment::join(board, memory, name, member, true))
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
            match open_control(route.pid, route.control, Some(handle.id), POOL_END) {
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
            "pool {}: no process that the handle names has it open any more, or none in this PID namespace ({})",
            hex(&handle.id[..4]),
            tried.join("; ")
        )))
    }

    /// Opens the pool of that name.
    ///
    /// Anybody can bind any name, so an entry that leads to nothing or to something else is passed over.
    pub fn find(name: &str) -> Result<Arc<Attachment>> {
        let found = names::list().map_err(Error::system("can't read the list of names"))?;
        let (mut tried, mut strange) = (Vec::new(), false);
        for entry in found.iter().filter(|f| f.name == name) {
            match Attachment::open_named(name, entry) {
                Ok(attachment) => return Ok(attachment),
                Err(e) => {
                    strange |= matches!(e, Error::Incompatible(_));
                    tried.push(format!("process {}: {e}", entry.pid));
                }
            }
        }
        let others: Vec<_> = found.iter().map(|f| f.name.as_str()).collect();
        let tried = tried.join("; ");
        Err(match tried.is_empty() {
            true if others.is_empty() => Error::Gone(format!("no pool is named {name:?}, nor any other")),
            true => Error::Gone(format!("no pool is named {name:?}; there are {others:?}")),
            false if strange => Error::Incompatible(format!("pool {name:?} can't be opened: {tried}")),
            false => Error::Gone(format!("pool {name:?} can't be opened: {tried}")),
        })
    }

    fn open_named(name: &str, entry: &Found) -> Result<Arc<Attachment>> {
        let control = open_control(entry.pid, entry.fd, None, POOL_END)?;
        if control.config.name.as_deref() != Some(name) {
            return Err(Error::Gone(format!("it has {} there", control.config.label())));
        }
        let here = Process::current();
        let mut attached = here.lock();
        let id = control.config.id;
        if let Some(open) = attached.get(&id).and_then(Weak::upgrade) {
            return Ok(open);
        }
        let attachment = Arc::new(Attachment::open(control, None)?);
        attached.insert(id, Arc::downgrade(&attachment));
        Ok(attachment)
    }

    pub fn open(control: Control, route: Option<Route>) -> Result<Attachment> {
        let data = open_data(&control, route)?;
        let memory = Memory::open(data, &control.config, !control.has_marks())?;
        let board = Board(control);
        let member = claim_entry(&board, Alive::hold)?;
        Ok(Attachment::join(board, memory, None, member, false))
    }

    fn join(
        board: Board<Control>,
        memory: Memory,
        name: Option<Name>,
        member: Membership,
        creator: bool,
    ) -> Attachment {
        let longest = match std::env::var("ROPEWAY_SPIN").ok().and_then(|us| us.parse().ok()) {
            Some(us) => Duration::from_micros(us),
            None => Duration::from_micros(100),
        };
        let spins = board.0.config.stages.iter().map(|_| Spin::new(longest)).collect();
        let taken = board.0.config.stages.iter().map(|_| Taken::default()).collect();
        let regions = if board.0.config.is_packed() { board.0.config.regions() } else { None };
        let Membership { me, tenancy, alive } = member;
        introduce(&board.0, me, process::pid(), memory.fd.raw());
        if creator {
            board.0.header().creator.0.store(creator_tag(me, tenancy), Release);
        }
        Attachment {
            board,
            memory,
            regions,
            me,
            tenancy,
            cookie: fork::cookie(),
            spins,
            hint: LocalU32::new(0),
            creator,
            taken,
            mourned: LocalU64::new(0),
            leaving: AtomicBool::new(false),
            exports: Exports::new(),
            guard: Guard::from_environment(),
            swept_at: LocalU64::new(0),
            leases: LocalU32::new(0),
            alive: Mutex::new(Some(alive)),
            _name: name,
        }
    }

    pub fn config(&self) -> &Config {
        &self.board.0.config
    }

    /// False in a forked child, which has inherited this object and none of its rights.
    pub fn is_mine(&self) -> bool {
        self.cookie == fork::cookie()
    }

    /// Where a search for a free slot begins.
    pub fn next_free(&self) -> usize {
        let hint = self.hint.load(Relaxed) as usize;
        if hint < self.board.0.slots() { hint } else { 0 }
    }

    /// True, once, when this process hasn't looked for the dead for a slice.
    pub fn sweep_due(&self) -> bool {
        // The coarse clock is cheap; a slice may seem a tick shorter by it than it was.
        const TICK: Duration = Duration::from_millis(10);
        let now = process::monotonic_coarse_ns();
        let last = self.swept_at.load(Relaxed);
        now.saturating_sub(last) >= (SLICE - TICK).as_nanos() as u64
            && self.swept_at.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
    }

    /// Looks for the dead now and then, where nobody ever waits: at every 64th lease, if that is due.
    pub fn look_around(&self) {
        let leases = self.leases.load(Relaxed).wrapping_add(1);
        self.leases.store(leases, Relaxed);
        if leases.is_multiple_of(64) && self.sweep_due() {
            self.board.sweep();
        }
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

/// Takes a name, unless a living process of this user has a pool of that name.
fn take_name(name: &str, control: &Control) -> Result<Name> {
    let taken = names::list().unwrap_or_default();
    let bears_it = |f: &&Found| {
        open_control(f.pid, f.fd, None, POOL_END).is_ok_and(|c| c.config.name.as_deref() == Some(name))
    };
    let owner = taken.iter().filter(|f| f.name == name).find(bears_it);
    if let Some(owner) = owner {
        return Err(Error::Invalid(format!(
            "a pool named {name:?} exists already, made by process {}",
            owner.pid
        )));
    }
    Name::bind(name, control.fd.raw())
        .map_err(Error::system(format!("can't take the name {name:?} for a pool")))
}
