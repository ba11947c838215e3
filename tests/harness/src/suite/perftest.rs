//! Runs the programs of perftest, of any version, each with itself on one device.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::vm::{Error, Result};

use super::table::{Outcome, Outcomes};

/// The programs and their options. WRITE and READ validate the data where perftest supports it.
const LINES: [(&str, &[&str]); 8] = [
    (
        "ib_send_bw",
        &[
            "-n 100",
            "-n 100 -c UC -s 1024 -r 200",
            "-n 100 -c UD -r 200",
            "-n 100 -c XRC",
            "-n 100 -b",
            "-n 100 -e",
            "-n 100 -q 8",
            "-n 100 -c XRC -q 4",
            "-n 100 --use-srq",
            "-n 100 --odp",
            "-D 2",
        ],
    ),
    ("ib_send_lat", &["-n 100", "-n 100 -c UC", "-n 100 -c UD", "-n 100 -c XRC", "-n 100 -e"]),
    (
        "ib_write_bw",
        &[
            "-n 100 --data_validation",
            "-n 100 --data_validation -q 8",
            "-n 100 --data_validation -s 1000000",
            "-n 100 --write_with_imm",
            "-n 100 -c UC",
            "-n 100 -c XRC",
            "-n 100 -b",
            "-n 5 -a",
        ],
    ),
    (
        "ib_write_lat",
        &[
            "-n 100",
            "-n 100 --write_with_imm",
            "-n 100 -c UC",
            "-n 100 -c XRC",
            "-n 100 -I 64 -s 64",
        ],
    ),
    (
        "ib_read_bw",
        &[
            "-n 100 --data_validation",
            "-n 100 --data_validation -q 8",
            "-n 100 -c XRC",
            "-n 100 -b",
            "-n 100 -e",
            "-n 100 --odp",
        ],
    ),
    ("ib_read_lat", &["-n 100", "-n 100 -c XRC"]),
    (
        "ib_atomic_bw",
        &["-n 100", "-n 100 -A CMP_AND_SWAP", "-n 100 -c XRC", "-n 100 -b", "-n 100 -q 8"],
    ),
    ("ib_atomic_lat", &["-n 100", "-n 100 -c XRC"]),
];

/// A script that runs a line with `play PROGRAM OPTIONS` on `$device`.
/// It prints the result, and the output if the line failed. If one end fails, the other is ended.
const PLAY: &str = r#"
    cd /run
    port=18515
    play() {
        line="$*" name=$1 port=$((port + 1)) ended=0
        shift
        set -- $programs/$name -d $device -x 1 -F -p $port "$@"
        timeout 60 "$@" > server 2>&1 & server=$!
        until ss -Htln "sport = :$port" | grep -q . || ! kill -0 $server 2> gone; do
            sleep 0.02
        done
        timeout 60 "$@" 127.0.0.1 > client 2>&1 || ended=$?
        [ $ended = 0 ] || kill $server 2> gone
        if wait $server && [ $ended = 0 ]; then
            echo "perftest: $line ... ok"
        else
            echo "perftest: $line ... FAIL"
            cat server client
        fi
    }
"#;

/// Compiles the programs if they do not exist, and returns the script that runs them.
///
/// # Errors
/// The checkout does not exist, or its programs cannot be compiled.
pub fn command(source: &Path) -> Result<String> {
    let source = source.canonicalize().map_err(|e| Error::io(source, &e))?;
    if !source.join(LINES[0].0).exists() {
        compile(&source)?;
    }
    let mut script = format!("programs={}{PLAY}", source.display());
    for (program, lines) in LINES {
        for options in lines {
            let _ = writeln!(script, "play {program} {options}");
        }
    }
    Ok(script)
}

fn compile(source: &Path) -> Result<()> {
    println!("compiling {}", source.display());
    let script = "./autogen.sh && ./configure && make";
    let out = Command::new("sh").args(["-c", script]).current_dir(source).output();
    let out = out.map_err(|e| Error::Missing(format!("sh: {e}")))?;
    let said = String::from_utf8_lossy(&out.stderr);
    match out.status.success() {
        true => Ok(()),
        false => Err(Error::Failed(format!("{}: {}", source.display(), said.trim()))),
    }
}

/// Parses the output of the script that [`command`] returns.
pub fn parse(said: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in said.lines().filter_map(|line| line.strip_prefix("perftest: ")) {
        let Some((test, outcome)) = line.rsplit_once(" ... ") else { continue };
        let outcome = if outcome == "ok" { Outcome::Passed } else { Outcome::Failed };
        let program = test.split(' ').next().unwrap_or_default().to_owned();
        outcomes.insert((program, test.to_owned()), outcome);
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_end() {
        let said = "perftest: ib_send_bw -n 100 ... ok\nfailed ... ok\n\
            perftest: ib_send_bw -n 100 -c XRC ... FAIL\n";
        let outcomes = parse(said);
        let of = |options: &str| {
            outcomes[&("ib_send_bw".into(), format!("ib_send_bw {options}"))].clone()
        };
        assert_eq!(outcomes.len(), 2);
        assert_eq!((of("-n 100"), of("-n 100 -c XRC")), (Outcome::Passed, Outcome::Failed));
    }

    /// The script is inserted into another one within single quotes.
    #[test]
    fn the_script_has_no_single_quote() {
        let lines = LINES.iter().flat_map(|(_, lines)| lines.iter());
        assert!(!PLAY.contains('\'') && lines.clone().count() > 40);
        assert!(lines.copied().all(|line| !line.contains('\'')));
    }
}
