//! What this process is allowed.

use rustix::process::{Resource, getrlimit};

/// Returns how many bytes of addresses this process may map; `None` is no limit.
pub fn address_space() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Returns how long a file this process may make; `None` is no limit.
pub fn file_size() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Returns how many CPUs this process may run on.
pub fn cpus() -> usize {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => set.count() as usize,
        // More than 1,024 CPUs don't fit in the set.
        Err(_) => std::thread::available_parallelism().map_or(1, usize::from),
    }
}
