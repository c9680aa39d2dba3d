//! loom's atomics, with every race in sight.
//!
//! To find what may run in another order, loom compares an access with the *last* one of the same
//! atomic only, and takes two loads for independent. A scan followed by a compare-and-swap therefore
//! hides, behind its own load, the load that another thread has made before: the order in which the
//! swap comes first is never tried. So each load first rings a bell that nobody waits for. Rings of
//! one bell depend on each other and order nothing in memory.

use loom::sync::Condvar;
use loom::sync::atomic::Ordering;

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// A modelled atomic.
        #[derive(Debug)]
        pub struct $name {
            value: loom::sync::atomic::$name,
            bell: Condvar,
        }

        #[allow(missing_docs)] // as in the standard library
        impl $name {
            pub fn new(value: $value) -> $name {
                $name { value: loom::sync::atomic::$name::new(value), bell: Condvar::new() }
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.bell.notify_one();
                self.value.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.value.store(value, order);
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.value.compare_exchange(from, to, success, failure)
            }

            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.value.fetch_add(value, order)
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.value.fetch_or(value, order)
            }

            pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.value.fetch_max(value, order)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
