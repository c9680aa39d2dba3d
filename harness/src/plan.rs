//! What happens in a round: which pool, which processes, and what befalls whom.

use std::time::Duration;

use ropeway::{Field, Options};

use crate::chance::Chance;
use crate::ledger::{EACH, PRODUCERS};

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes the pool, waits to be dismissed, lets go of it.
    Maker,
    /// Publishes messages of its number.
    Producer(usize),
    /// Changes messages in place, in the middle.
    Relay,
    /// Takes messages.
    Consumer,
    /// Makes arrays, sends them, opens those of others.
    Sharer,
}

/// What a process does to itself in the middle of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Becomes another program.
    Exec,
    /// Exits as programs do: exit handlers run, the lease is still open.
    Exit,
    /// Exits without exit handlers.
    QuickExit,
    /// Its thread unwinds, and a new one goes on.
    Panic,
    /// Forks a child that misuses what it inherits and uses the pool itself; then goes on.
    Fork,
    /// The same with a child of a child.
    ForkOfFork,
    /// The same with a child that no fork handler hears of.
    Clone,
    /// Forks a child that lives on, and is killed itself.
    ForkAndDie,
}

/// What befalls a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Peace,
    /// It is killed that long after it has begun.
    Kill(Duration),
    /// It is stopped, and goes on later.
    Stop(Duration, Duration),
    /// It is stopped, and killed then.
    StopAndKill(Duration, Duration),
    /// It dies at a named point: `NAME:N`.
    Point(String),
    /// It does something in its N-th lease.
    Do(u32, Deed),
    /// Its first thread ends at once; the second is killed.
    LeaderGone(Duration),
}

impl Fate {
    /// True when the process won't come to its own end.
    pub fn is_an_end(&self) -> bool {
        match self {
            Fate::Peace | Fate::Stop(..) => false,
            Fate::Do(_, deed) => matches!(deed, Deed::Exec | Deed::Exit | Deed::QuickExit | Deed::ForkAndDie),
            _ => true,
        }
    }
}

/// What a round is about: a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    KillProducer,
    KillRelay,
    KillConsumer,
    KillMaker,
    KillTwo,
    KillAll,
    Stop,
    StopAndKill,
    Deed(Deed),
    LeaderGone,
    Point(&'static str),
    /// With arrays instead of a pool.
    KillSharer,
    ArrayPoint(&'static str),
}

/// Points that a process passes that makes, opens and drops small arrays.
const OF_ARRAYS: [&str; 16] = [
    "store",
    "join.before",
    "join.after",
    "claim.before",
    "claim.after",
    "extent.reserved",
    "extent.recorded",
    "commit.before",
    "publish.ticket",
    "move.before",
    "move.after",
    "bury.before",
    "commit.after",
    "serial.before",
    "mark.after",
    "unmark.after",
];

impl Kind {
    /// Every kind, in the order of the table.
    pub fn all() -> Vec<Kind> {
        let deeds = [
            Deed::Exec,
            Deed::Exit,
            Deed::QuickExit,
            Deed::Panic,
            Deed::Fork,
            Deed::ForkOfFork,
            Deed::Clone,
            Deed::ForkAndDie,
        ];
        let kinds = [
            Kind::KillProducer,
            Kind::KillRelay,
            Kind::KillConsumer,
            Kind::KillMaker,
            Kind::KillTwo,
            Kind::KillAll,
            Kind::Stop,
            Kind::StopAndKill,
            Kind::LeaderGone,
        ];
        // Only arenas have marks, and give memory back.
        let of_pools =
            |name: &&str| !["serial.before", "mark.after", "unmark.after", "punch.before"].contains(name);
        let points = ropeway::sync::crash::POINTS.into_iter().filter(of_pools);
        let of_arrays = OF_ARRAYS.map(Kind::ArrayPoint);
        let pools = kinds.into_iter().chain(deeds.map(Kind::Deed)).chain(points.map(Kind::Point));
        pools.chain([Kind::KillSharer]).chain(of_arrays).collect()
    }

    /// True when nobody ends before their time.
    pub fn leaves_all_alive(self) -> bool {
        matches!(self, Kind::Stop | Kind::Deed(Deed::Panic | Deed::Fork | Deed::ForkOfFork | Deed::Clone))
    }

    /// True for rounds with arrays.
    pub fn is_about_arrays(self) -> bool {
        matches!(self, Kind::KillSharer | Kind::ArrayPoint(_))
    }

    /// How the table calls it.
    pub fn name(self) -> String {
        match self {
            Kind::KillProducer => "SIGKILL: a producer".into(),
            Kind::KillRelay => "SIGKILL: a middle stage".into(),
            Kind::KillConsumer => "SIGKILL: a consumer".into(),
            Kind::KillMaker => "SIGKILL: the pool's maker".into(),
            Kind::KillTwo => "SIGKILL: two at once".into(),
            Kind::KillAll => "SIGKILL: all but one".into(),
            Kind::Stop => "SIGSTOP, SIGCONT".into(),
            Kind::StopAndKill => "SIGSTOP, SIGKILL".into(),
            Kind::LeaderGone => "first thread ends, SIGKILL".into(),
            Kind::Deed(Deed::Exec) => "exec within a lease".into(),
            Kind::Deed(Deed::Exit) => "exit within a lease".into(),
            Kind::Deed(Deed::QuickExit) => "_exit within a lease".into(),
            Kind::Deed(Deed::Panic) => "thread dies within a lease".into(),
            Kind::Deed(Deed::Fork) => "fork within a lease".into(),
            Kind::Deed(Deed::ForkOfFork) => "fork of a fork within a lease".into(),
            Kind::Deed(Deed::Clone) => "raw clone within a lease".into(),
            Kind::Deed(Deed::ForkAndDie) => "fork, SIGKILL of the parent".into(),
            Kind::Point(name) => format!("at {name}"),
            Kind::KillSharer => "arrays: SIGKILL".into(),
            Kind::ArrayPoint(name) => format!("arrays: at {name}"),
        }
    }
}

/// A process and what befalls it.
#[derive(Clone, Debug)]
pub struct Part {
    pub role: Role,
    pub fate: Fate,
    /// It joins when somebody else is gone.
    pub late: bool,
}

/// A round.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub kind: Kind,
    pub options: Options,
    pub parts: Vec<Part>,
    /// Messages of each producer.
    pub messages: usize,
    /// Whether readers take to write.
    pub writing_readers: bool,
}

impl Plan {
    /// Draws a round of that kind.
    pub fn draw(kind: Kind, seed: u64) -> Plan {
        let mut chance = Chance(seed);
        let relays = if kind == Kind::KillRelay || chance.one_in(2) { chance.within(1, 2) } else { 0 };
        let options = options(kind, relays > 0, seed, &mut chance);
        let mut parts = vec![];
        if kind == Kind::KillMaker || matches!(kind, Kind::Point(name) if name.starts_with("close.")) {
            parts.push(Role::Maker);
        }
        parts.extend((0..chance.within(1, PRODUCERS as u64) as usize).map(Role::Producer));
        parts.extend((0..relays).map(|_| Role::Relay));
        parts.extend((0..chance.within(1, 3)).map(|_| Role::Consumer));
        if kind.is_about_arrays() {
            parts = vec![Role::Sharer; chance.within(2, 4) as usize];
        }
        let part = |role| Part { role, fate: Fate::Peace, late: false };
        let mut parts: Vec<_> = parts.into_iter().map(part).collect();
        // A newcomer gets the place of the dead in the table of members.
        if !kind.is_about_arrays() && parts[0].role != Role::Maker && chance.one_in(2) {
            let role = if relays > 0 && chance.one_in(2) { Role::Relay } else { Role::Consumer };
            parts.push(Part { late: true, ..part(role) });
        }
        let messages = chance.within(6, EACH as u64) as usize;
        let writing_readers = chance.one_in(6);
        let mut plan = Plan { seed, kind, options, parts, messages, writing_readers };
        plan.draw_fates(&mut chance);
        plan
    }

    /// True when messages pass a middle stage.
    pub fn has_relays(&self) -> bool {
        self.options.stages.len() == 3
    }

    fn draw_fates(&mut self, chance: &mut Chance) {
        match self.kind {
            Kind::KillProducer => self.befall(chance, is_producer, kill),
            Kind::KillRelay => self.befall(chance, |role| role == Role::Relay, kill),
            Kind::KillConsumer => self.befall(chance, |role| role == Role::Consumer, kill),
            Kind::KillMaker => self.befall(chance, |role| role == Role::Maker, kill),
            Kind::KillTwo => (0..2).for_each(|_| self.befall(chance, works, kill)),
            Kind::KillAll => (1..self.parts.len()).for_each(|_| self.befall(chance, works, kill)),
            Kind::Stop => self.befall(chance, works, |chance| Fate::Stop(moment(chance), moment(chance))),
            Kind::StopAndKill => {
                self.befall(chance, works, |chance| Fate::StopAndKill(moment(chance), moment(chance)));
            }
            Kind::LeaderGone => self.befall(chance, works, |chance| Fate::LeaderGone(moment(chance))),
            Kind::Deed(deed) => self.befall(chance, works, |chance| Fate::Do(lease(chance), deed)),
            Kind::Point(name) => self.draw_point(name, chance),
            Kind::KillSharer => (0..2).for_each(|_| self.befall(chance, works, kill)),
            Kind::ArrayPoint("bury.before") => {
                self.befall(chance, works, kill);
                self.befall(chance, works, |_| Fate::Point("bury.before:1".into()));
            }
            Kind::ArrayPoint(name) => self.draw_point(name, chance),
        }
    }

    fn draw_point(&mut self, name: &'static str, chance: &mut Chance) {
        let group = name.split('.').next().unwrap_or(name);
        let often = !matches!(group, "join" | "leave" | "depart" | "close" | "sweep" | "bury" | "loss");
        let at = move |chance: &mut Chance| {
            let passage = match name {
                "store" => chance.within(1, 300),
                _ if often && !chance.one_in(4) => chance.within(1, 24),
                _ => 1,
            };
            Fate::Point(format!("{name}:{passage}"))
        };
        let claims = |chance: &mut Chance| Fate::Point(format!("claim.after:{}", lease(chance)));
        match group {
            "extent" | "commit" | "blob" | "publish" => {
                self.befall(chance, |role| is_producer(role) || role == Role::Sharer, at);
            }
            "close" => self.befall(chance, |role| role == Role::Maker, at),
            // Only what a dead one held is swept, and only what is changed in place is lost: one dies
            // with a lease, and all others but one would die taking it back.
            "loss" => {
                self.befall(chance, |role| matches!(role, Role::Relay | Role::Consumer), claims);
                (2..self.parts.len()).for_each(|_| self.befall(chance, works, at));
            }
            "sweep" | "bury" => {
                self.befall(chance, works, claims);
                (2..self.parts.len()).for_each(|_| self.befall(chance, works, at));
            }
            _ => self.befall(chance, works, at),
        }
    }

    /// Gives a fate to one of those who have none yet.
    fn befall(
        &mut self,
        chance: &mut Chance,
        who: impl Fn(Role) -> bool,
        fate: impl Fn(&mut Chance) -> Fate,
    ) {
        let fit = |part: &&mut Part| part.fate == Fate::Peace && !part.late && who(part.role);
        let mut fitting: Vec<_> = self.parts.iter_mut().filter(fit).collect();
        if !fitting.is_empty() {
            let victim = chance.below(fitting.len() as u64) as usize;
            fitting[victim].fate = fate(chance);
        }
    }
}

fn options(kind: Kind, relays: bool, seed: u64, chance: &mut Chance) -> Options {
    let loses = matches!(kind, Kind::Point("loss.before"));
    let stages: &[&str] = if relays { &["fill", "change", "use"] } else { &["fill", "use"] };
    let slots = chance.within(1, 4) as usize;
    let mut options = Options::new(slots).stages(stages.iter().copied());
    if chance.one_in(2)
        && !matches!(kind, Kind::Point(name) if name.starts_with("extent") || name.starts_with("blob"))
    {
        options.fields = Some(vec![field(64)]);
    }
    options.max_slots = slots + chance.below(3) as usize;
    options.waiting_limit = chance.one_in(3).then(|| chance.within(1, 4) as usize);
    options.redeliveries = if loses { 0 } else { chance.pick(&[3, 3, 7, 1, 0]) };
    if relays && !loses && chance.one_in(3) {
        options.repeatable = vec![1];
    }
    if chance.one_in(4) {
        options.name = Some(format!("kill-{}-{seed}", std::process::id()));
    }
    options
}

/// The array of a message, of that many numbers.
pub fn field(len: usize) -> Field {
    Field::new("n", "<u8", 8, &[len as u64]).expect("a plain field")
}

fn works(role: Role) -> bool {
    role != Role::Maker
}

fn is_producer(role: Role) -> bool {
    matches!(role, Role::Producer(_))
}

fn kill(chance: &mut Chance) -> Fate {
    Fate::Kill(moment(chance))
}

fn moment(chance: &mut Chance) -> Duration {
    // Most of the time at any instant of the whole traffic, sometimes in its first instants.
    Duration::from_micros(if chance.one_in(4) { chance.below(300) } else { chance.below(6000) })
}

fn lease(chance: &mut Chance) -> u32 {
    chance.within(1, 12) as u32
}
