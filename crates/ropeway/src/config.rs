//! What a pool is: written once by its creator, copied and checked by everyone who attaches.

use crate::error::{Error, Result};
use crate::field::{Field, PAGE, round_up};
use crate::wire::{Reader, Writer};
use crate::word::{MAX_STAGES, Rules};

/// The most slots that a pool can have.
pub const MAX_SLOTS: usize = 65_536;
/// Bytes reserved behind each packed slot for its metadata blob.
pub(crate) const PACKED_META: u64 = 65_536;
/// Large regions begin at a multiple of this, so that huge pages fit.
pub(crate) const HUGE: u64 = 2 << 20;

/// The fixed properties of a pool, as its maker asks for them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slots that exist from the start.
    pub slots: usize,
    /// Slots that may exist at most; 0 means as many as from the start.
    pub max_slots: usize,
    /// The arrays of every slot; `None` for slots into which each holder puts its own.
    pub fields: Option<Vec<Field>>,
    /// Names of the stages that a slot passes, at least two.
    pub stages: Vec<String>,
    /// Stages (indices) whose work can be done again from what is published there.
    pub repeatable: Vec<usize>,
    /// How often a slot is delivered again after the death of its reader.
    pub redeliveries: u8,
    /// A name by which other processes of this user find the pool.
    pub name: Option<String>,
    /// The most bytes that all slots together may take.
    pub memory_limit: Option<u64>,
    /// How many messages may be filling or waiting at once (queues).
    pub waiting_limit: Option<usize>,
}

impl Options {
    /// A pool of `slots` empty slots with the stages `fill` and `use`.
    pub fn new(slots: usize) -> Options {
        Options {
            slots,
            max_slots: 0,
            fields: None,
            stages: vec!["fill".into(), "use".into()],
            repeatable: Vec::new(),
            redeliveries: 3,
            name: None,
            memory_limit: None,
            waiting_limit: None,
        }
    }

    /// Gives every slot these arrays.
    pub fn fields(mut self, fields: Vec<Field>) -> Options {
        self.fields = Some(fields);
        self
    }

    /// Lets slots pass these stages.
    pub fn stages<T: Into<String>>(mut self, stages: impl IntoIterator<Item = T>) -> Options {
        self.stages = stages.into_iter().map(Into::into).collect();
        self
    }

    /// Lets other processes of this user find the pool.
    pub fn name(mut self, name: &str) -> Options {
        self.name = Some(name.into());
        self
    }
}

/// The checked properties of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub id: [u8; 16],
    pub slots: usize,
    pub max_slots: usize,
    pub fields: Option<Vec<Field>>,
    pub stages: Vec<String>,
    pub rules: Rules,
    pub name: Option<String>,
    pub memory_limit: Option<u64>,
    pub waiting_limit: Option<usize>,
    pub data_len: u64,
    pub data_inode: (u64, u64),
    pub creator_pid: u32,
}

impl Config {
    /// Checks what was asked for. Data segment and creator are filled in by the caller.
    pub fn new(options: &Options, id: [u8; 16]) -> Result<Config> {
        let max_slots = options.max_slots.max(options.slots);
        let config = Config {
            id,
            slots: options.slots,
            max_slots,
            fields: options.fields.clone(),
            stages: options.stages.clone(),
            rules: Rules {
                last: options.stages.len().saturating_sub(1),
                repeatable: options
                    .repeatable
                    .iter()
                    .filter(|&&s| s < MAX_STAGES)
                    .fold(0, |mask, s| mask | 1 << s),
                redeliveries: options.redeliveries,
            },
            name: options.name.clone(),
            memory_limit: options.memory_limit,
            waiting_limit: options.waiting_limit,
            data_len: 0,
            data_inode: (0, 0),
            creator_pid: 0,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::Invalid(why));
        if self.max_slots == 0 || self.max_slots > MAX_SLOTS || self.slots > self.max_slots {
            return invalid(format!(
                "a pool has 1 to {MAX_SLOTS} slots, found {}, and {} at most",
                self.slots, self.max_slots
            ));
        }
        if self.stages.len() < 2 || self.stages.len() > MAX_STAGES {
            return invalid(format!("a pool has 2 to {MAX_STAGES} stages, found {:?}", self.stages));
        }
        if let Some(twice) = repeated(self.stages.iter()) {
            return invalid(format!("stage {twice:?} is named twice in {:?}", self.stages));
        }
        let Some(fields) = &self.fields else { return Ok(()) };
        if let Some(twice) = repeated(fields.iter().map(|f| &f.name)) {
            return invalid(format!("field {twice:?} is named twice"));
        }
        if self
            .slot_bytes()
            .is_none_or(|all| all.checked_mul(self.max_slots as u64).is_none_or(|all| all > 1 << 46))
        {
            return Err(Error::OutOfMemory(format!(
                "{} slots of {} bytes are more than an address space holds (2^46 bytes)",
                self.max_slots,
                fields.iter().fold(0_u64, |all, f| all.saturating_add(f.bytes())),
            )));
        }
        Ok(())
    }

    /// Bytes of the arrays of one slot, each rounded up to its alignment.
    pub fn slot_bytes(&self) -> Option<u64> {
        let fields = self.fields.as_deref().unwrap_or(&[]);
        fields.iter().try_fold(0_u64, |all, f| all.checked_add(round_up(f.bytes(), PAGE)?))
    }

    /// True when all slots of one field form one contiguous array.
    pub fn is_packed(&self) -> bool {
        self.fields.as_ref().is_some_and(|fields| {
            !fields.is_empty() && fields.iter().all(|f| f.bytes() > 0 && f.bytes().is_multiple_of(64))
        })
    }

    /// Where the region of each field begins, then where the metadata begins, then the end.
    pub fn regions(&self) -> Option<Vec<u64>> {
        let mut regions = vec![0];
        let mut at = 0_u64;
        for field in self.fields.as_deref().unwrap_or(&[]) {
            let bytes = field.bytes().checked_mul(self.max_slots as u64)?;
            at = round_up(at.checked_add(bytes)?, if bytes >= HUGE { HUGE } else { PAGE })?;
            regions.push(at);
        }
        regions.push(at.checked_add(PACKED_META.checked_mul(self.max_slots as u64)?)?);
        Some(regions)
    }

    pub fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        let optional = |n: Option<u64>| n.map_or(0, |n| n.saturating_add(1));
        w.number(self.slots as u64).number(self.max_slots as u64);
        w.number(self.rules.repeatable.into()).number(self.rules.redeliveries.into());
        w.number(optional(self.memory_limit)).number(optional(self.waiting_limit.map(|n| n as u64)));
        w.number(self.data_len).number(self.data_inode.0).number(self.data_inode.1);
        w.number(self.creator_pid.into());
        w.text(self.name.as_deref().unwrap_or(""));
        w.number(self.stages.len() as u64);
        for stage in &self.stages {
            w.text(stage);
        }
        w.number(optional(self.fields.as_ref().map(|f| f.len() as u64)));
        for field in self.fields.iter().flatten() {
            w.field(field);
        }
        w.0
    }

    /// Reads and checks what somebody else has written.
    pub fn read(bytes: &[u8], id: [u8; 16]) -> Result<Config> {
        let mut r = Reader::new(bytes, "the pool's control segment");
        let size = |r: &mut Reader| r.number().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let optional = |n: u64| n.checked_sub(1);
        let (slots, max_slots) = (size(&mut r)?, size(&mut r)?);
        let repeatable =
            u16::try_from(r.number()?).map_err(|_| r.broken("the repeatable stages aren't 16 bits"))?;
        let redeliveries =
            u8::try_from(r.number()?).map_err(|_| r.broken("the redeliveries aren't 8 bits"))?;
        let (memory_limit, waiting_limit) =
            (optional(r.number()?), optional(r.number()?).map(|n| n as usize));
        let (data_len, data_inode) = (r.number()?, (r.number()?, r.number()?));
        let creator_pid =
            u32::try_from(r.number()?).map_err(|_| r.broken("the creator's pid isn't 32 bits"))?;
        let name = Some(r.text()?).filter(|name| !name.is_empty());
        let stages = (0..r.count(8)?).map(|_| r.text()).collect::<Result<Vec<_>>>()?;
        let fields = match optional(r.number()?) {
            None => None,
            Some(n) if n > 4096 => return Err(r.broken("more than 4096 fields")),
            Some(n) => Some((0..n).map(|_| r.field()).collect::<Result<Vec<_>>>()?),
        };
        r.end()?;
        let rules = Rules { last: stages.len().saturating_sub(1), repeatable, redeliveries };
        let config = Config {
            id,
            slots,
            max_slots,
            fields,
            stages,
            rules,
            name,
            memory_limit,
            waiting_limit,
            data_len,
            data_inode,
            creator_pid,
        };
        config.check().map_err(|e| Error::Incompatible(format!("the pool's control segment: {e}")))?;
        Ok(config)
    }

    /// Index of the stage of that name.
    pub fn stage(&self, name: &str) -> Result<usize> {
        self.stages.iter().position(|s| s == name).ok_or_else(|| {
            Error::NoSuch(format!("{}: no stage {name:?}; its stages are {:?}", self.label(), self.stages))
        })
    }

    /// How messages call the pool.
    pub fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("pool {name:?}"),
            None => format!("pool {}", hex(&self.id[..4])),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn repeated<'a>(names: impl Iterator<Item = &'a String> + Clone) -> Option<&'a String> {
    names
        .clone()
        .enumerate()
        .find(|(i, name)| names.clone().take(*i).any(|n| n == *name))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_config_reads_back() {
        let fields = vec![
            Field::new("image", "<f4", 4, &[8, 3, 16, 16]).unwrap(),
            Field::new("label", "<f4", 4, &[16]).unwrap(),
        ];
        let mut options = Options::new(4).fields(fields).stages(["fill", "augment", "use"]).name("p");
        options.memory_limit = Some(0);
        options.repeatable = vec![1];
        let config = Config::new(&options, [7; 16]).unwrap();
        assert_eq!(Config::read(&config.write(), [7; 16]).unwrap(), config);
        assert!(config.is_packed());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Config::new(&Options::new(0), [0; 16]).is_err());
        assert!(Config::new(&Options::new(MAX_SLOTS + 1), [0; 16]).is_err());
        assert!(Config::new(&Options::new(1).stages(["fill"]), [0; 16]).is_err());
        assert!(Config::new(&Options::new(1).stages(["a", "a"]), [0; 16]).is_err());
        let huge = Field::new("x", "|u1", 1, &[1 << 45]).unwrap();
        assert!(Config::new(&Options::new(4).fields(vec![huge]), [0; 16]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Config::read(&bytes, [0; 16]);
        }

        #[test]
        fn a_flipped_byte_is_survived(at in 0usize..300, value: u8) {
            let config = Config::new(&Options::new(4), [7; 16]).unwrap();
            let mut bytes = config.write();
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = Config::read(&bytes, [7; 16]);
        }
    }
}
