//! Becoming a member of a pool, and the ways to those who are.

use std::sync::atomic::Ordering::*;

use ropeway_sys::liveness::Alive;
use ropeway_sys::memfd::Memfd;

use crate::board::{Board, Store};
use crate::error::{Error, Result};
use crate::handle::Route;
use crate::layout::Control;
use crate::sweep::Tenancy;
use crate::word::MAX_MEMBERS;

/// An entry in the table of members, and the lock that keeps it.
pub(crate) struct Membership {
    pub me: usize,
    pub tenancy: Tenancy,
    pub alive: Alive,
}

/// Writes into a member's entry what others may want to know of it.
pub(crate) fn introduce(control: &Control, me: usize, pid: u32, data: i32) {
    let entry = control.member_entry(me);
    entry.pid.store(pid.into(), Relaxed);
    let descriptors = u64::from(control.fd.raw() as u32) | u64::from(data as u32) << 32;
    entry.descriptors.store(descriptors, Relaxed);
}

/// The way to a member, with process id 0 if it doesn't live.
pub(crate) fn route_of(control: &Control, member: usize) -> Route {
    let entry = control.member_entry(member);
    let descriptors = entry.descriptors.load(Relaxed);
    let live = control.member(member).load(Acquire) & 1 != 0;
    let pid = if live { entry.pid.load(Relaxed) as u32 } else { 0 };
    Route { pid, control: descriptors as u32 as i32, data: (descriptors >> 32) as u32 as i32 }
}

/// Opens a control segment, which must be the one of `id` if that is given.
pub(crate) fn open_control(pid: u32, fd: i32, id: Option<[u8; 16]>, len: usize) -> Result<Control> {
    let memfd =
        Memfd::open_peer(pid, fd).map_err(Error::system(format!("descriptor {fd} can't be opened")))?;
    if id.is_some() && Control::id_of(&memfd)? != id {
        return Err(Error::Gone(format!("descriptor {fd} shows something else now")));
    }
    Control::open(memfd, len)
}

/// Opens the data segment through the given route, or through any live member.
pub(crate) fn open_data(control: &Control, first: Option<Route>) -> Result<Memfd> {
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

/// Locks a free member index in the way of `hold` and claims it: the lock first, so that no sweep
/// meets a newborn.
pub(crate) fn claim_entry(
    board: &Board<Control>,
    hold: fn(&Memfd, u64) -> std::io::Result<Option<Alive>>,
) -> Result<Membership> {
    let what = board.0.config.label();
    for round in 0..2 {
        for index in 0..MAX_MEMBERS {
            if board.tenancy(index).is_live() {
                continue;
            }
            let lock = hold(&board.0.fd, Control::lock_byte(index))
                .map_err(Error::system(format!("{what}: can't hold a member's lock")))?;
            let Some(lock) = lock else { continue };
            board.0.header().members.0.fetch_max(index as u32 + 1, AcqRel);
            // Whoever had the entry may have died in the middle of taking memory. A forked child, for
            // which it is claimed before there is one, may never come to say that it takes none.
            board.0.member_entry(index).announced.store(0, Relaxed);
            if let Some(tenancy) = board.join(index) {
                return Ok(Membership { me: index, tenancy, alive: lock });
            }
        }
        if round == 0 {
            board.sweep();
        }
    }
    Err(Error::Incompatible(format!("{what}: it has {MAX_MEMBERS} members already, no more fit")))
}
