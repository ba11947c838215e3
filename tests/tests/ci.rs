//! Tests of the action for GitHub and the template for GitLab: their steps run as on a runner, in
//! namespaces with a read-only root, and without the tools that the page declares unnecessary.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rxe_harness::ci::{File, quoted};
use rxe_harness::dist::Tree;

mod common;
use common::{Dir, in_namespace, installed, rxe};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns a directory with the programs below `usr`, from which [`PACK`] builds packages like a
/// release.
fn programs() -> Dir {
    let dir = Dir::new();
    let mut tree = Tree::default();
    tree.program("usr/bin/rxe", fs::read(rxe()).unwrap());
    let library = fs::read(rxe().with_file_name("librxe_preload.so")).unwrap();
    tree.file("usr/lib/rxe/librxe_preload.so", library);
    tree.file(
        "DEBIAN/control",
        "Package: rxe\nVersion: 0\nArchitecture: all\nMaintainer: none\nDescription: none\n",
    );
    tree.install(&dir.0).unwrap();
    dir
}

/// The commands that pack the programs, with fast compression.
const PACK: [(&str, &str); 2] = [
    ("rxe.tar.gz", "tar -C \"$programs\" -cf - usr | gzip -1 > rxe.tar.gz"),
    ("rxe.deb", "dpkg-deb -Zgzip -z1 --build \"$programs\" rxe.deb"),
];

/// The script before the steps of a job: only this directory is writable, as for an unprivileged
/// user, and attempts to gain privileges are detected.
const RUNNER: &str = r#"
    mount --bind "$PWD" "$PWD"; cd "$PWD"
    mount -o remount,bind,ro /
    export HOME="$PWD/home" TMPDIR="$PWD/tmp"
    mkdir -p home tmp stubs
    for program in sudo modprobe insmod apt-get; do
        printf '#!/bin/sh\necho "$0 $*" >> "%s/asked"; exit 1\n' "$PWD" > stubs/$program
        chmod +x stubs/$program
    done
    PATH=$PWD/stubs:$PATH
    ! touch /root-is-writable 2> tmp/said
"#;

/// The script after the installation steps.
const JOB: &str = r#"
    test "$(command -v rxe)" -ef "$INSTALLED/bin/rxe"
    ibv_devices | grep rxe_lo
    ibv_rc_pingpong -d rxe_lo -g 0 -c > server 2>&1 & server=$!
    tries=0
    until ss -Htln 'sport = :18515' | grep -q . || [ $tries -gt 600 ]; do
        tries=$((tries + 1)); sleep 0.05
    done
    ibv_rc_pingpong -d rxe_lo -g 0 -c 127.0.0.1
    wait $server
    ls rxe-captures/*.pcapng
"#;

/// Runs a script with packages, and returns its output.
#[track_caller]
fn run(test: &str, package: &str, script: &str) -> Option<String> {
    if !["bash", "ss", "ibv_rc_pingpong"].iter().all(|program| installed(test, program)) {
        return None;
    }
    let programs = programs();
    let from = quoted(&programs.0.to_string_lossy());
    let pack = PACK.iter().find(|(name, _)| *name == package).unwrap().1;
    let script = format!("programs={from}\n{pack}\n{RUNNER}\n{script}\ntest ! -e asked");
    let out = in_namespace(test, &script)?;
    let [said, errors] = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(out.status.success(), "{said}{errors}");
    assert!(said.matches(".pcapng").count() >= 2, "captures of two programs: {said}");
    Some(said.into_owned())
}

#[test]
fn the_steps_of_the_action_let_later_steps_use_rxe() {
    let test = "the_steps_of_the_action_let_later_steps_use_rxe";
    let (action, failure) = (read("action.yml"), read("ci/failure/action.yml"));
    let inputs = [("package", "rxe.tar.gz"), ("options", "--device rxe_lo --explain 'all'")];
    let steps = File::read(&action).unwrap().steps(&inputs).unwrap();
    let after = File::read(&failure).unwrap().steps(&[]).unwrap();
    let script = format!(
        "{steps}\nINSTALLED=$RUNNER_TEMP/rxe\n
         test \"$RXE_EXPLAIN\" = all\n{JOB}\n{after}"
    );
    let Some(said) = run(test, "rxe.tar.gz", &script) else { return };
    assert!(said.contains("1000 iters in") && said.contains("goodput"), "{said}");
    assert!(!said.contains("rdma_rxe (rxe_lo)"), "{said}");
}

/// A package with another digest is not unpacked, and a file that is not a package is refused.
#[test]
fn the_action_refuses_what_is_not_the_package() {
    let test = "the_action_refuses_what_is_not_the_package";
    let action = read("action.yml");
    for (inputs, why) in [
        ([("package", "some.zip"), ("sha256", "")], "is no archive"),
        ([("package", "some.tar.gz"), ("sha256", &"0".repeat(64))], "did NOT match"),
    ] {
        let steps = File::read(&action).unwrap().steps(&inputs).unwrap();
        let script = format!("{RUNNER}\necho > some.zip; echo > some.tar.gz\n{steps}");
        let Some(out) = in_namespace(test, &script) else { return };
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!out.status.success() && said.contains(why), "{inputs:?}: {said}");
    }
}

#[test]
fn a_job_that_extends_the_template_uses_rxe() {
    let test = "a_job_that_extends_the_template_uses_rxe";
    if !installed(test, "dpkg-deb") {
        return;
    }
    let text = read("ci/gitlab.yml");
    let template = File::read(&text).unwrap();
    let lines = |section| template.lines(".rxe", section).unwrap();
    let options = template.text(&[".rxe", "variables", "OPTIONS_OF_RXE"]).unwrap();
    let script = format!(
        "export CI_PROJECT_DIR=$PWD CI_JOB_STATUS=failed OPTIONS_OF_RXE={} 
         export PACKAGE_OF_RXE=rxe.deb\n{}\nINSTALLED=$PWD/.rxe\n{JOB}\n
         ( unset LD_PRELOAD; {}\n )\ntest -s rxe-check.xml",
        quoted(options),
        lines("before_script"),
        lines("after_script")
    );
    run(test, "rxe.deb", &script);
}

/// The examples of the page name existing files and inputs.
#[test]
fn the_examples_use_the_action_and_the_template() {
    let (action, workflow) = (read("action.yml"), read("docs/examples/github.yml"));
    let (action, workflow) = (File::read(&action).unwrap(), File::read(&workflow).unwrap());
    let step = |number: &str, key| {
        let keys = ["jobs", "rdma", "steps", number, key];
        workflow.text(&keys).unwrap_or_else(|| panic!("{keys:?}")).to_owned()
    };
    assert!(step("1", "uses").starts_with("OWNER/rxe@"));
    let inputs = action.names(&["inputs"]);
    for given in workflow.names(&["jobs", "rdma", "steps", "1", "with"]) {
        assert!(inputs.contains(&given), "{given}");
    }
    let failure = step("3", "uses");
    let place = failure.strip_prefix("OWNER/rxe/").unwrap().split('@').next().unwrap();
    assert!(read(&format!("{place}/action.yml")).contains("using: composite"));

    let job = read("docs/examples/gitlab.yml");
    let job = File::read(&job).unwrap();
    let template = read(job.text(&["include", "file"]).unwrap());
    let template = File::read(&template).unwrap();
    let variables = template.names(&[job.text(&["rdma", "extends"]).unwrap(), "variables"]);
    for given in job.names(&["rdma", "variables"]) {
        assert!(variables.contains(&given), "{given}");
    }
}

/// shellcheck accepts the steps, and actionlint the workflow.
#[test]
fn linters_accept_the_files() {
    let test = "linters_accept_the_files";
    let lint = |program: &str, args: &[&str], text: &str| {
        if !installed(test, program) {
            return;
        }
        let mut command = Command::new(program);
        command.args(args).arg("-").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stdout));
    };
    for name in ["action.yml", "ci/failure/action.yml"] {
        let text = read(name);
        let file = File::read(&text).unwrap();
        let count = file.get(&["runs", "steps"]).unwrap().as_vec().unwrap().len();
        for number in (0..count).map(|number| number.to_string()) {
            if let Some(run) = file.text(&["runs", "steps", &number, "run"]) {
                // The step's shell gets these variables from the runner, or sets them itself.
                lint("shellcheck", &["--shell", "bash", "--exclude", "SC2154"], run);
            }
        }
    }
    let text = read("ci/gitlab.yml");
    for section in ["before_script", "after_script"] {
        let lines = File::read(&text).unwrap().lines(".rxe", section).unwrap();
        lint("shellcheck", &["--shell", "dash", "--exclude", "SC2154"], &lines);
    }
    lint("actionlint", &[], &read("docs/examples/github.yml"));
}
