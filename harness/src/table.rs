//! What came of all rounds, by kind.

use std::fmt::Write;

use crate::plan::Kind;
use crate::round::Outcome;

/// One row.
#[derive(Default)]
struct Row {
    rounds: u32,
    gone: u32,
    lost: u32,
    failed: u32,
    hung: u32,
    recoveries: Vec<u64>,
}

/// All rows, in the order of [`Kind::all`].
pub struct Table(Vec<(Kind, Row)>);

impl Table {
    pub fn new() -> Table {
        Table(Kind::all().into_iter().map(|kind| (kind, Row::default())).collect())
    }

    /// Adds a round.
    pub fn count(&mut self, kind: Kind, outcome: &Outcome) {
        let Some((_, row)) = self.0.iter_mut().find(|(of, _)| *of == kind) else { return };
        row.rounds += 1;
        row.gone += outcome.gone;
        row.lost += outcome.lost;
        row.failed += u32::from(!outcome.complaints.is_empty());
        row.hung += outcome.hung;
        row.recoveries.extend(&outcome.recoveries);
    }

    /// Rounds that failed.
    pub fn failed(&self) -> u32 {
        self.0.iter().map(|(_, row)| row.failed).sum()
    }

    /// Kinds in which nobody ever met their fate.
    pub fn untried(&self) -> Vec<String> {
        let tries = |row: &Row| row.rounds > 0 && row.gone == 0;
        let fatal = |kind: &Kind| !kind.leaves_all_alive();
        self.0.iter().filter(|(kind, row)| fatal(kind) && tries(row)).map(|(kind, _)| kind.name()).collect()
    }

    /// The table as text; times in ms.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:32}{:>7}{:>7}{:>7}{:>8}{:>6}{:>9}{:>7}{:>7}{:>9}\n",
            "what befell", "rounds", "ended", "lost", "failed", "hung", "back p50", "p99", "max", "> 100 ms"
        );
        let mut sum = Row::default();
        for (kind, row) in self.0.iter().filter(|(_, row)| row.rounds > 0) {
            line(&mut text, &kind.name(), row);
            sum.rounds += row.rounds;
            sum.gone += row.gone;
            sum.lost += row.lost;
            sum.failed += row.failed;
            sum.hung += row.hung;
            sum.recoveries.extend(&row.recoveries);
        }
        line(&mut text, "all", &sum);
        text
    }
}

fn line(text: &mut String, name: &str, row: &Row) {
    let mut times = row.recoveries.clone();
    times.sort_unstable();
    let at = |part: f64| {
        let last = times.len().checked_sub(1)?;
        Some(times[(last as f64 * part).round() as usize] as f64 / 1e6)
    };
    let shown = |part: f64| at(part).map_or("-".into(), |ms| format!("{ms:.1}"));
    let late = times.iter().filter(|&&ns| ns > 100_000_000).count();
    let _ = writeln!(
        text,
        "{name:32}{:>7}{:>7}{:>7}{:>8}{:>6}{:>9}{:>7}{:>7}{late:>9}",
        row.rounds,
        row.gone,
        row.lost,
        row.failed,
        row.hung,
        shown(0.5),
        shown(0.99),
        shown(1.0),
    );
}
