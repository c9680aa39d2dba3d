//! What lies in a held slot: its arrays and its metadata.
//!
//! In a packed pool the arrays are the same in every slot and follow from the configuration. In an
//! arena pool each holder lays them out; their description travels in a *blob* in the slot's own
//! memory, together with the metadata. A reader copies the blob once and checks all of it.

use crate::attachment::Attachment;
use crate::config::PACKED_META;
use crate::error::{Error, Result};
use crate::extents::Cursor;
use crate::field::{ALIGNMENT, Field};
use crate::memory::{Asking, Memory, Span};
use crate::sync::{Ordering, crash_point};
use crate::wire::{Reader, Writer};

/// Descriptions of up to this many bytes are read without asking how much memory there is.
const LONG: u64 = 1 << 20;

/// The arrays and the metadata of a held slot, as far as they were looked at.
pub(crate) struct Contents {
    /// Arrays of an arena slot with their offsets; `None` until the blob was read.
    placed: Option<Vec<(Field, u64)>>,
    meta: Option<Vec<u8>>,
    cursor: Cursor,
    changed: bool,
}

impl Contents {
    /// Empties a slot that was claimed at the first stage.
    pub fn clear(at: &Attachment, slot: usize) {
        let blob = &at.board.0.record(slot).blob;
        if blob.load(Ordering::Relaxed) != 0 {
            blob.store(0, Ordering::Relaxed);
        }
    }

    /// A slot that begins empty, at the first stage.
    pub fn fresh() -> Contents {
        Contents {
            placed: Some(Vec::new()),
            meta: Some(Vec::new()),
            cursor: Cursor::default(),
            changed: false,
        }
    }

    /// A slot that somebody has published.
    pub fn published() -> Contents {
        Contents { placed: None, meta: None, cursor: Cursor::default(), changed: false }
    }

    /// The arrays of an arena slot.
    pub fn fields(&mut self, at: &Attachment, slot: usize) -> Result<Vec<Field>> {
        self.load(at, slot)?;
        Ok(self.placed.iter().flatten().map(|(field, _)| field.clone()).collect())
    }

    /// An array of an arena slot by name, or the only one: which it is, and where it lies.
    pub fn find(
        &mut self,
        at: &Attachment,
        slot: usize,
        name: Option<&str>,
    ) -> Result<Option<(usize, Field, u64)>> {
        self.load(at, slot)?;
        let placed = self.placed.as_deref().unwrap_or_default();
        let wanted = |field: &Field| name.map_or(placed.len() == 1, |name| field.name == name);
        let found = placed.iter().enumerate().find(|(_, (field, _))| wanted(field));
        Ok(found.map(|(array, (field, offset))| (array, field.clone(), *offset)))
    }

    pub fn meta(&mut self, at: &Attachment, slot: usize) -> Result<Vec<u8>> {
        self.load(at, slot)?;
        Ok(self.meta.clone().unwrap_or_default())
    }

    pub fn set_meta(&mut self, at: &Attachment, slot: usize, meta: &[u8]) -> Result<()> {
        if at.regions.is_some() && meta.len() as u64 > PACKED_META / 2 - 64 {
            return Err(Error::Invalid(format!(
                "slot {slot} of {}: metadata of a packed slot is at most {} bytes, found {}",
                at.config().label(),
                PACKED_META / 2 - 64,
                meta.len()
            )));
        }
        self.load(at, slot)?;
        self.meta = Some(meta.to_vec());
        self.changed = true;
        Ok(())
    }

    /// Where another array may go; an error if the slot can't have it.
    pub fn room_for(&mut self, at: &Attachment, slot: usize, field: &Field, label: &str) -> Result<Cursor> {
        if at.regions.is_some() {
            return Err(Error::Invalid(format!(
                "{label}: the arrays of this pool are fixed by its fields; {:?} can't be added",
                field.name
            )));
        }
        self.load(at, slot)?;
        if self.placed.iter().flatten().any(|(other, _)| other.name == field.name) {
            return Err(Error::Invalid(format!("{label}: it has an array {:?} already", field.name)));
        }
        Ok(self.cursor)
    }

    /// Where the next array may go.
    pub fn room(&mut self, at: &Attachment, slot: usize) -> Result<Cursor> {
        self.load(at, slot)?;
        Ok(self.cursor)
    }

    /// Notes where the next array may go.
    pub fn set_room(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Notes an array that was placed, and where the next may go.
    pub fn put(&mut self, field: Field, (offset, behind): (u64, Cursor)) {
        self.placed.get_or_insert_default().push((field, offset));
        self.cursor = behind;
        self.changed = true;
    }

    /// Writes the blob, if there is anything new to say, and puts it in place by one store.
    pub fn write_back(&mut self, at: &Attachment, slot: usize) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        let mut fields = Writer::default();
        let placed = self.placed.as_deref().unwrap_or(&[]);
        fields.number(placed.len() as u64);
        for (field, offset) in placed {
            fields.field(field).number(*offset);
        }
        let mut blob = Writer::default();
        blob.bytes(&fields.0).bytes(self.meta.as_deref().unwrap_or(&[]));
        let mut framed = Writer::default();
        framed.bytes(&blob.0);
        let len = framed.0.len() as u64;
        let record = at.board.0.record(slot);
        let what = format!("slot {slot} of {}, description of {len} bytes", at.config().label());
        let mut asking = Asking { me: at.me, what: &what, pulse: &mut || true };
        let offset = match &at.regions {
            // Two halves in turn, so that the old blob stands until the new one is whole.
            Some(regions) => {
                let half = PACKED_META / 2;
                let Span { offset, .. } = Memory::packed_meta(regions, slot);
                let offset =
                    if record.blob.load(Ordering::Relaxed) == offset + 1 { offset + half } else { offset };
                at.memory.commit_meta(&at.board.0, offset, len, &mut asking)?;
                offset
            }
            None => at.memory.place(&at.board.0, slot, &mut self.cursor, len, ALIGNMENT, &mut asking)?,
        };
        at.memory.write(offset, &framed.0);
        crash_point!("blob.before");
        record.blob.store(offset + 1, Ordering::Release);
        self.changed = false;
        Ok(())
    }

    /// Reads and checks the blob, once.
    fn load(&mut self, at: &Attachment, slot: usize) -> Result<()> {
        if self.placed.is_some() {
            return Ok(());
        }
        let control = &at.board.0;
        let Some(offset) = control.record(slot).blob.load(Ordering::Acquire).checked_sub(1) else {
            (self.placed, self.meta) = (Some(Vec::new()), Some(Vec::new()));
            return Ok(());
        };
        let spans = match &at.regions {
            Some(regions) => vec![Memory::packed_meta(regions, slot)],
            None => at.memory.extents(control, slot)?,
        };
        let broken =
            |why: &str| Error::Incompatible(format!("slot {slot} of {}: {why}", at.config().label()));
        let home = spans
            .iter()
            .find(|s| s.contains(offset, 8))
            .ok_or_else(|| broken("its description lies outside of it"))?;
        let len = u64::from_le_bytes(at.memory.read(offset, 8).try_into().expect("8 bytes were read"));
        if !home.contains(offset + 8, len) {
            return Err(broken("its description reaches out of it"));
        }
        // An extent may be far longer than what it has of memory, and reading a hole would fill it.
        if len > LONG && len > at.memory.allocated() {
            return Err(broken("its description is longer than all that the pool has in memory"));
        }
        let bytes = at.memory.read(offset + 8, len as usize);
        let mut r = Reader::new(&bytes, "a slot's description");
        let (fields, meta) = (r.bytes()?, r.bytes()?.to_vec());
        r.end()?;
        let mut r = Reader::new(fields, "a slot's list of arrays");
        let mut placed = Vec::new();
        for _ in 0..r.count(40)? {
            let (field, offset) = (r.field()?, r.number()?);
            if !offset.is_multiple_of(ALIGNMENT) || !spans.iter().any(|s| s.contains(offset, field.bytes())) {
                return Err(broken(&format!("array {:?} lies outside of it", field.name)));
            }
            placed.push((field, offset));
        }
        if let Some(name) = repeated(&placed) {
            return Err(broken(&format!("it has two arrays {name:?}")));
        }
        self.cursor = behind(&spans, placed.iter().map(|(f, at)| at + f.bytes()).chain([offset + 8 + len]));
        (self.placed, self.meta) = (Some(placed), Some(meta));
        Ok(())
    }
}

/// A name that two of the arrays have.
fn repeated(placed: &[(Field, u64)]) -> Option<&str> {
    if placed.len() < 2 {
        return None;
    }
    let mut names: Vec<&str> = placed.iter().map(|(field, _)| field.name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|two| two[0] == two[1]).map(|two| two[0])
}

/// The place behind the last of some ends.
fn behind(spans: &[Span], ends: impl Iterator<Item = u64>) -> Cursor {
    let mut cursor = Cursor::default();
    for end in ends {
        let home = spans.iter().enumerate().find(|(_, s)| end >= s.offset && end <= s.end());
        if let Some((extent, span)) = home
            && (extent, end - span.offset) > (cursor.extent, cursor.used)
        {
            cursor = Cursor { extent, used: end - span.offset };
        }
    }
    cursor
}
