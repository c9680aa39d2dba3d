//! Takes things away from a peer, and sees whether pools still work for it.

use ropeway::{Pool, Result};

use super::{PATIENCE, Peer, bytes, get, put, skipped};

pub fn works(pool: &Pool) {
    put(pool, 5).unwrap();
    assert_eq!(get(pool).unwrap(), 5);
}

/// Adds an array to the only slot of a pool, touches all of it, and gives the slot back.
pub fn grow(pool: &Pool, len: u64) -> Result<()> {
    let slot = pool.acquire_timeout(PATIENCE)?;
    slot.add(bytes("a", len), &mut || true)?;
    let view = slot.export("a")?.0;
    // SAFETY: a live view of a held slot.
    unsafe { view.as_ptr().write_bytes(1, view.len()) };
    Ok(())
}

/// Plays a role that says "ready" first, or why it can't be played here; says whether it could.
pub fn play(test: &str, role: &str, given: &str) -> bool {
    let mut peer = Peer::start(role, given);
    let said = peer.hear();
    match said.as_str() {
        "ready" => peer.finish(),
        why => skipped(test, why),
    }
    said == "ready"
}

pub fn limit(resource: libc::__rlimit_resource_t, soft: u64) -> u64 {
    // SAFETY: all zeros is a valid `rlimit`, which the first call fills; it outlives both.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(resource, &mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, soft);
        assert_eq!(libc::setrlimit(resource, &limit), 0);
        before
    }
}

/// Lets a system call fail from now on, as filters of containers do, if an argument (0 is the first) has
/// that value.
pub fn forbid(call: libc::c_long, argument: Option<(u32, u32)>, errno: i32) {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let unless = |k: u32, skip: u8| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, k);
    let end = |k: u32| op(libc::BPF_RET | libc::BPF_K, 0, 0, k);
    let mut filter = vec![load(0), unless(call as u32, if argument.is_some() { 3 } else { 1 })];
    filter.extend(argument.into_iter().flat_map(|(nth, value)| [load(16 + 8 * nth), unless(value, 1)]));
    filter.extend([end(libc::SECCOMP_RET_ERRNO | errno as u32), end(libc::SECCOMP_RET_ALLOW)]);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is a valid filter and outlives the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}
