//! Every target survives its corpus, and what random changes make of it: the fuzzer of the poor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use ropeway_fuzz::{TARGETS, seeds};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// The inputs of the corpus, each with its file.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder(target)).expect("each target has a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus of {target} is empty");
    files.into_iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn pick<'a>(&mut self, from: &'a [(PathBuf, Vec<u8>)]) -> &'a [u8] {
        &from[self.below(from.len())].1
    }

    /// Changes some bytes, or cuts, repeats, inserts or splices some.
    fn mutate(&mut self, mut input: Vec<u8>, other: &[u8]) -> Vec<u8> {
        const NUMBERS: [u64; 8] = [0, 1, 0xff, 1 << 31, 1 << 32, 1 << 63, u64::MAX, u64::MAX - 7];
        for _ in 0..=self.below(4) {
            let (at, len) = (self.below(input.len()), self.below(9));
            let end = (at + len).min(input.len());
            match self.below(7) {
                0 if at < input.len() => input[at] ^= 1 << self.below(8),
                1 if at < input.len() => input[at] = self.below(256) as u8,
                2 => drop(input.drain(at..end)),
                3 => input.extend_from_within(at..end),
                4 => input.truncate(at),
                5 => {
                    let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                    let end = (at + 8).min(input.len());
                    input.splice(at..end, number);
                }
                _ => {
                    let from = self.below(other.len());
                    let piece = other[from..].iter().copied().take(32);
                    input.splice(at..end, piece);
                }
            }
        }
        input
    }
}

/// Runs a target over its corpus and over so many changes of it.
fn run(name: &str, mutations: usize) {
    let target = TARGETS.iter().find(|(other, _)| *other == name).expect("a target of that name").1;
    let survives = |what: &str, input: &[u8]| {
        let done = catch_unwind(AssertUnwindSafe(|| target(input)));
        assert!(done.is_ok(), "{name} doesn't survive {what}: {input:02x?}");
    };
    let corpus = corpus(name);
    for (file, input) in &corpus {
        survives(&file.display().to_string(), input);
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..mutations {
        let (input, other) = (random.pick(&corpus).to_vec(), random.pick(&corpus));
        survives(&format!("mutation {round}"), &random.mutate(input, other));
    }
}

#[test]
fn the_corpus_holds_the_seeds() {
    for (target, _) in TARGETS {
        let files = corpus(target);
        for seed in seeds(target) {
            // Some seeds name descriptors or inodes of the process that made them: the form counts.
            assert!(files.iter().any(|(_, input)| input.len() == seed.len()), "{target}: {seed:02x?}");
        }
    }
}

#[test]
fn attaching_survives_any_segment() {
    run("attach", 20_000);
}

#[test]
fn a_pool_survives_any_control_words() {
    run("control", 10_000);
}

#[test]
fn an_import_survives_any_tensor() {
    run("exchange", 100_000);
}

#[test]
fn a_handle_survives_any_bytes() {
    run("handles", 100_000);
}

#[test]
fn a_reader_survives_any_description() {
    run("slot", 50_000);
}
