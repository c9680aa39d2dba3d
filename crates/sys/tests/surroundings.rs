//! Words to sleep on, names, limits, and what the machine says.

mod peer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;
use ropeway_sys::memory::{Available, available, available_in, total, total_in};
use ropeway_sys::names::{Found, Name, list};
use ropeway_sys::{futex, futex::Woken, limits, process};

#[test]
fn a_sleeper_is_found_through_another_map_of_the_word() {
    let file = Memfd::create("ropeway-word", 4096).unwrap();
    let maps = [(); 2].map(|()| Mapping::new(&file, 0, 4096, Access::ReadWrite).unwrap());
    // SAFETY: the maps are aligned zeros, outlive the words, and hold nothing else.
    let [ours, theirs] = maps.each_ref().map(|map| unsafe { map.ptr().cast::<AtomicU32>().as_ref() });
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| futex::wait(theirs, 0, Duration::from_secs(60)));
        peer::eventually("somebody sleeps", || futex::wake_all(ours) == 1);
        assert_eq!(sleeper.join().unwrap(), Woken::Woken);
    });
}

#[test]
fn a_changed_word_is_not_slept_on_and_a_sleep_ends() {
    let word = AtomicU32::new(1);
    assert_eq!(futex::wait(&word, 0, Duration::from_secs(60)), Woken::Changed);
    assert_eq!(futex::wait(&word, 1, Duration::from_millis(1)), Woken::TimedOut);
    assert_eq!(word.load(SeqCst), 1);
    assert_eq!(futex::wake_all(&word), 0);
}

#[test]
fn a_name_is_listed_while_it_is_bound() {
    let name = format!("a name: {}", process::pid());
    let found = Found { name: name.clone(), pid: process::pid(), fd: 7 };
    let bound = Name::bind(&name, 7).unwrap();
    let second = Name::bind(&name, 8).unwrap();
    let _again = Name::bind(&name, 7).unwrap();
    let ours = || list().unwrap().into_iter().filter(|other| other.name == name);
    assert_eq!(ours().count(), 2);
    assert_eq!(ours().next(), Some(found));
    drop((bound, second, _again));
    assert_eq!(ours().count(), 0);
}

#[test]
fn unfit_names_are_refused() {
    for name in ["", "a/b", "a\nb", "a\0b", &"x".repeat(108)] {
        let error = Name::bind(name, 0).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

/// A root with 1,000 kB available and a cgroup `/a/b`; removed when dropped.
struct Root(PathBuf);

impl Root {
    fn new(name: &str, groups: &[(&str, &str, &str, &str)]) -> Root {
        let root = std::env::temp_dir().join(format!("ropeway-{}-{name}", process::pid()));
        let put = |path: &Path, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(&root.join("proc/meminfo"), "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n");
        put(&root.join("proc/self/cgroup"), "4:memory:/x\n0::/a/b\n");
        for (group, limit, used, cache) in groups {
            let group = root.join("sys/fs/cgroup").join(group);
            put(&group.join("memory.max"), limit);
            put(&group.join("memory.current"), used);
            put(&group.join("memory.stat"), &format!("anon 1\ninactive_file {cache}\n"));
        }
        Root(root)
    }

    fn available(&self) -> Available {
        available_in(&self.0)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_tightest_group_on_the_way_to_the_root_counts_and_its_cache_is_free() {
    let groups = [("a/b", "max\n", "9\n", "0"), ("a", "5000\n", "4500\n", "300"), ("", "max\n", "0\n", "0")];
    let root = Root::new("tight", &groups);
    assert_eq!(root.available(), Available { bytes: 800, source: "the cgroup's memory.max" });
}

#[test]
fn a_group_beyond_its_limit_has_nothing_left() {
    let root = Root::new("beyond", &[("a/b", "5000\n", "6000\n", "10")]);
    assert_eq!(root.available().bytes, 0);
}

#[test]
fn the_machine_counts_where_groups_leave_more_or_cannot_be_seen() {
    let machine = Available { bytes: 1_024_000, source: "MemAvailable" };
    let loose = Root::new("loose", &[("a/b", "9000000\n", "10\n", "0")]);
    assert_eq!(loose.available(), machine);
    assert_eq!(Root::new("unseen", &[]).available(), machine);
    let blind = available_in(Path::new("/nowhere"));
    assert!(blind.bytes <= total() && blind.source.contains("/proc can't be read"), "{blind:?}");
}

#[test]
fn limits_of_version_1_count_too() {
    let root = Root::new("v1", &[("a/b", "900000\n", "10\n", "0")]);
    let group = root.0.join("sys/fs/cgroup/memory/x");
    std::fs::create_dir_all(&group).unwrap();
    let put = |name: &str, text: &str| std::fs::write(group.join(name), text).unwrap();
    put("memory.limit_in_bytes", "500000\n");
    put("memory.usage_in_bytes", "100000\n");
    put("memory.stat", "cache 7\ntotal_inactive_file 50000\n");
    let left = Available { bytes: 450_000, source: "the cgroup's memory.limit_in_bytes" };
    assert_eq!((root.available(), total_in(&root.0)), (left, 500_000));
    put("memory.limit_in_bytes", "9223372036854771712\n");
    let left = Available { bytes: 899_990, source: "the cgroup's memory.max" };
    assert_eq!((root.available(), total_in(&root.0)), (left, 900_000));
}

#[test]
fn what_there_is_at_all_is_the_machines_memory_or_the_smallest_limit() {
    assert_eq!(total_in(&Root::new("most", &[]).0), 9_216_000);
    let groups = [("a/b", "max\n", "9\n", "0"), ("a", "5000\n", "4500\n", "300")];
    assert_eq!(total_in(&Root::new("least", &groups).0), 5000);
    assert_eq!(total_in(Path::new("/nowhere")), 0);
}

#[test]
fn this_machine_and_this_process_are_described() {
    assert!(total() >= available().bytes && available().bytes > 0);
    assert!(limits::address_space().is_none_or(|limit| limit > 0));
    assert!(limits::file_size().is_none_or(|limit| limit > 0));
    assert!(!process::name_of(process::pid()).unwrap().is_empty());
    assert_ne!(process::random_id(), process::random_id());
    assert_ne!(process::thread_id(), std::thread::spawn(process::thread_id).join().unwrap());
    let before = process::monotonic_coarse_ns();
    assert!(before > 0 && process::monotonic_coarse_ns() >= before);
}
