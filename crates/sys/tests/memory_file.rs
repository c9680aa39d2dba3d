//! Sealed files and their maps.

mod peer;

use std::io::ErrorKind;
use std::os::fd::AsRawFd;

use peer::{Peer, say};
use ropeway_sys::mapping::{Access, Mapping};
use ropeway_sys::memfd::Memfd;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

fn file(len: usize) -> Memfd {
    Memfd::create("ropeway-data", len as u64).unwrap()
}

fn map(file: &Memfd, offset: usize, len: usize, access: Access) -> Mapping {
    Mapping::new(file, offset as u64, len, access).unwrap()
}

fn read(map: &Mapping, at: usize) -> u8 {
    assert!(at < map.len());
    // SAFETY: the address is inside the map; each test writes and reads in one thread.
    unsafe { map.ptr().add(at).read_volatile() }
}

fn write(map: &Mapping, at: usize, value: u8) {
    assert!(at < map.len());
    // SAFETY: as in `read`; each test does this with writable maps only.
    unsafe { map.ptr().add(at).write_volatile(value) }
}

#[test]
fn roles() {
    let Some((role, file)) = peer::role() else {
        return;
    };
    match role.as_str() {
        "file size" => make_files_with_a_limit(),
        "lock all" => map_where_all_is_locked(&file),
        "paths" if !has_a_root_of_its_own() => return say("this user may not make mount namespaces"),
        "paths" => open_what_reads_like_ours(),
        _ => map_and_drop(&file),
    }
    say("ok");
}

fn make_files_with_a_limit() {
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 };
    // SAFETY: the limit outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let beyond = Memfd::create("ropeway-data", (1 << 20) + 1).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::FileTooLarge);
    Memfd::create("ropeway-data", 1 << 20).unwrap();
}

fn map_where_all_is_locked(file: &Memfd) {
    // SAFETY: the call changes no memory.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    assert!(Mapping::new(file, 0, 16 * HUGE, Access::ReadWrite).is_err());
    assert_eq!(file.allocated().unwrap(), 0);
}

fn map_and_drop(file: &Memfd) {
    let pages = || {
        let statm = std::fs::read_to_string("/proc/thread-self/statm").unwrap();
        statm.split(' ').next().unwrap().parse::<usize>().unwrap()
    };
    let before = pages();
    for _ in 0..100 {
        map(file, 0, 4 * HUGE, Access::ReadOnly);
    }
    assert!(pages() < before + 4 * HUGE / PAGE);
}

#[test]
fn a_file_beyond_the_limit_is_an_error_and_no_signal() {
    assert_eq!(Peer::start("file size", &file(PAGE)).hear(), "ok");
}

#[test]
fn a_large_map_is_refused_where_it_would_be_locked_in_memory() {
    assert_eq!(Peer::start("lock all", &file(16 * HUGE)).hear(), "ok");
}

#[test]
fn a_file_has_memory_only_where_it_was_committed() {
    let file = file(HUGE);
    assert_eq!((file.len().unwrap(), file.allocated().unwrap()), (HUGE as u64, 0));
    file.commit(0, 4 * PAGE as u64).unwrap();
    assert_eq!(file.allocated().unwrap(), 4 * PAGE as u64);
    file.punch(0, PAGE as u64).unwrap();
    assert_eq!(file.allocated().unwrap(), 3 * PAGE as u64);
    assert!(file.commit(HUGE as u64, 1).is_err(), "the file has grown");
}

#[test]
fn a_peer_opens_a_file_as_a_new_description_of_the_same_inode() {
    let file = file(PAGE);
    let opened = Memfd::open_peer(std::process::id(), file.raw()).unwrap();
    assert_eq!(opened.inode(), file.inode());
    assert_ne!(opened.raw(), file.raw());
    write(&map(&file, 0, PAGE, Access::ReadWrite), 3, 9);
    assert_eq!(read(&map(&opened, 0, PAGE, Access::ReadOnly), 3), 9);
}

#[test]
fn only_sealed_memory_files_are_accepted() {
    let plain = std::fs::File::open("/proc/self/exe").unwrap();
    // SAFETY: the name is a C string.
    let unsealed = unsafe { libc::memfd_create(c"ropeway-x".as_ptr(), libc::MFD_ALLOW_SEALING) };
    for fd in [plain.as_raw_fd(), unsealed] {
        let error = Memfd::open_peer(std::process::id(), fd).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("expected a memfd"), "{error}");
    }
    let error = Memfd::from_fd(plain.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(Memfd::create("other", 1).is_err(), "no peer would accept this name");
}

#[test]
fn files_whose_paths_read_like_ours_are_refused() {
    let said = Peer::start("paths", &file(PAGE)).hear();
    if said != "ok" {
        eprintln!("SKIPPED files_whose_paths_read_like_ours_are_refused: {said}");
    }
}

/// Leaves for a file system of its own with nothing in it but `/proc`.
fn has_a_root_of_its_own() -> bool {
    let (none, new) = (std::ptr::null(), c"/mnt".as_ptr());
    // SAFETY: the texts end in zeros.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()) == 0
            && libc::mount(c"tmpfs".as_ptr(), new, c"tmpfs".as_ptr(), 0, std::ptr::null()) == 0
            && libc::mkdir(c"/mnt/proc".as_ptr(), 0o755) == 0
            && libc::mount(c"/proc".as_ptr(), c"/mnt/proc".as_ptr(), none, libc::MS_BIND, std::ptr::null())
                == 0
            && libc::chroot(new) == 0
    }
}

/// In the root folder, the path of a file is what a link to a memory file reads like.
fn open_what_reads_like_ours() {
    let text = |path: &str| std::ffi::CString::new(path).unwrap();
    let [fifo, plain, folder, link] =
        ["fifo", "plain", "folder", "link"].map(|n| format!("/memfd:ropeway-{n}"));
    // SAFETY: the texts end in zeros.
    unsafe { assert_eq!(libc::mkfifo(text(&fifo).as_ptr(), 0o600), 0) };
    std::fs::write(&plain, [0; PAGE]).unwrap();
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&plain, &link).unwrap();
    for (path, flags) in [
        (&fifo, libc::O_RDONLY | libc::O_NONBLOCK),
        (&plain, libc::O_RDWR),
        (&folder, libc::O_RDONLY),
        (&link, libc::O_PATH | libc::O_NOFOLLOW),
        (&link, libc::O_RDWR),
    ] {
        // SAFETY: the text ends in a zero.
        let fd = unsafe { libc::open(text(path).as_ptr(), flags) };
        let shown = std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).unwrap();
        assert!(shown.to_string_lossy().starts_with("/memfd:ropeway-"), "{shown:?}");
        let opened = Memfd::open_peer(std::process::id(), fd);
        assert!(opened.is_err(), "{path} was taken for a memory file");
    }
}

#[test]
fn a_number_that_was_reused_is_not_touched() {
    let [ours, other] = [file(PAGE), file(PAGE)];
    assert!(ours.is_open());
    let number = ours.raw();
    // SAFETY: `Memfd` allows for numbers that show another file.
    assert!(unsafe { libc::dup2(other.raw(), number) } >= 0);
    assert!(!ours.is_open());
    assert_eq!(ours.commit(0, 1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    assert!(ours.private_description().is_err());
    drop(ours);
    // SAFETY: the number is the test's own since `dup2`.
    let closed = unsafe { libc::close(number) };
    assert_eq!(closed, 0, "the drop closed another's descriptor");
    assert_eq!(other.allocated().unwrap(), 0);
}

#[test]
fn a_map_of_2_mib_or_more_is_aligned_with_its_offset() {
    let file = file(4 * HUGE);
    for (offset, len) in [(0, HUGE), (HUGE, HUGE + 1), (0, 4 * HUGE), (PAGE, 2 * HUGE)] {
        let map = map(&file, offset, len, Access::ReadWrite);
        assert_eq!(map.ptr().addr().get() % HUGE, offset % HUGE);
        write(&map, len - 1, 1);
    }
}

#[test]
fn a_dropped_map_leaves_no_addresses_behind() {
    assert_eq!(Peer::start("map and drop", &file(4 * HUGE)).hear(), "ok");
}

#[test]
fn maps_are_left_out_of_core_dumps() {
    let named = Memfd::create("ropeway-dump", HUGE as u64).unwrap();
    let _maps = [map(&named, 0, PAGE, Access::Private), map(&named, 0, HUGE, Access::ReadWrite)];
    let smaps = std::fs::read_to_string("/proc/thread-self/smaps").unwrap();
    let flags = smaps
        .split("memfd:ropeway-dump")
        .skip(1)
        .map(|part| part.lines().find(|line| line.starts_with("VmFlags:")).unwrap());
    let flags: Vec<_> = flags.collect();
    assert_eq!(flags.len(), 2);
    assert!(flags.iter().all(|flags| flags.contains(" dd")), "{flags:?}");
}

#[test]
fn a_private_map_keeps_its_writes_until_they_are_discarded() {
    let file = file(PAGE);
    let (shared, private) = (map(&file, 0, PAGE, Access::ReadWrite), map(&file, 0, PAGE, Access::Private));
    write(&shared, 0, 1);
    write(&private, 0, 2);
    assert_eq!((read(&shared, 0), read(&private, 0)), (1, 2));
    private.discard(0, PAGE).unwrap();
    assert_eq!(read(&private, 0), 1);
}

#[test]
fn collapsing_and_populating_keep_the_content() {
    let file = file(4 * HUGE);
    file.commit(0, 4 * HUGE as u64).unwrap();
    let map = map(&file, 0, 4 * HUGE, Access::ReadWrite);
    write(&map, HUGE, 7);
    map.populate_write(0, map.len()).unwrap();
    map.collapse(PAGE, map.len() - PAGE); // whether it can depends on the machine
    assert_eq!(read(&map, HUGE), 7);
    assert!(!map.collapse(PAGE, HUGE), "there are no whole 2 MiB in it");
}

#[test]
fn a_protected_page_faults_until_it_is_allowed_again() {
    let file = file(2 * PAGE);
    let map = map(&file, 0, 2 * PAGE, Access::ReadWrite);
    map.protect(PAGE, PAGE, false).unwrap();
    let child = peer::fork(|| i32::from(read(&map, 0)));
    assert_eq!(peer::wait(child), 0);
    let child = peer::fork(|| i32::from(read(&map, PAGE)));
    assert_eq!(peer::wait(child) & 0x7f, libc::SIGSEGV);
    map.protect(PAGE, PAGE, true).unwrap();
    write(&map, PAGE, 1);
}

#[test]
fn ranges_outside_a_map_are_refused() {
    let file = file(2 * PAGE);
    let map = map(&file, 0, PAGE, Access::ReadWrite);
    for (offset, len) in [(0, PAGE + 1), (PAGE, 1), (1, usize::MAX)] {
        let error = map.protect(offset, len, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(map.discard(offset, len).is_err() && !map.collapse(offset, len));
    }
    assert!(Mapping::new(&file, 0, 0, Access::ReadWrite).is_err());
    assert!(Mapping::new(&file, 1, PAGE, Access::ReadWrite).is_err());
    assert!(Mapping::new(&file, 0, usize::MAX, Access::ReadWrite).is_err());
}
