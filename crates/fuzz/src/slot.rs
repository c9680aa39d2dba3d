//! What stands in a slot: the description of its arrays, and its metadata.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ropeway::{Error, Pool, Wait};

use crate::bytes::Bytes;
use crate::pools::{Segment, field, options, record, segments};

/// A pool with one slot whose description is changed, and another slot that nobody may touch.
struct Victim {
    pool: Pool,
    control: Segment,
    data: Segment,
    _neighbour: ropeway::WriteLease,
    /// The addresses of the neighbour's array.
    forbidden: std::ops::Range<usize>,
}

impl Victim {
    fn new(packed: bool) -> Victim {
        let pool = Pool::create(&options(packed, 2)).expect("a small pool");
        let (control, data) = segments(&pool);
        let first = pool.try_acquire().expect("two slots are free");
        let neighbour = pool.try_acquire().expect("one slot is free");
        if !packed {
            neighbour.add(field("a", 4096), &mut || true).expect("a page");
        }
        let view = neighbour.export("a").expect("the array is there").0;
        let start = view.as_ptr().addr();
        let forbidden = start..start + view.len();
        drop((first, view));
        let (control, data) = (Segment::over(&control), Segment::over(&data));
        Victim { pool, control, data, _neighbour: neighbour, forbidden }
    }

    fn read(&self, input: &mut Bytes<'_>, framed: bool) -> ropeway::Result<()> {
        let slot = self.pool.try_acquire()?;
        if self.pool.fields().is_none() {
            slot.add(field("a", 4096), &mut || true)?;
        }
        slot.set_meta(&[1; 600])?;
        let index = slot.index();
        slot.publish()?;
        let slot =
            self.pool.take_mut_with("change", None, &mut Wait::new(Some(Duration::ZERO), &mut || true))?;
        slot.publish()?;
        self.spoil(index, input, framed);
        let slot = self.pool.try_take()?;
        slot.meta()?;
        for field in slot.fields()? {
            let (view, _) = slot.export(&field.name)?;
            let start = view.as_ptr().addr();
            assert_eq!(view.len() as u64, field.bytes());
            assert!(
                start >= self.forbidden.end || start + view.len() <= self.forbidden.start || view.is_empty(),
                "array {:?} lies in another slot",
                field.name
            );
            // SAFETY: a live view of a held slot.
            let bytes = unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len()) };
            std::hint::black_box(bytes.iter().max());
        }
        Ok(())
    }

    /// Writes the input over the description.
    fn spoil(&self, slot: usize, input: &mut Bytes<'_>, framed: bool) {
        let blob = record(slot) + 384;
        let at = self.control.read_number(blob) as usize - 1;
        if !framed {
            self.data.write_number(at, input.number());
            self.control.write_number(blob, (at as u64 + 1).wrapping_add(input.byte() as i8 as u64));
        }
        let text = input.take(600);
        if framed {
            self.data.write_number(at, text.len() as u64);
        }
        self.data.write(at + 8, text);
    }
}

/// Writes the input over the description of a slot (the first byte says of what pool, and whether
/// the length is right), and reads whatever arrays and metadata it has then.
pub fn slot(input: &[u8]) {
    static VICTIMS: OnceLock<[Mutex<Victim>; 2]> = OnceLock::new();
    let victims = VICTIMS.get_or_init(|| [false, true].map(|packed| Mutex::new(Victim::new(packed))));
    let mut input = Bytes(input);
    let kind = input.byte();
    let victim = victims[usize::from(kind & 1)].lock().unwrap_or_else(PoisonError::into_inner);
    match victim.read(&mut input, kind & 2 == 0) {
        Ok(()) | Err(Error::Incompatible(_) | Error::NoSuch(_)) => (),
        Err(other) => panic!("{other:?}"),
    }
}

/// A description: bytes of the fields, the fields, the metadata.
fn description(fields: &[(&str, &str, u64, &[u64], u64)], meta: &[u8]) -> Vec<u8> {
    let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes(), text].concat();
    let mut list = (fields.len() as u64).to_le_bytes().to_vec();
    for (name, dtype, itemsize, shape, offset) in fields {
        list.extend([text(name.as_bytes()), text(dtype.as_bytes())].concat());
        list.extend([*itemsize, shape.len() as u64].map(u64::to_le_bytes).concat());
        list.extend(shape.iter().chain([offset]).flat_map(|n| n.to_le_bytes()));
    }
    [text(&list), text(meta)].concat()
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let descriptions = [
        description(&[], b""),
        description(&[], b"{\"epoch\":3}"),
        description(&[("a", "|u1", 1, &[4096], 0)], b"m"),
        description(&[("a", "<f4", 4, &[8, 16], 0), ("b", "bfloat16", 2, &[3], 512)], b""),
        description(&[("a", "<f8", 8, &[], 64), ("", "|b1", 1, &[0, 1 << 40], 0)], b"1"),
        description(&[("a", "|u1", 1, &[1 << 62], 0)], b""),
    ];
    let kinds = |text: &Vec<u8>| (0..2).map(|kind| [&[kind], &text[..]].concat()).collect::<Vec<_>>();
    let mut seeds: Vec<_> = descriptions.iter().flat_map(kinds).collect();
    let framed = |text: &Vec<u8>| [&[2][..], &(text.len() as u64).to_le_bytes(), &[0], text].concat();
    seeds.extend(descriptions.iter().map(framed));
    seeds.push([&[3][..], &u64::MAX.to_le_bytes(), &[8]].concat());
    seeds
}
