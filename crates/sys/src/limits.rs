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
