#![allow(unsafe_code)]
//! The right to touch one slot: to read it, or to write it.

use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use crate::board::{Phase, Store};
use crate::error::{Error, Result};
use crate::export::Export;
use crate::field::{Element, Field};
use crate::hold::{ENDED, Hold, total};
use crate::memory::{Asking, Pages, Span};
use crate::view::{View, ViewMut};
use crate::word::Move;

/// Value of a record's `fills` when the slot has its memory and its huge pages.
const SETTLED: u64 = 1;

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
