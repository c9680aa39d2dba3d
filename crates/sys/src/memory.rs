//! How much memory may still be used.
//!
//! The smallest of what the machine has available and what each cgroup (v2
//! or v1) on the way from this process to the root leaves. A cgroup's file cache that
//! isn't in use counts as free, as the kernel takes it back before it kills.
//! The answer is a hint: others may use the memory in the meantime.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    let machine = machine.or_else(free_by_system_call);
    let unknown = Available { bytes: u64::MAX, source: "no known limit" };
    cgroups(root)
        .filter_map(|group| group.left())
        .chain(machine)
        .min_by_key(|known| known.bytes)
        .unwrap_or(unknown)
}

/// What the kernel says to those who can't read `/proc` (it isn't mounted, or they have no descriptor
/// left): less than there is, as memory that it could take back from the file cache isn't in it.
fn free_by_system_call() -> Option<Available> {
    // SAFETY: all zeros is a valid `sysinfo`, which the call fills.
    let (done, info) = unsafe {
        let mut info: libc::sysinfo = std::mem::zeroed();
        (libc::sysinfo(&mut info), info)
    };
    let bytes = info.freeram.saturating_add(info.bufferram).saturating_mul(info.mem_unit.into());
    (done == 0).then_some(Available { bytes, source: "sysinfo, as /proc can't be read" })
}

/// Returns how much memory this process could use if nobody else used any: the machine's, or the
/// smallest limit of its cgroups at the time of the first call. 0 without `/proc`.
pub fn total() -> u64 {
    static TOTAL: OnceLock<u64> = OnceLock::new();
    *TOTAL.get_or_init(|| total_in(Path::new("/")))
}

/// Does the same, at the time of the call, with `proc` and `sys` below another root.
pub fn total_in(root: &Path) -> u64 {
    let machine = meminfo(root, "MemTotal:").unwrap_or(0);
    cgroups(root).filter_map(|group| group.limit()).fold(machine, u64::min)
}

fn meminfo(root: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    Some(field(&text, key)? * 1024)
}

/// What a version of cgroups calls its files, and its limit in a sentence.
struct Files {
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
    source: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    used: "memory.current",
    cache: "inactive_file",
    source: "the cgroup's memory.max",
};

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file",
    source: "the cgroup's memory.limit_in_bytes",
};

/// A folder of a cgroup file system.
struct Group {
    folder: PathBuf,
    files: &'static Files,
}

/// The groups from this process's own to the root, of each version that the system has.
///
/// A path that isn't below the mount (a container without its own view) has no files there; the mount
/// itself, which is the container's group, is looked at in any case.
fn cgroups(root: &Path) -> impl Iterator<Item = Group> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let found: Vec<_> = text.lines().filter_map(|line| own_group(root, line)).collect();
    found.into_iter().flat_map(|(mount, own, files)| {
        let folders: Vec<_> = own.ancestors().map(|group| mount.join(group)).collect();
        folders.into_iter().map(move |folder| Group { folder, files })
    })
}

/// Where memory is limited by the group in a line of `/proc/self/cgroup`: mount, path, files.
fn own_group(root: &Path, line: &str) -> Option<(PathBuf, PathBuf, &'static Files)> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers, own) = (parts.next()?, parts.next()?, parts.next()?);
    let own = PathBuf::from(own.strip_prefix('/')?);
    let mount = root.join("sys/fs/cgroup");
    if hierarchy == "0" {
        return Some((mount, own, &V2));
    }
    controllers.split(',').any(|name| name == "memory").then(|| (mount.join("memory"), own, &V1))
}

impl Group {
    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }

    /// The group's limit; without one version 2 says "max" and version 1 some 2^63.
    fn limit(&self) -> Option<u64> {
        self.read(self.files.limit)?.trim().parse().ok().filter(|&limit| limit < 1 << 62)
    }

    fn left(&self) -> Option<Available> {
        let limit = self.limit()?;
        let used: u64 = self.read(self.files.used)?.trim().parse().ok()?;
        let cache = self.read("memory.stat").and_then(|text| field(&text, self.files.cache));
        Some(Available {
            bytes: limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))),
            source: self.files.source,
        })
    }
}

/// The number behind `key` in lines of the form "key number".
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok())?
    })
}
