//! The session: the tree of processes that share one arena, and what of it a process has open.

use std::sync::Arc;

use ropeway_sys::fork;

use crate::arena::{Arena, ArenaStatus};
use crate::attachment::Attachment;
use crate::config::hex;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::layout::ARENA_END;
use crate::member::open_control;
use crate::process::Process;

impl Arena {
    /// Whether this process still has the arena's memory open.
    pub fn has_descriptors(&self) -> bool {
        self.at.memory.fd.is_open()
    }

    /// The same arena as this process is a member of it.
    pub fn here(self: &Arc<Arena>) -> Arc<Arena> {
        if self.cookie == fork::cookie() {
            return self.clone();
        }
        let id = self.at.config().id;
        let arenas = Process::current().arenas();
        arenas.iter().find(|arena| arena.at.config().id == id).unwrap_or(self).clone()
    }
}

/// Joins the session that a parent process has named, or founds one; its text for the children.
pub fn join_session(inherited: Option<&str>) -> Result<String> {
    let here = Process::current();
    let mut arenas = here.arenas();
    if arenas.is_empty() {
        let parent = inherited.and_then(|text| open_arena(&unhex(text)?).ok());
        arenas.push(Arc::new(match parent {
            Some(arena) => arena,
            None => Arena::found()?,
        }));
    }
    Ok(hex(&arenas[0].handle().to_bytes()))
}

/// What this session's arena holds.
pub fn arena_status() -> Result<ArenaStatus> {
    let arena = session()?;
    let _open = arena.lock();
    arena.sweep(true);
    Ok(arena.status())
}

/// The arena of this session.
pub(crate) fn session() -> Result<Arc<Arena>> {
    let here = Process::current();
    let mut arenas = here.arenas();
    if arenas.is_empty() {
        arenas.push(Arc::new(Arena::found()?));
    }
    Ok(arenas[0].clone())
}

/// A new arena for the session, in the place of one that this process can make nothing in any more.
pub(crate) fn new_session() -> Result<Arc<Arena>> {
    let arena = Arc::new(Arena::found()?);
    Process::current().arenas().insert(0, arena.clone());
    Ok(arena)
}

/// The arena of a handle: one that is open here, or opened now.
pub(crate) fn arena_of(handle: &Handle) -> Result<Arc<Arena>> {
    let here = Process::current();
    let mut arenas = here.arenas();
    if let Some(found) = arenas.iter().find(|arena| arena.at.config().id == handle.id) {
        return Ok(found.clone());
    }
    let arena = Arc::new(open_arena(handle)?);
    arenas.push(arena.clone());
    Ok(arena)
}

fn open_arena(handle: &Handle) -> Result<Arena> {
    let mut tried = Vec::new();
    for route in &handle.routes {
        match open_control(route.pid, route.control, Some(handle.id), ARENA_END) {
            Ok(control) => return Ok(Arena::of(Attachment::open(control, Some(*route))?)),
            Err(e @ Error::Incompatible(_)) => return Err(e),
            Err(e) => tried.push(format!("process {}: {e}", route.pid)),
        }
    }
    Err(Error::Gone(format!(
        "arena {}: no process that the handle names has it open any more, or none in this PID namespace ({})",
        hex(&handle.id[..4]),
        tried.join("; ")
    )))
}

fn unhex(text: &str) -> Option<Handle> {
    let digits = text.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> =
        digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect();
    Handle::from_bytes(&bytes?).ok()
}
