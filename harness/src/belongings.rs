//! What a process has of the system: descriptors, memory files that are mapped, threads, children.

use std::collections::BTreeSet;
use std::fs;

/// What is counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Belongings(BTreeSet<String>);

impl Belongings {
    /// What the calling process has.
    pub fn of_this_process() -> Belongings {
        let mut all = BTreeSet::new();
        for entry in names("/proc/self/fd") {
            // The listing's own descriptor is closed by now.
            if let Ok(target) = fs::read_link(format!("/proc/self/fd/{entry}")) {
                all.insert(format!("descriptor {entry} of {}", target.display()));
            }
        }
        all.extend(names("/proc/self/task").into_iter().map(|thread| format!("thread {thread}")));
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mapped = maps.lines().filter(|line| line.contains("/memfd:"));
        all.extend(mapped.map(|line| format!("mapping {line}")));
        Belongings(all)
    }

    /// What the user has that any process could leave: names of sockets, files of shared memory.
    pub fn of_the_system() -> Belongings {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let mine = format!("/kill-{}-", std::process::id());
        let mut all: BTreeSet<_> = sockets
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .filter(|name| name.starts_with("@ropeway/") && name.contains(&mine))
            .map(|name| format!("socket {name}"))
            .collect();
        let ours = |name: &String| name.contains("ropeway") || name.contains("kill-");
        all.extend(names("/dev/shm").into_iter().filter(ours).map(|name| format!("file /dev/shm/{name}")));
        Belongings(all)
    }

    /// What the calling process has that it hadn't then.
    pub fn left(&self) -> Option<String> {
        let left: Vec<_> = Belongings::of_this_process().0.difference(&self.0).cloned().collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    /// All of it, if it isn't nothing.
    pub fn story(&self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.iter().cloned().collect::<Vec<_>>().join(", "))
    }
}

fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).map(|all| all.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
