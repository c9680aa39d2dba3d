//! Who looks on: sees what the dead held come back, takes the place of roles that have died out, and
//! compares what came out with what went in.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ropeway::{Error, Pool, Result, State, WriteLease};

use crate::belongings::Belongings;
use crate::ledger::{Ledger, now, state};
use crate::plan::{Deed, Kind, Plan, Role};
use crate::roles::{Actor, PATIENCE};

/// The judge of a round.
pub struct Judge<'a> {
    actor: Actor<'a>,
    plan: &'a Plan,
    ledger: &'a Ledger,
}

impl<'a> Judge<'a> {
    pub fn new(plan: &'a Plan, ledger: &'a Ledger) -> Judge<'a> {
        Judge { actor: Actor::new(plan, ledger, plan.parts.len()), plan, ledger }
    }

    /// Watches the round to its end.
    pub fn watch(&mut self) -> Result<()> {
        if self.plan.kind.is_about_arrays() {
            return crate::arrays::judge(&mut self.actor);
        }
        let before = Belongings::of_this_process();
        let pool = self.enter()?;
        self.look_on(&pool, |role| matches!(role, Role::Producer(_)))?;
        self.ledger.dismissed.store(1, SeqCst);
        pool.close()?;
        self.look_on(&pool, |_| true)?;
        self.drain(&pool)?;
        self.check_slots(&pool)?;
        self.check_messages(&pool);
        ropeway::leave_all();
        drop(pool);
        if let Some(left) = before.left() {
            self.ledger.complain(format!("the survivor keeps {left}"));
        }
        Ok(())
    }

    fn enter(&self) -> Result<Pool> {
        if self.plan.parts.iter().any(|part| part.role == Role::Maker) {
            return self.actor.join();
        }
        let pool = Pool::create(&self.plan.options)?;
        self.ledger.set_handle(&pool.handle()?.to_bytes());
        Ok(pool)
    }

    /// Looks on until all with these roles have left and hold nothing.
    fn look_on(&mut self, pool: &Pool, who: impl Fn(Role) -> bool) -> Result<()> {
        let end = now() + PATIENCE.as_nanos() as u64;
        loop {
            let settled = self.settle(pool)?;
            let all_left =
                self.actor.everybody().filter(|(role, _)| who(*role)).all(|(_, person)| person.has_left());
            let children = self.ledger.children.load(SeqCst);
            if settled && all_left && children == 0 && self.all_could_join() {
                return Ok(());
            }
            if now() > end {
                let story: Vec<_> = pool.status().slots.iter().filter_map(|slot| slot.held_by()).collect();
                self.ledger.complain(format!("not settled after {PATIENCE:?}: {story:?}"));
                return Ok(());
            }
            self.stand_in(pool)?;
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// A pool is found as long as its maker lives, so that one isn't dismissed before.
    fn all_could_join(&self) -> bool {
        let has_maker = self.actor.everybody().any(|(role, _)| role == Role::Maker);
        !has_maker || self.ledger.joined.load(SeqCst) as usize >= self.plan.parts.len()
    }

    /// True when those who are gone hold nothing.
    fn settle(&self, pool: &Pool) -> Result<bool> {
        self.actor.note_recoveries(|person| {
            // Any call that looks whether there is work does this: it sweeps if it hasn't for 50 ms.
            pool.waiting("use")?;
            let pid = u64::from(person.pid.load(SeqCst));
            let status = pool.status();
            let holds = status.slots.iter().any(|slot| slot.pid == Some(pid));
            Ok(!holds && status.members.iter().all(|member| member.pid != pid))
        })
    }

    /// Does the work of a role that nobody plays any more.
    fn stand_in(&mut self, pool: &Pool) -> Result<()> {
        let gone = |wanted: Role| {
            self.actor.everybody().filter(|(role, _)| *role == wanted).all(|(_, p)| p.has_left())
        };
        let (no_relay, no_consumer) = (gone(Role::Relay), gone(Role::Consumer));
        if self.plan.has_relays() && no_relay {
            while self.actor.relay(pool, Duration::ZERO)? {}
        }
        if no_consumer {
            while self.actor.consume(pool, Duration::ZERO)? {}
        }
        Ok(())
    }

    fn drain(&mut self, pool: &Pool) -> Result<()> {
        if self.plan.has_relays() {
            while self.actor.relay(pool, PATIENCE)? {}
        }
        while self.actor.consume(pool, PATIENCE)? {}
        Ok(())
    }

    // ---- the verdict --------------------------------------------------------------------------

    /// Every slot is free and can be had, as far as it exists.
    fn check_slots(&self, pool: &Pool) -> Result<()> {
        let status = pool.status();
        let lost = |slot: &&ropeway::SlotStatus| {
            !(slot.state == State::Absent || slot.state == State::Idle && slot.stage == "fill")
        };
        if let Some(slot) = status.slots.iter().find(lost) {
            self.ledger.complain(format!("a slot isn't free at the end: {slot:?}"));
        }
        let free = status.slots.iter().filter(|slot| slot.state == State::Idle).count();
        if free < self.plan.options.slots {
            self.ledger.complain(format!("{free} of {} slots are there", self.plan.options.slots));
        }
        let more: Option<WriteLease> = match pool.try_acquire() {
            Err(Error::Closed(_) | Error::PeerDied(_)) => None,
            other => Some(other?),
        };
        if more.is_some() {
            self.ledger.complain("a slot was begun after the pool was closed");
        }
        Ok(())
    }

    /// Each message has arrived once, or is reported lost with the number of its dead holder.
    fn check_messages(&self, pool: &Pool) {
        let gone: Vec<_> = self.actor.everybody().filter(|(_, person)| person.is_gone()).collect();
        let mut hands: HashMap<u32, u32> = HashMap::new();
        for (role, person) in &gone {
            if *role == Role::Consumer {
                *hands.entry(person.current.load(SeqCst)).or_default() += 1;
            }
        }
        let (mut missing, mut unfinished) = (0, 0);
        for (id, message) in self.ledger.messages.iter().enumerate() {
            let [begun, published, read, done] =
                [&message.begun, &message.published, &message.read, &message.done].map(|n| n.load(SeqCst));
            let died_with = hands.get(&(id as u32 + 1)).copied().unwrap_or(0);
            if done > 1 || read > done + died_with {
                let story = format!("{read} times read, {done} times released, {died_with} died with it");
                self.ledger.complain(format!("message {id} arrived more than once: {story}"));
            }
            missing += u32::from(published > 0 && read == 0);
            unfinished += u32::from(begun > 0 && read > 0 && done == 0);
        }
        let status = pool.status();
        let lost = status.lost.len() as u32;
        self.ledger.lost.store(lost, SeqCst);
        let dead: Vec<_> = gone.iter().map(|(_, person)| u64::from(person.pid.load(SeqCst))).collect();
        let unwinds = self.plan.kind == Kind::Deed(Deed::Panic);
        for loss in &status.lost {
            if !dead.contains(&loss.pid) && !unwinds {
                self.ledger.complain(format!("a loss names one who isn't dead: {loss:?}, dead are {dead:?}"));
            }
        }
        let holders =
            gone.iter().filter(|(role, _)| matches!(role, Role::Relay | Role::Consumer)).count() as u32;
        // Reports of one slot replace each other; each is about a message that has gone missing, or
        // that its last reader has died with, or that had just been begun.
        let holders = holders + u32::from(unwinds);
        if missing > holders || (missing > 0) && lost == 0 || lost > holders {
            self.ledger.complain(format!(
                "{missing} messages are missing, {unfinished} unfinished, {lost} reported lost, {holders} died holding"
            ));
        }
        if self.actor.everybody().all(|(_, person)| person.state.load(SeqCst) == state::FINISHED)
            && !unwinds
            && missing + unfinished + lost > 0
        {
            self.ledger.complain(format!("nobody died, and {missing} messages are missing, {lost} reported"));
        }
    }
}
