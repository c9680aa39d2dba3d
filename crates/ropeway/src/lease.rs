#![allow(unsafe_code)]
//! The right to touch one slot, and the views that keep it.
//!
//! A lease counts its exports: one for each base array, buffer or capsule. The count and the end
//! of the lease are one word, so the slot moves on exactly once, when the lease has ended and the
//! last export is gone, from whatever thread. Ending allocates nothing, needs no interpreter, and takes
//! no lock but that of private pages, which nobody holds by then.

use std::borrow::Cow;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64 as LocalU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use ropeway_sys::mapping::Mapping;

use crate::attachment::Attachment;
use crate::board::{Claim, Phase, Store};
use crate::contents::Contents;
use crate::error::{Error, Result};
use crate::exports::{Kind, Listed};
use crate::field::{Element, Field};
use crate::growth::Growth;
use crate::memory::{Asking, Pages, Span};
use crate::view::{View, ViewMut};
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
fn total(uses: u64) -> u64 {
    Kind::ALL.into_iter().map(|kind| count(uses, kind)).sum()
}

/// Value of a record's `fills` when the slot has its memory and its huge pages.
const SETTLED: u64 = 1;

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
    touched: AtomicBool,
    /// Through which pages exports look.
    pages: Pages,
    /// Stretches that are mapped for this lease alone, if its pages are private.
    private: Option<Box<PrivateMaps>>,
}

/// Offset, map, and address of the first byte.
type PrivateMaps = Mutex<Vec<(u64, Mapping, usize)>>;

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

    fn writes(&self) -> bool {
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
    fn end_unused(&self, verb: &str, growth: Option<Growth<'_>>) -> Result<()> {
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
    fn end(&self) {
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

    fn drop_export(&self, array: usize, kind: Kind) {
        self.at.exports.end(self.claim.index, array, kind);
        if self.uses.fetch_sub(one(kind), AcqRel) == ENDED + one(kind) {
            self.give_back();
        }
    }

    /// Counts one more export, unless the lease has ended and none lives.
    fn count_export(&self, array: usize, kind: Kind, ended_too: bool) -> Result<()> {
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
    fn address(&self, offset: u64, len: u64) -> Result<*mut u8> {
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
}

/// A live view of a held slot: while it lives, the slot doesn't move on.
pub struct Export {
    hold: Arc<Hold>,
    /// Which of the slot's arrays it is.
    array: usize,
    kind: Kind,
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the bytes stay mapped while `hold` lives; who may touch them when is the lease's rule,
// the same for every thread.
unsafe impl Send for Export {}
// SAFETY: as above.
unsafe impl Sync for Export {}

impl Export {
    /// The caller has checked that the lease is open.
    #[inline(always)]
    fn new(hold: &Arc<Hold>, array: usize, offset: u64, len: u64) -> Result<Export> {
        // Counting and ending are on the same word, so no export begins once the lease has ended.
        hold.count_export(array, Kind::Array, false)?;
        let mut export = Export {
            hold: hold.clone(),
            array,
            kind: Kind::Array,
            start: NonNull::dangling(),
            len: len as usize,
            writable: hold.writes() || hold.pages == Pages::Private,
        };
        export.start = NonNull::new(hold.address(offset, len)?).expect("a mapping isn't at address 0");
        Ok(export)
    }

    /// The same memory once more, for somebody who lets go of it at another time. Works as long as
    /// this export lives, even if the lease has ended.
    pub fn again(&self, kind: Kind) -> Result<Export> {
        self.hold.count_export(self.array, kind, true)?;
        let Export { array, start, len, writable, .. } = *self;
        Ok(Export { hold: self.hold.clone(), array, kind, start, len, writable })
    }

    /// How messages call the slot.
    pub fn label(&self) -> String {
        self.hold.label()
    }

    /// Whether what is written reaches nobody else.
    pub fn is_private(&self) -> bool {
        self.hold.pages == Pages::Private
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an array without elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the lease allows writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.hold.drop_export(self.array, self.kind);
    }
}

/// What read and write leases have in common.
macro_rules! lease {
    ($lease:ident) => {
        impl $lease {
            /// Index of the slot in its pool.
            pub fn index(&self) -> usize {
                self.0.claim.index
            }

            /// The number of moves that the slot had made when it was claimed.
            pub fn generation(&self) -> u64 {
                self.0.claim.word.generation()
            }

            /// Name of the stage at which the slot is held.
            pub fn stage(&self) -> &str {
                &self.0.at.config().stages[self.0.claim.word.stage()]
            }

            /// How often a reader has died holding this content.
            pub fn deliveries(&self) -> u8 {
                self.0.claim.word.deliveries()
            }

            /// The number that a holder gave the content.
            pub fn number(&self) -> u64 {
                self.0.at.board.0.slot(self.0.claim.index).number.load(Relaxed)
            }

            /// True once the lease was published or released.
            pub fn has_ended(&self) -> bool {
                self.0.uses.load(Acquire) & ENDED != 0
            }

            /// Live exports.
            pub fn exports(&self) -> usize {
                total(self.0.uses.load(Acquire)) as usize
            }

            /// The arrays of the slot.
            pub fn fields(&self) -> Result<Vec<Field>> {
                self.0.check_open()?;
                Ok(self.0.fields()?.into_owned())
            }

            /// A view of one array that keeps the slot where it is, and the array's description.
            pub fn export(&self, name: &str) -> Result<(Export, Field)> {
                self.export_to(Some(name), |export, field| (export, field.clone()))
            }

            /// Hands such a view, and a look at the description, to `user`; without a name that of the
            /// slot's only array.
            #[inline]
            pub fn export_to<T>(
                &self,
                name: Option<&str>,
                user: impl FnOnce(Export, &Field) -> T,
            ) -> Result<T> {
                self.0.check_open()?;
                self.0.with_array(name, |array, field, offset| {
                    Export::new(&self.0, array, offset, field.bytes()).map(|export| user(export, field))
                })?
            }

            /// The metadata that the last holder left.
            pub fn meta(&self) -> Result<Vec<u8>> {
                self.0.check_open()?;
                self.0.contents(|contents| contents.meta(&self.0.at, self.0.claim.index))
            }

            /// The elements of one array, in C order.
            pub fn slice<T: Element>(&self, name: &str) -> Result<View<'_, T>> {
                let (export, len) = Hold::elements::<T>(&self.0, name)?;
                // SAFETY: `elements` has checked dtype, range and alignment; a `ViewMut` borrows the
                // lease alone.
                Ok(unsafe { View::new(export, len) })
            }

            /// Gives the slot back. Fails, and changes nothing, while exports live.
            pub fn release(&self) -> Result<()> {
                self.0.end_unused("released", None)?;
                self.0.give_back();
                Ok(())
            }

            /// Ends the lease; the slot goes back now, or with the last export.
            pub fn end(&self) {
                self.0.end();
            }

            /// The processes, stages and numbers by which messages call this lease.
            pub fn label(&self) -> String {
                self.0.label()
            }
        }

        impl Drop for $lease {
            fn drop(&mut self) {
                self.0.end();
            }
        }
    };
}

/// The right to read a slot at the last stage. Dropping it gives the slot back.
pub struct ReadLease(pub(crate) Arc<Hold>);
lease!(ReadLease);

impl ReadLease {
    /// The same lease, whose exports look through pages of that kind.
    pub(crate) fn through(mut self, pages: Pages) -> ReadLease {
        if pages == Pages::Shared {
            return self;
        }
        let hold = Arc::get_mut(&mut self.0).expect("a lease that was just taken has no exports");
        hold.pages = pages;
        hold.private = (pages == Pages::Private).then(Box::default);
        self
    }
}

/// The right to read and write a slot. Dropping it without [`publish`](Self::publish) gives the
/// slot back unused.
pub struct WriteLease(pub(crate) Arc<Hold>);
lease!(WriteLease);

impl WriteLease {
    /// True once the memory of the slot is there.
    pub fn is_prepared(&self) -> bool {
        let at = &self.0.at;
        match at.regions {
            Some(_) => at.board.0.record(self.0.claim.index).fills.load(Relaxed) >= SETTLED,
            None => at.config().fields.is_none(),
        }
    }

    /// Commits the memory of a slot that was just acquired, and lays out the arrays that it always
    /// has. Takes as long as the system needs to find the pages; [`Pool::acquire_with`] does it too.
    ///
    /// [`Pool::acquire_with`]: crate::Pool::acquire_with
    pub fn prepare(&self, pulse: &mut dyn FnMut() -> bool) -> Result<()> {
        if self.is_prepared() {
            return Ok(());
        }
        let (at, slot) = (&self.0.at, self.0.claim.index);
        let fields = || at.config().fields.iter().flatten();
        let Some(regions) = &at.regions else {
            return fields().try_for_each(|field| self.add(field.clone(), pulse));
        };
        let _growth = self.0.grow(pulse)?;
        let record = at.board.0.record(slot);
        if record.settled.load(Relaxed) != fields().map(Field::bytes).sum::<u64>() {
            let label = self.label();
            let mut pulse = || pulse() && at.is_mine();
            let mut asking = Asking { me: at.me, what: &label, pulse: &mut pulse };
            return at.memory.settle_packed(&at.board.0, slot, regions, &mut asking);
        }
        // The second time round the slot has settled: huge pages pay from now on.
        record.fills.store(SETTLED, Relaxed);
        for (field, base) in fields().zip(regions) {
            at.memory.collapse(Span { offset: base + slot as u64 * field.bytes(), len: field.bytes() });
        }
        Ok(())
    }

    /// Adds an array to a slot of an arena pool, and commits its memory.
    pub fn add(&self, field: Field, pulse: &mut dyn FnMut() -> bool) -> Result<()> {
        self.0.add(field, pulse)
    }

    /// Commits memory for arrays of `bytes` in all, before they are added one by one.
    pub fn reserve(&self, bytes: u64, pulse: &mut dyn FnMut() -> bool) -> Result<()> {
        self.0.reserve(bytes, pulse)
    }

    /// Gives the content a number, by which others can ask for it at later stages.
    pub fn set_number(&self, number: u64) -> Result<()> {
        self.0.check_open()?;
        self.0.at.board.0.slot(self.0.claim.index).number.store(number, Relaxed);
        Ok(())
    }

    /// Sets the metadata that travels with the slot.
    pub fn set_meta(&self, meta: &[u8]) -> Result<()> {
        self.0.check_open()?;
        self.0.contents(|contents| contents.set_meta(&self.0.at, self.0.claim.index, meta))
    }

    /// The elements of one array, in C order, to write.
    pub fn slice_mut<T: Element>(&mut self, name: &str) -> Result<ViewMut<'_, T>> {
        let (export, len) = Hold::elements::<T>(&self.0, name)?;
        // SAFETY: as in `slice`; the exclusive borrow keeps this process from aliasing, the write
        // lease keeps others out.
        Ok(unsafe { ViewMut::new(export, len) })
    }

    /// Sends the slot on to the next stage. Fails, and keeps the lease, while exports live, when
    /// the pool was aborted, and at the last stage.
    pub fn publish(&self) -> Result<()> {
        let (hold, at) = (&*self.0, &self.0.at);
        hold.check_open()?;
        let label = || hold.label();
        if hold.claim.word.stage() == at.config().rules.last {
            return Err(Error::Invalid(format!("{}: there is no stage behind it; release it", label())));
        }
        if at.board.phase() == Phase::Aborted {
            return Err(Error::Closed(format!("{}: the pool was aborted", label())));
        }
        let mut growth = None;
        if hold.touched.load(Acquire) {
            growth = hold.begin_growth()?;
            if growth.is_none() {
                return Err(hold.is_growing("published"));
            }
            hold.contents(|contents| contents.write_back(at, hold.claim.index))?;
        }
        hold.end_unused("published", growth)?;
        if let Some(guard) = &at.guard {
            guard.shut(at, hold.claim.index);
        }
        if at.board.move_on(hold.claim, Move::Publish { me: at.me }) {
            return Ok(());
        }
        Err(Error::Gone(format!("{}: it was taken away from this process", label())))
    }
}

impl Hold {
    /// Runs `work` on an array by name, or the only one: which it is, and where it lies.
    #[inline]
    fn with_array<T>(&self, name: Option<&str>, work: impl FnOnce(usize, &Field, u64) -> T) -> Result<T> {
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

    fn fields(&self) -> Result<Cow<'_, [Field]>> {
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
    fn elements<T: Element>(self: &Arc<Hold>, name: &str) -> Result<(Export, usize)> {
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
