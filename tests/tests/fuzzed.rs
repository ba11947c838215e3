//! Runs the fuzz targets (`rxe_tests::fuzz`) with stored inputs and with arbitrary bytes. The
//! fuzzers stored the inputs. docs/en/project/testing.md explains how to fuzz.

use std::fs;
use std::path::PathBuf;

use rxe_tests::fuzz::TARGETS;
use rxe_tests::sim::rng::Rng;

fn corpus(target: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "fuzz", "corpus", target].iter().collect()
}

#[test]
fn the_corpora_are_replayed() {
    for (name, run) in TARGETS {
        let dir = corpus(name);
        let mut files: Vec<_> = fs::read_dir(&dir)
            .unwrap_or_else(|why| panic!("{}: {why}", dir.display()))
            .map(|entry| entry.expect("a file").path())
            .collect();
        files.sort();
        assert!(files.len() >= 20, "{name}: only {} files", files.len());
        for file in &files {
            println!("{}", file.display());
            run(&fs::read(file).expect("readable"));
        }
    }
}

#[test]
fn arbitrary_bytes_are_run() {
    let mut rng = Rng::new(1);
    for (name, run) in TARGETS {
        for round in 0..500 {
            println!("{name} {round}");
            let len = rng.index(1000);
            let bytes: Vec<u8> = (0..len).map(|_| rng.bits().to_le_bytes()[0]).collect();
            run(&bytes);
        }
    }
}
