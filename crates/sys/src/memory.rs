//! How much memory may still be used.
//!
//! The smallest of what the machine has available and what each cgroup (v2) on
//! the way from this process to the root leaves. A cgroup's file cache that
//! isn't in use counts as free, as the kernel takes it back before it kills.
//! The answer is a hint: others may use the memory in the meantime.

use std::fs;
use std::path::Path;

/// How much memory is left, and who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// The bytes left; `u64::MAX` if nothing on this system knows.
    pub bytes: u64,
    /// Where the number comes from, as part of a sentence.
    pub source: &'static str,
}

/// Returns how much memory this process may still use.
pub fn available() -> Available {
    available_in(Path::new("/"))
}

/// Does the same with `proc` and `sys` below another root.
pub fn available_in(root: &Path) -> Available {
    let machine = meminfo(root, "MemAvailable:").map(|bytes| Available { bytes, source: "MemAvailable" });
    let unknown = Available { bytes: u64::MAX, source: "no known limit" };
    cgroups(root).into_iter().chain(machine).min_by_key(|known| known.bytes).unwrap_or(unknown)
}

/// Returns the machine's memory in bytes (`MemTotal`), 0 without `/proc`.
pub fn total() -> u64 {
    meminfo(Path::new("/"), "MemTotal:").unwrap_or(0)
}

fn meminfo(root: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    Some(field(&text, key)? * 1024)
}

fn cgroups(root: &Path) -> Vec<Available> {
    let mount = root.join("sys/fs/cgroup");
    let Ok(groups) = fs::read_to_string(root.join("proc/self/cgroup")) else {
        return Vec::new();
    };
    let Some(own) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    // A path that isn't below the mount (a container without its own view) has no files there;
    // the mount itself, which is the container's group, is looked at in any case.
    Path::new(own).ancestors().filter_map(|group| left_in(&mount.join(group))).collect()
}

fn left_in(group: &Path) -> Option<Available> {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    let limit: u64 = read("memory.max")?.trim().parse().ok()?; // "max" is no limit
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let cache = read("memory.stat").and_then(|text| field(&text, "inactive_file"));
    Some(Available {
        bytes: limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))),
        source: "the cgroup's memory.max",
    })
}

/// The number behind `key` in lines of the form "key number".
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok())?
    })
}
