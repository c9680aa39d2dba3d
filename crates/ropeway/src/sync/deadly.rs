//! Atomics of the standard library or of a model checker, with a point of death before each store.
//!
//! Between two stores of a participant nothing but system calls changes what others see, and these have
//! points of their own; so whoever dies at each of the points has died at every instant that differs.
//! Operations that aren't here don't compile in these builds.
//!
//! In loom's there is a bell, too. To find what may run in another order, loom compares an access with the
//! *last* one of the same atomic only, and takes two loads for independent. A scan followed by a
//! compare-and-swap therefore hides, behind its own load, the load that another thread has made before:
//! the order in which the swap comes first is never tried. So each load first rings a bell that nobody
//! waits for. Rings of one bell depend on each other and order nothing in memory.

#[cfg(loom)]
use loom::sync::{Condvar, atomic};
#[cfg(shuttle)]
use shuttle::sync::atomic;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic;

use super::{Ordering, crash_point};

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic before whose stores a participant may die.
        #[cfg_attr(not(any(loom, shuttle)), repr(transparent))]
        #[derive(Debug)]
        pub struct $name {
            pub(super) value: atomic::$name,
            #[cfg(loom)]
            bell: Condvar,
        }

        #[allow(missing_docs)] // as in the standard library
        impl $name {
            pub fn new(value: $value) -> $name {
                $name {
                    value: atomic::$name::new(value),
                    #[cfg(loom)]
                    bell: Condvar::new(),
                }
            }

            pub fn load(&self, order: Ordering) -> $value {
                #[cfg(loom)]
                self.bell.notify_one();
                self.value.load(order)
            }

            fn stored(&self) -> &atomic::$name {
                crash_point!("store");
                &self.value
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.stored().store(value, order);
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.stored().compare_exchange(from, to, success, failure)
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.stored().fetch_add(value, order)
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.stored().fetch_or(value, order)
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.stored().fetch_max(value, order)
            }

            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.stored().fetch_update(set, fetch, change)
            }
        }
    };
}

atomic!(AtomicU16, u16);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
