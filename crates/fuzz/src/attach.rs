//! Attaching to whatever a descriptor may show.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use ropeway::{Handle, Pool};
use ropeway_sys::memfd::Memfd;

use crate::bytes::{Bytes, checksum};
use crate::pools::{Segment, change, expected, field, observe, options, receive, segments, send};

const CONFIG: usize = 4096;
const SLOTS_LINE: usize = 128;
const SLOT_WORDS: usize = (1 << 18) + 4096 * 64;
/// Where the configuration says length, device and inode of the data segment.
const DATA: std::ops::Range<usize> = 48..72;
const ID: [u8; 16] = [0x5a; 16];

/// A header that is right but for length and checksum of the configuration.
fn header() -> [u8; 40] {
    let mut header = [0; 40];
    header[..8].copy_from_slice(b"ropeway\0");
    header[8] = 1;
    header[16..32].copy_from_slice(&ID);
    header
}

/// The segments that all inputs share: how long a control segment is, and one for data.
fn world() -> &'static (usize, Memfd) {
    static WORLD: OnceLock<(usize, Memfd)> = OnceLock::new();
    WORLD.get_or_init(|| {
        let pool = Pool::create(&options(true, 1)).expect("a small pool");
        let len = segments(&pool).0.len().expect("a control segment has a length");
        (len as usize, Memfd::create("ropeway-data", 16 << 20).expect("a small file"))
    })
}

/// Reads the input as what a descriptor shows (kind of file, length, seals, header, configuration),
/// attaches to it, and uses the pool if that is one.
///
/// The first byte says what kind of file it is and whether to repair what depends on the machine
/// (checksum, the data segment's inode); the second how many bytes of the header to change.
pub fn attach(input: &[u8]) {
    let mut input = Bytes(input);
    let kind = input.byte();
    let repaired = kind & 8 == 0;
    let mut header = header();
    let changed = usize::from(input.byte()) % (header.len() + 1);
    header.iter_mut().zip(input.take(changed)).for_each(|(byte, change)| *byte ^= change);
    let file = file(kind, &mut input);
    let mut config = input.0.to_vec();
    if repaired && config.len() >= DATA.end {
        let (device, inode) = world().1.inode();
        let data = [16 << 20, device, inode].map(u64::to_le_bytes).concat();
        config[DATA].copy_from_slice(&data);
    }
    if repaired {
        header[12..16].copy_from_slice(&(config.len() as u32).to_le_bytes());
        header[32..40].copy_from_slice(&checksum(&config).to_le_bytes());
    }
    fill(&file, &header, &config);
    let handle = handle(file.as_raw_fd(), &header[16..32]);
    let attached = Handle::from_bytes(&handle).and_then(|handle| Pool::attach(&handle));
    if let Ok(pool) = attached {
        for work in [observe, |pool: &Pool| send(pool, 100), change, receive, observe] {
            expected(work(&pool));
        }
    }
}

/// Makes the file that the descriptor shows.
fn file(kind: u8, input: &mut Bytes<'_>) -> OwnedFd {
    let len = world().0 as u64;
    match kind % 8 {
        4 => memfd(u64::from(input.short()) << 12, SEALS),
        5 => memfd(len, input.byte().into()),
        6 => other(input.byte()),
        7 => memfd(len + 4096 - u64::from(input.short() % 8192), SEALS),
        _ => memfd(len, SEALS),
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn memfd(len: u64, seals: i32) -> OwnedFd {
    // SAFETY: the name ends in a zero; a descriptor that was just made belongs to nobody else.
    unsafe {
        let number =
            libc::memfd_create(c"ropeway-control".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        let file = OwnedFd::from_raw_fd(number);
        libc::ftruncate(number, len as i64);
        libc::fcntl(number, libc::F_ADD_SEALS, seals & 0xf);
        file
    }
}

/// A file of another kind.
fn other(kind: u8) -> OwnedFd {
    let folder = std::env::temp_dir().join(format!("ropeway-fuzz-{}", std::process::id()));
    match kind % 4 {
        0 => File::open("/dev/null").expect("there is a /dev/null").into(),
        1 => std::os::unix::net::UnixStream::pair().expect("a pair of sockets").0.into(),
        2 => std::io::pipe().expect("a pipe").0.into(),
        _ => {
            let file = File::create_new(&folder).expect("a temporary file");
            std::fs::remove_file(folder).expect("it is there");
            file.set_len(world().0 as u64).expect("a file of holes");
            file.into()
        }
    }
}

/// Writes into the file, if it can be mapped by us at all.
fn fill(file: &OwnedFd, header: &[u8], config: &[u8]) {
    let Ok(copy) = file.try_clone() else { return };
    let Ok(ours) = Memfd::from_fd(copy) else { return };
    if ours.len().is_ok_and(|len| len < 1 << 20) {
        return;
    }
    // Not if it is sealed against writing.
    let Some(segment) = Segment::try_over(&ours) else { return };
    segment.write(0, header);
    segment.write(CONFIG, &config[..config.len().min(100_000)]);
    let slots = u64::from(config.first().copied().unwrap_or(0)).min(4);
    segment.write_number(SLOTS_LINE, slots);
    for slot in 0..slots as usize {
        // Idle at the first stage.
        segment.write_number(SLOT_WORDS + 64 * slot, 1 << 4);
    }
}

/// A handle that says: this process, these descriptors.
fn handle(control: i32, id: &[u8]) -> Vec<u8> {
    let route = [1, std::process::id().into(), control as u64, world().1.raw() as u64];
    let mut bytes = [b"rwpool1\0", id].concat();
    bytes.extend(route.map(u64::to_le_bytes).concat());
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Configurations of real pools, and of each kind of file.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let ragged = options(false, 2).fields(vec![field("x", 10), field("y", 0)]);
    for options in [options(true, 2), options(false, 3), ragged.name("named")] {
        let pool = Pool::create(&options).expect("a small pool");
        let control = Segment::over(&segments(&pool).0);
        let len = control.read_number(8) >> 32;
        let words = (0..len.div_ceil(8)).map(|i| control.read_number(CONFIG + 8 * i as usize));
        let mut config: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        config.truncate(len as usize);
        seeds.push([&[0, 0], &config[..]].concat());
        seeds.push([&[8, 0], &config[..]].concat());
        seeds.push([&[0, 12], &[1_u8; 12][..], &config[..]].concat());
    }
    for kind in 4..8 {
        seeds.extend((0..4).map(|n| vec![kind, 0, n, 0, n]));
    }
    seeds
}
