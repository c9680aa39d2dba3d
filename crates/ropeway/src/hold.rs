//! One held slot, and the word that says when it may move on.
//!
//! A lease counts its exports: one for each base array, buffer or capsule. The count and the end
//! of the lease are one word, so the slot moves on exactly once, when the lease has ended and the
//! last export is gone, from whatever thread. Ending allocates nothing, needs no interpreter, and takes
//! no lock but that of private pages, which nobody holds by then.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64 as LocalU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use ropeway_sys::mapping::Mapping;

use crate::attachment::Attachment;
use crate::board::{Claim, Store};
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::exports::{Kind, Listed};
use crate::field::{Element, Field};
use crate::growth::Growth;
use crate::memory::{Pages, Span};
use crate::word::{Move, State};

/// Set in `uses` when the lease has ended; the lowest bits count exports, 15 for each kind.
pub(crate) const ENDED: u64 = 1 << 63;
/// Set in `uses` while a thread changes what belongs to the slot.
pub(crate) const GROWING: u64 = 1 << 62;
const BITS: u32 = 15;
const MOST: u64 = (1 << BITS) - 1;

/// One export of that kind, in `uses`.
fn one(kind: Kind) -> u64 {
    1 << (kind as u32 * BITS)
}

/// How many exports of that kind `uses` counts.
fn count(uses: u64, kind: Kind) -> u64 {
    uses >> (kind as u32 * BITS) & MOST
}

/// How many exports `uses` counts.
pub(crate) fn total(uses: u64) -> u64 {
    Kind::ALL.into_iter().map(|kind| count(uses, kind)).sum()
}

/// One held slot.
pub(crate) struct Hold {
    pub at: Arc<Attachment>,
    pub claim: Claim,
    pub uses: LocalU64,
    /// The thread that has set [`GROWING`].
    pub grower: LocalU64,
    /// Made when somebody asks for them: most leases are over before.
    contents: Mutex<Option<Box<Contents>>>,
    /// True once anybody has looked at `contents`; there is nothing to write back before.
    pub touched: AtomicBool,
    /// Through which pages exports look.
    pub pages: Pages,
    /// Stretches that are mapped for this lease alone, if its pages are private.
    pub private: Option<Box<PrivateMaps>>,
}

/// Offset, map, and address of the first byte.
pub(crate) type PrivateMaps = Mutex<Vec<(u64, Mapping, usize)>>;

impl Hold {
    pub fn new(at: Arc<Attachment>, claim: Claim) -> Arc<Hold> {
        if let Some(guard) = &at.guard {
            guard.open(&at, claim.index);
        }
        at.look_around();
        Arc::new(Hold {
            at,
            claim,
            uses: LocalU64::new(0),
            grower: LocalU64::new(0),
            contents: Mutex::new(None),
            touched: AtomicBool::new(false),
            pages: Pages::Shared,
            private: None,
        })
    }

    /// How messages call the held slot.
    pub fn label(&self) -> String {
        let config = self.at.config();
        format!(
            "slot {} of {} at {:?}",
            self.claim.index,
            config.label(),
            config.stages[self.claim.word.stage()]
        )
    }

    /// Runs `work` on what lies in the slot; nobody else does meanwhile.
    pub fn contents<T>(&self, work: impl FnOnce(&mut Contents) -> T) -> T {
        self.touched.store(true, Release);
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        work(contents.get_or_insert_with(|| match self.claim.word.stage() {
            0 => Box::new(Contents::fresh()),
            _ => Box::new(Contents::published()),
        }))
    }

    pub fn writes(&self) -> bool {
        self.claim.word.state() == Some(State::HeldWrite)
    }

    pub fn check_open(&self) -> Result<()> {
        if !self.at.is_mine() {
            return Err(Error::Invalid(format!(
                "{}: the lease belongs to the parent of this process",
                self.label()
            )));
        }
        if self.uses.load(Acquire) & ENDED != 0 {
            return Err(self.ended());
        }
        Ok(())
    }

    #[cold]
    pub fn ended(&self) -> Error {
        Error::Invalid(format!("{}: the lease has ended (published or released)", self.label()))
    }

    /// Ends the lease, and the caller's turn to change it, if no export lives.
    pub fn end_unused(&self, verb: &str, growth: Option<Growth<'_>>) -> Result<()> {
        self.check_open()?;
        let own = if growth.is_some() { GROWING } else { 0 };
        match self.uses.compare_exchange(own, ENDED, AcqRel, Acquire) {
            Ok(_) => {
                std::mem::forget(growth);
                Ok(())
            }
            Err(uses) if uses & ENDED != 0 => self.check_open(),
            Err(uses) if uses & GROWING != own => Err(self.is_growing(verb)),
            Err(uses) => Err(Error::InUse(format!(
                "{}: {} {} of its arrays {} ({}; a view counts with its base), so it can't be {verb}; \
                 drop {} first, e.g. `del`, or write by `slot[name][...] = value`",
                self.label(),
                total(uses),
                if total(uses) == 1 { "view" } else { "views" },
                if total(uses) == 1 { "lives" } else { "live" },
                Listed(self.at.exports.of(self.claim.index, self.at.config().fields.as_deref())),
                if total(uses) == 1 { "it" } else { "them" },
            ))),
        }
    }

    /// Ends the lease; the slot is given back now, or when the last export goes.
    pub fn end(&self) {
        let before = self.uses.fetch_or(ENDED, AcqRel);
        if before & ENDED != 0 || !self.at.is_mine() {
            return;
        }
        if before == 0 {
            self.give_back();
        } else {
            self.at.board.0.slot(self.claim.index).thread.store(0, Relaxed);
        }
    }

    pub fn drop_export(&self, array: usize, kind: Kind) {
        self.at.exports.end(self.claim.index, array, kind);
        if self.uses.fetch_sub(one(kind), AcqRel) == ENDED + one(kind) {
            self.give_back();
        }
    }

    /// Counts one more export, unless the lease has ended and none lives.
    pub fn count_export(&self, array: usize, kind: Kind, ended_too: bool) -> Result<()> {
        let allowed = |uses: u64| uses & ENDED == 0 || ended_too && total(uses) > 0;
        let add = |uses| (allowed(uses) && count(uses, kind) < MOST).then(|| uses + one(kind));
        match self.uses.fetch_update(AcqRel, Acquire, add) {
            Ok(_) => self.at.exports.begin(self.claim.index, array, kind),
            Err(uses) if allowed(uses) => {
                return Err(Error::InUse(format!(
                    "{}: {MOST} of its {}s live already",
                    self.label(),
                    kind.name()
                )));
            }
            Err(_) => return Err(self.ended()),
        }
        Ok(())
    }

    /// Where exports see a stretch of the slot.
    pub fn address(&self, offset: u64, len: u64) -> Result<*mut u8> {
        let memory = &self.at.memory;
        match self.pages {
            Pages::ReadOnly => Ok(memory.at_read_only(offset)),
            Pages::Private if len > 0 => {
                let maps = self.private.as_ref().expect("`through` has made the list");
                let mut maps = maps.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((.., start)) = maps.iter().find(|(at, ..)| *at == offset) {
                    return Ok(std::ptr::with_exposed_provenance_mut(*start));
                }
                let span = Span { offset, len };
                let (map, start) = memory.private(&self.at.board.0, span, self.at.me, &self.label())?;
                maps.push((offset, map, start.expose_provenance()));
                Ok(start)
            }
            _ => Ok(memory.at(offset)),
        }
    }

    pub fn give_back(&self) {
        if !self.at.is_mine() {
            return;
        }
        if let Some(maps) = &self.private {
            // Nobody looks at them any more, and the lease may be kept as an object for long.
            let maps = std::mem::take(&mut *maps.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(guard) = &self.at.guard {
                maps.into_iter().for_each(|(_, map, _)| guard.bury(map));
            }
        }
        if let Some(guard) = &self.at.guard {
            guard.shut(&self.at, self.claim.index);
        }
        let (me, stage) = (self.at.me, self.claim.word.stage());
        let middle = stage != 0 && stage != self.at.config().rules.last;
        self.at.board.move_on(self.claim, if middle { Move::Abandon { me } } else { Move::Release { me } });
        if let Some(guard) = &self.at.guard {
            guard.poison(&self.at, self.claim.index);
        }
    }

    /// Runs `work` on an array by name, or the only one: which it is, and where it lies.
    #[inline]
    pub fn with_array<T>(&self, name: Option<&str>, work: impl FnOnce(usize, &Field, u64) -> T) -> Result<T> {
        if let (Some(regions), Some(fields)) = (&self.at.regions, &self.at.config().fields) {
            let wanted = |field: &Field| name.map_or(fields.len() == 1, |name| field.name == name);
            let index = fields.iter().position(wanted).ok_or_else(|| self.no_such(name))?;
            let (field, slot) = (&fields[index], self.claim.index as u64);
            return Ok(work(index, field, regions[index] + slot * field.bytes()));
        }
        let found = self.contents(|contents| contents.find(&self.at, self.claim.index, name))?;
        let (array, field, offset) = found.ok_or_else(|| self.no_such(name))?;
        if self.at.config().fields.is_none() {
            self.at.exports.name(self.claim.index, array, &field.name);
        }
        Ok(work(array, &field, offset))
    }

    pub fn fields(&self) -> Result<Cow<'_, [Field]>> {
        match &self.at.config().fields {
            Some(fields) if self.at.regions.is_some() => Ok(Cow::Borrowed(fields)),
            _ => self.contents(|contents| contents.fields(&self.at, self.claim.index)).map(Cow::Owned),
        }
    }

    #[cold]
    fn no_such(&self, name: Option<&str>) -> Error {
        let what = name.map_or("not one array".into(), |name| format!("no array {name:?}"));
        let fields = self.fields().unwrap_or_default();
        let names: Vec<_> = fields.iter().map(|f| f.name.as_str()).collect();
        Error::NoSuch(format!("{}: {what}; it has {names:?}", self.label()))
    }

    /// An export of an array that is to be seen as `T`s, and their number.
    pub fn elements<T: Element>(self: &Arc<Hold>, name: &str) -> Result<(Export, usize)> {
        self.check_open()?;
        self.with_array(Some(name), |array, field, offset| {
            if field.dtype != T::DTYPE {
                return Err(Error::Invalid(format!(
                    "{}: array {name:?} has dtype {}, asked for as {}",
                    self.label(),
                    field.dtype,
                    T::DTYPE
                )));
            }
            let export = Export::new(self, array, offset, field.bytes())?;
            Ok((export, field.bytes() as usize / size_of::<T>()))
        })?
    }
}
