//! A pool of slots that go from process to process.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::attachment::Attachment;
use crate::board::{Claim, Phase, Store};
use crate::claim::{self, Wait};
use crate::config::Options;
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::field::Field;
use crate::handle::Handle;
use crate::hold::Hold;
use crate::lease::{ReadLease, WriteLease};
use crate::memory::Pages;
use crate::process::Link;
use crate::ring::{Ring, nearest};
use crate::status::{self, PoolStatus};
use crate::sweep::Swept;
use crate::word::Move;

/// A pool of slots in shared memory.
///
/// Cheap to send anywhere as a [`Handle`]. All operations take `&self` and may be called from any
/// thread. A forked child that uses an inherited `Pool` joins as a member of its own.
///
/// # Examples
///
/// ```
/// use ropeway::{Field, Options, Pool};
///
/// let image = Field::new("image", "<f4", 4, &[2, 3, 8, 8])?;
/// let pool = Pool::create(&Options::new(2).fields(vec![image]))?;
///
/// let mut slot = pool.acquire()?;
/// slot.slice_mut::<f32>("image")?.fill(1.5);
/// slot.publish()?;
///
/// let slot = pool.take()?; // here, or in another process that has `pool.handle()`
/// assert_eq!(slot.slice::<f32>("image")?.iter().sum::<f32>(), 1.5 * 384.0);
/// slot.release()?;
/// # Ok::<(), ropeway::Error>(())
/// ```
pub struct Pool(Link);

impl Pool {
    /// Makes a pool. It closes when this process drops its last part of it, or dies.
    pub fn create(options: &Options) -> Result<Pool> {
        Attachment::create(options).map(|at| Pool(Link::new(at)))
    }

    /// Opens a pool by a handle. The same pool in the same process is the same membership.
    pub fn attach(handle: &Handle) -> Result<Pool> {
        Attachment::attach(handle).map(|at| Pool(Link::new(at)))
    }

    /// Opens the pool of that name, made by a process of the same user.
    pub fn find(name: &str) -> Result<Pool> {
        Attachment::find(name).map(|at| Pool(Link::new(at)))
    }

    /// What to send to a process that is to open this pool.
    pub fn handle(&self) -> Result<Handle> {
        Ok(self.0.get()?.handle())
    }

    /// How messages call the pool.
    pub fn label(&self) -> String {
        self.0.inherited().config().label()
    }

    /// The pool's name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.inherited().config().name.as_deref()
    }

    /// The pool's unique id.
    pub fn id(&self) -> [u8; 16] {
        self.0.inherited().config().id
    }

    /// Names of the stages.
    pub fn stages(&self) -> &[String] {
        &self.0.inherited().config().stages
    }

    /// The arrays of every slot, if they are fixed.
    pub fn fields(&self) -> Option<&[Field]> {
        self.0.inherited().config().fields.as_deref()
    }

    /// True when all slots of one field form one contiguous array.
    pub fn is_packed(&self) -> bool {
        self.0.inherited().regions.is_some()
    }

    // ---- acquiring --------------------------------------------------------------------------

    /// Takes a free slot to fill, waiting as long as it takes.
    pub fn acquire(&self) -> Result<WriteLease> {
        self.acquire_with(&mut Wait::new(None, &mut || true))
    }

    /// Takes a free slot to fill if there is one now.
    pub fn try_acquire(&self) -> Result<WriteLease> {
        self.acquire_timeout(Duration::ZERO)
    }

    /// Takes a free slot to fill, waiting at most for `timeout`.
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<WriteLease> {
        self.acquire_with(&mut Wait::new(Some(timeout), &mut || true))
    }

    /// Takes a free slot to fill.
    pub fn acquire_with(&self, wait: &mut Wait<'_>) -> Result<WriteLease> {
        let at = self.0.get()?;
        let claim = match claim::free(at) {
            Some(found) => found,
            None => claim::wait_for(at, 0, wait, || claim::free(at), || None)?,
        };
        let claim = claim.map_err(|phase| claim::over(at, 0, phase))?;
        let lease = filling(at.clone(), claim);
        if !lease.is_prepared() {
            wait.run(|pulse| lease.prepare(pulse))?;
        }
        Ok(lease)
    }

    // ---- taking -----------------------------------------------------------------------------

    /// Takes the slot that was published first to the last stage, to read.
    pub fn take(&self) -> Result<ReadLease> {
        self.take_with(None, &mut Wait::new(None, &mut || true))
    }

    /// Takes a slot to read if there is one now.
    pub fn try_take(&self) -> Result<ReadLease> {
        self.take_timeout(Duration::ZERO)
    }

    /// Takes a slot to read, waiting at most for `timeout`.
    pub fn take_timeout(&self, timeout: Duration) -> Result<ReadLease> {
        self.take_with(None, &mut Wait::new(Some(timeout), &mut || true))
    }

    /// Takes a slot to read. If this process dies it is delivered again.
    pub fn take_with(&self, number: Option<u64>, wait: &mut Wait<'_>) -> Result<ReadLease> {
        let at = self.0.get()?;
        let last = at.config().rules.last;
        Ok(ReadLease(claim::take(at, last, false, number, wait)?))
    }

    /// Takes a slot to read, as [`take_with`](Self::take_with), and looks at it through pages of
    /// that kind.
    pub fn take_through(&self, pages: Pages, number: Option<u64>, wait: &mut Wait<'_>) -> Result<ReadLease> {
        self.0.get()?.memory.prepare(pages)?;
        self.take_with(number, wait).map(|lease| lease.through(pages))
    }

    /// Takes a slot at a stage to write, waiting as long as it takes.
    pub fn take_mut(&self, stage: &str) -> Result<WriteLease> {
        self.take_mut_with(stage, None, &mut Wait::new(None, &mut || true))
    }

    /// Takes a slot at a stage (any but the first) to write. If this process dies, what it may have
    /// half changed is not delivered but reported as lost.
    pub fn take_mut_with(&self, stage: &str, number: Option<u64>, wait: &mut Wait<'_>) -> Result<WriteLease> {
        let at = self.0.get()?;
        let index = middle_or_last(at, stage)?;
        Ok(WriteLease(claim::take(at, index, true, number, wait)?))
    }

    // ---- the whole pool ---------------------------------------------------------------------

    /// Lets no new slot begin; what is filled or being filled can still be taken.
    pub fn close(&self) -> Result<()> {
        self.0.get()?.board.enter(Phase::Closed);
        Ok(())
    }

    /// Ends every wait now; nothing is published any more.
    pub fn abort(&self) -> Result<()> {
        self.0.get()?.board.enter(Phase::Aborted);
        Ok(())
    }

    /// The phase that the pool is in.
    pub fn phase(&self) -> Phase {
        self.0.inherited().board.phase()
    }

    /// How many slots wait at a stage; a look, and out of date at once.
    pub fn waiting(&self, stage: &str) -> Result<usize> {
        let at = self.0.get()?;
        let index = at.config().stage(stage)?;
        if at.sweep_due() {
            at.board.sweep();
        }
        let control = &at.board.0;
        Ok((0..control.slots()).filter(|&slot| control.slot(slot).load().is_idle_at(index)).count())
    }

    /// True when as many messages are filling or waiting as the pool's limit allows.
    pub fn is_full(&self) -> Result<bool> {
        Ok(!self.0.get()?.board.has_room(0))
    }

    /// Takes back what the dead held. Waiters do this by themselves.
    pub fn sweep(&self) -> Result<Swept> {
        Ok(self.0.get()?.board.sweep())
    }

    /// Takes every slot that waits and gives it back unread; the number of them.
    pub fn discard(&self) -> Result<usize> {
        let mut dropped = 0;
        while let Ok(lease) = self.try_take() {
            lease.end();
            dropped += 1;
        }
        Ok(dropped)
    }

    /// Takes free slots from index `keep` on out of a pool that can add slots, and gives their memory
    /// back to the system; the number of them. They come back when slots are short.
    pub fn trim(&self, keep: usize) -> Result<usize> {
        let at = self.0.get()?;
        let (board, me, config) = (&at.board, at.me, at.config());
        if config.slots >= config.max_slots || at.regions.is_some() {
            return Ok(0);
        }
        let mut trimmed = 0;
        for slot in (keep.max(config.slots)..board.0.slots()).rev() {
            let word = board.0.slot(slot).load();
            if !word.is_idle_at(0) {
                continue;
            }
            let Some(claim) = board.claim(slot, word, Move::Acquire { me }) else { continue };
            if let Err(e) = at.memory.punch(&board.0, slot) {
                board.move_on(claim, Move::Release { me });
                return Err(e);
            }
            trimmed += usize::from(board.move_on(claim, Move::Drop { me }));
        }
        Ok(trimmed)
    }

    /// All slots of one field of a packed pool: first byte, bytes, and the field.
    ///
    /// The bytes belong to whoever holds the slots; reading others tears.
    pub fn ring(&self, name: &str) -> Result<Ring> {
        let at = self.0.get()?;
        let config = at.config();
        let fields = config.fields.as_deref().unwrap_or(&[]);
        let index = fields.iter().position(|f| f.name == name).ok_or_else(|| {
            let names: Vec<_> = fields.iter().map(|f| f.name.as_str()).collect();
            Error::NoSuch(format!("{}: no field {name:?}; it has {names:?}", config.label()))
        })?;
        let Some(regions) = &at.regions else {
            let odd = fields.iter().find(|f| !f.bytes().is_multiple_of(64) || f.bytes() == 0);
            let why = odd.map_or("its slots are arenas".into(), |f| {
                format!(
                    "field {:?} has {} bytes in a slot; make it a multiple of 64, {}",
                    f.name,
                    f.bytes(),
                    nearest(f)
                )
            });
            return Err(Error::Invalid(format!("{}: it has no ring of {name:?}: {why}", config.label())));
        };
        let (field, base) = (fields[index].clone(), regions[index]);
        Ok(Ring { slots: config.max_slots, base, field, at: at.clone() })
    }

    /// Who holds what, since when; what waits where; what was lost.
    pub fn status(&self) -> PoolStatus {
        let at = self.0.inherited();
        let mut status = status::read(&at.board);
        for slot in status.slots.iter_mut().filter(|_| at.is_mine()) {
            slot.exports = at.exports.of(slot.index, at.config().fields.as_deref());
        }
        status
    }
}

/// Index of a stage from which slots are taken.
fn middle_or_last(at: &Attachment, stage: &str) -> Result<usize> {
    match at.config().stage(stage)? {
        0 => Err(Error::NoSuch(format!(
            "{}: slots at the first stage, {stage:?}, are acquired, not taken",
            at.config().label()
        ))),
        index => Ok(index),
    }
}

/// A lease on a slot that was claimed at the first stage.
fn filling(at: Arc<Attachment>, claim: Claim) -> WriteLease {
    at.hint.store(claim.index as u32 + 1, Relaxed);
    at.board.0.slot(claim.index).number.store(0, Relaxed);
    Contents::clear(&at, claim.index);
    WriteLease(Hold::new(at, claim))
}
