//! Finding a memory file by name.
//!
//! A process that offers a file under a name binds an abstract socket whose
//! address says user, name, pid and descriptor, and never listens on it: the
//! kernel's list of addresses is the register. It needs no file that could be
//! left behind. A random part keeps others from taking an address before us.
//! Any user can bind any address, so what is found is a hint that
//! [`Memfd::open_peer`](crate::memfd::Memfd::open_peer) and the checks of the
//! file's content have to confirm; an address whose process is gone (a forked
//! child may keep it bound) fails there.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use crate::descriptor::Descriptor;
use crate::process;

/// A name under which a file of this process can be found; dropping it withdraws it.
#[derive(Debug)]
pub struct Name {
    _socket: Descriptor,
}

impl Name {
    /// Offers the file behind descriptor `fd` of this process under `name`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the name is empty, too long, or contains a slash or control characters.
    pub fn bind(name: &str, fd: i32) -> io::Result<Name> {
        if name.is_empty() || name.contains(|c: char| c == '/' || c.is_control()) {
            return Err(unfit(name, "must have characters, but no slash or control characters"));
        }
        let [a, b, c] = process::random();
        let text = format!("{}{name}/{}/{fd}/{a:02x}{b:02x}{c:02x}", own(), process::pid());
        let address = SocketAddrUnix::new_abstract_name(text.as_bytes())
            .map_err(|_| unfit(name, "is too long: 107 bytes, less some for user and process"))?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &address)?;
        let _socket = Descriptor::own(socket)?;
        Ok(Name { _socket })
    }
}

/// What the kernel's list says about one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The name.
    pub name: String,
    /// The process that offers the file.
    pub pid: u32,
    /// The file's descriptor in that process.
    pub fd: i32,
}

/// Lists what processes of this user offer in this network namespace, in order of name.
///
/// # Errors
///
/// `NotFound` without `/proc`.
pub fn list() -> io::Result<Vec<Found>> {
    let text = fs::read("/proc/thread-self/net/unix")?;
    let text = String::from_utf8_lossy(&text);
    let found: BTreeSet<Found> = text.lines().filter_map(parse).collect();
    Ok(found.into_iter().collect())
}

/// Reads one line of `/proc/net/unix`, in which an abstract address starts with "@".
fn parse(line: &str) -> Option<Found> {
    let (_, rest) = line.split_once(&format!(" @{}", own()))?;
    let mut parts = rest.rsplitn(4, '/');
    parts.next()?;
    let fd = parts.next()?.parse().ok()?;
    let pid = parts.next()?.parse().ok()?;
    let name = parts.next().filter(|name| !name.contains('/'))?.to_owned();
    Some(Found { name, pid, fd })
}

fn own() -> String {
    format!("ropeway/{}/", process::uid())
}

fn unfit(name: &str, why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("the name {name:?} {why}"))
}
