//! What travels instead of a pool: who has it open, and how to be sure that it is the one.

use crate::error::{Error, Result};
use crate::wire::{Reader, Writer, checksum};

/// A process that has a pool open, and its descriptor numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub pid: u32,
    pub control: i32,
    pub data: i32,
}

/// A pool, as bytes that any process of the same user can open while somebody has it open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    pub(crate) id: [u8; 16],
    pub(crate) routes: Vec<Route>,
}

const KIND: &[u8; 8] = b"rwpool1\0";

impl Handle {
    /// The handle as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.0.extend_from_slice(KIND);
        w.0.extend_from_slice(&self.id);
        w.number(self.routes.len() as u64);
        for route in &self.routes {
            w.number(route.pid.into()).number(route.control as u64).number(route.data as u64);
        }
        let sum = checksum(&w.0);
        w.number(sum);
        w.0
    }

    /// Reads a handle; refuses bytes that aren't one, or were changed on the way.
    pub fn from_bytes(bytes: &[u8]) -> Result<Handle> {
        let mut r = Reader::new(bytes, "a pool's handle");
        if r.take(KIND.len())? != KIND {
            return Err(r.broken("it doesn't begin like one (made by another version?)"));
        }
        let id = r.take(16)?.try_into().expect("16 bytes were taken");
        let routes = (0..r.count(24)?)
            .map(|_| {
                let (pid, control, data) = (r.number()?, r.number()?, r.number()?);
                match (u32::try_from(pid), i32::try_from(control), i32::try_from(data)) {
                    (Ok(pid), Ok(control), Ok(data)) => Ok(Route { pid, control, data }),
                    _ => Err(r.broken("a process or descriptor number is too large")),
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let (sum, found) = (checksum(&bytes[..bytes.len() - 8.min(bytes.len())]), r.number()?);
        if sum != found {
            return Err(Error::Incompatible(format!(
                "a pool's handle was changed on the way: checksum {found:#x} expected, {sum:#x} found"
            )));
        }
        r.end()?;
        Ok(Handle { id, routes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle() -> Handle {
        Handle {
            id: [3; 16],
            routes: vec![Route { pid: 7, control: 4, data: 5 }, Route { pid: 1, control: 8, data: 9 }],
        }
    }

    #[test]
    fn a_handle_reads_back() {
        assert_eq!(Handle::from_bytes(&handle().to_bytes()).unwrap(), handle());
    }

    proptest! {
        #[test]
        fn a_changed_handle_is_refused(at in 0usize..96, bit in 0u8..8) {
            let mut bytes = handle().to_bytes();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            prop_assert!(Handle::from_bytes(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_refused(bytes: Vec<u8>) {
            prop_assert!(Handle::from_bytes(&bytes).is_err());
        }
    }
}
