//! Tests of the book: the commands on its pages run and print what the pages show, excerpts match
//! the files that they are from, both languages have the same pages and commands, and the glossary
//! has the words of `rxe explain`.
//!
//! [`rxe_harness::book`] explains how commands are marked, and runs them. `~/rxe` is this checkout.
//! The READMEs have the same marks.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rxe_harness::book::{self, Block, blocks};
use rxe_harness::links::scenario;
use rxe_harness::paths;
use rxe_test_support::skipped;
use rxe_words::{self as words, Entry, Text};

mod common;
use common::{in_namespace, installed};

/// The Rust test that the page on CI shows.
#[path = "../../docs/examples/arrives.rs"]
mod arrives;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the pages of a language, with paths relative to its directory.
fn pages(language: &str) -> Vec<PathBuf> {
    fn below(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "md") {
                found.push(path);
            }
        }
    }
    let root = docs().join(language);
    let mut found = Vec::new();
    below(&root, &mut found);
    found.sort();
    found.iter().map(|path| path.strip_prefix(&root).expect("below").to_owned()).collect()
}

/// Returns a shell script that runs the blocks of a page and prints the exit code and the output of
/// each.
fn script(blocks: &[Block]) -> String {
    let checkout = paths::checkout();
    // The files that cargo builds are kept in a directory whose path does not change the place of
    // the program.
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book");
    // A suite in a clone has its own target directory for cargo; a reader has none. With the
    // timeout of other tests all retries take 4.3 s, and in `hello` a signal ends each wait after 5
    // s.
    let before = format!(
        "set +e; PATH=$(dirname $RXE):$PATH; export COLUMNS=80 LC_ALL=C.UTF-8 RXE_ACK_TIMEOUT=16
         export CARGO_NET_OFFLINE=true CARGO_BUILD_BUILD_DIR='{}'; unset CARGO_TARGET_DIR
         export PYTHONPATH={}/python PYTEST_PLUGINS=rxe.pytest_plugin PYTHONDONTWRITEBYTECODE=1
         export PYTEST_DEBUG_TEMPROOT=$PWD
         ip link set veth0 down; ip link set veth0 name eth0; ip link set eth0 up
         listeners() {{ ss -Htln | wc -l; }}\n",
        built.display(),
        checkout.display()
    );
    before + &book::script(blocks, None).replace("~/rxe", &checkout.to_string_lossy())
}

/// The path of the README from the pages of the English book.
const README: &str = "../../README.md";

/// Runs a page of the English book, and returns the differences. The Chinese page has the same
/// blocks.
fn run(page: &Path) -> Result<(), String> {
    let blocks = blocks(&read(&docs().join("en").join(page)));
    let page = &*page.to_string_lossy();
    for program in ["ibv_rc_pingpong", "ib_write_bw", "ucx_perftest", "cc", "ss", "tshark", "cargo"]
    {
        let used = |block: &Block| block.text.contains(program);
        if (blocks.iter().any(used) || ["cc", "ss"].contains(&program)) && !installed(page, program)
        {
            return Ok(());
        }
    }
    let python =
        blocks.iter().any(|block| block.language() == "python" && block.value("run").is_some());
    let pytest = || Command::new("/usr/bin/python3").args(["-c", "import pytest"]).output();
    if python && !pytest().is_ok_and(|out| out.status.success()) {
        skipped(page, "pytest is not installed (Debian: python3-pytest)");
        return Ok(());
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        skipped(page, "libibverbs-dev is not installed");
        return Ok(());
    }
    if blocks.iter().any(|block| block.text.contains("-lrdmacm"))
        && !Path::new("/usr/include/rdma/rdma_cma.h").exists()
    {
        skipped(page, "librdmacm-dev is not installed");
        return Ok(());
    }
    // The files that earlier pages told the reader to create.
    let checkout = paths::checkout().display();
    let mut prepare = format!("ln -s {checkout}/pcaps pcaps; cp {checkout}/docs/examples/*.c .\n");
    for (program, library) in [("hello", "-libverbs"), ("connect", "-lrdmacm -libverbs")] {
        let has = |text: &str| blocks.iter().any(|block| block.text.contains(text));
        if has(&format!("./{program}")) && !has(&format!("-o {program} ")) {
            prepare += &format!("cc -o {program} {program}.c {library}\n");
        }
    }
    let Some(out) = in_namespace(page, &(prepare + &script(&blocks))) else { return Ok(()) };
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    let wrong = book::wrong(&blocks, false, &printed);
    let errors = String::from_utf8_lossy(&out.stderr);
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("{page}:\n{wrong}\n{printed}{errors}"))
}

/// Runs all pages with commands concurrently, because most of the time they wait.
#[test]
fn the_commands_of_every_page_run_and_print_what_it_shows() {
    let pages = [pages("en"), vec![README.into()]].concat().into_iter().filter(|page| {
        let blocks = blocks(&read(&docs().join("en").join(page)));
        blocks.iter().any(|block| block.value("run").is_some())
    });
    let wrong: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = pages.map(|page| scope.spawn(move || run(&page))).collect();
        assert!(running.len() > 10, "{} pages", running.len());
        running.into_iter().filter_map(|page| page.join().unwrap().err()).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns whether a page is a decision, which exists in English only.
fn is_decision(page: &Path) -> bool {
    page.starts_with("project/decisions") && !page.ends_with("README.md")
}

/// Both languages have the same pages, and on each page the same blocks. Only the outputs may
/// differ, and the language option of a command.
#[test]
fn both_languages_have_the_same_pages_and_commands() {
    let (english, chinese) = (pages("en"), pages("zh"));
    let mut wrong = String::new();
    let english: Vec<_> = english.into_iter().filter(|page| !is_decision(page)).collect();
    for page in &english {
        if !chinese.contains(page) {
            let _ = writeln!(wrong, "{} has no Chinese", page.display());
            continue;
        }
        let [en, zh] = ["en", "zh"].map(|language| {
            let blocks = blocks(&read(&docs().join(language).join(page))).into_iter();
            blocks.map(|b| (b.info.join(" "), b)).collect::<Vec<_>>()
        });
        let plain = |text: &str| text.replace(" --lang zh", "");
        let commented = WITH_COMMENTS.iter().any(|part| page.starts_with(part));
        let same = commented
            || en.len() == zh.len()
                && en.iter().zip(&zh).all(|((info, block), (other_info, other))| {
                    info == other_info
                        && (block.language() == "text" || block.text == plain(&other.text))
                });
        if !same {
            let _ = writeln!(wrong, "{}: blocks differ between languages", page.display());
        }
    }
    for page in chinese.iter().filter(|page| !english.contains(page)) {
        let _ = writeln!(wrong, "{} has no English", page.display());
    }
    assert!(wrong.is_empty() && english.len() > 10, "{wrong}");
}

/// Both READMEs have the same blocks in the same order, except for comments and outputs.
#[test]
fn both_readmes_have_the_same_blocks() {
    let of = |name: &str| -> Vec<(String, Vec<String>)> {
        let plain = |line: &str| {
            let code = line.split(" #").next().unwrap_or_default();
            let code = code.split("// ").next().unwrap_or_default().replace(" --lang zh", "");
            code.trim_end().to_owned()
        };
        let blocks = blocks(&read(&docs().join("..").join(name))).into_iter();
        blocks.map(|b| (b.info.join(" "), b.text.lines().map(plain).collect())).collect()
    };
    let (english, chinese) = (of("README.md"), of("README.zh-CN.md"));
    for (en, zh) in english.iter().zip(&chinese) {
        assert_eq!(en, zh);
    }
    assert_eq!(english.len(), chinese.len());
    let sections = |name: &str| {
        let text = read(&docs().join("..").join(name));
        let headings = text.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(sections("README.md"), sections("README.zh-CN.md"));
    assert!(english.len() > 8, "{}", english.len());
    // Commands to be pasted do not begin with a prompt.
    let shell = english.iter().filter(|(info, _)| info.starts_with("sh"));
    assert!(shell.flat_map(|(_, lines)| lines).all(|line| !line.starts_with("$ ")));
}

/// English pages whose Chinese page is a summary: content that commands and tests have written,
/// which exists once, and the index of decisions, where the Chinese page summarises each decision.
const SUMMARISED: [&str; 8] = [
    "reference/conformance-report.md",
    "reference/interop.md",
    "reference/programs-tried.md",
    "project/conformance.md",
    "project/decisions/README.md",
    "project/fabric.md",
    "project/layers.md",
    "project/performance.md",
];

/// The parts of the book whose code may have comments in the reader's language.
const WITH_COMMENTS: [&str; 4] = ["do/install.md", "know/security.md", "reference", "project"];

/// Returns the pages in the contents of a language, in order: `learn/1-device.md`,
/// `reference/faults.md`.
fn contents(language: &str) -> Vec<String> {
    let page = read(&docs().join(language).join("SUMMARY.md"));
    let targets = page.lines().filter_map(|line| line.split_once("](")?.1.strip_suffix(')'));
    targets.map(str::to_owned).collect()
}

/// Returns the parts of a page that must be equal in both languages: the levels of its headings,
/// the languages of its code blocks with their commands (without comments), the number of rows of
/// its tables, and the scenarios to which the book links.
fn skeleton(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut fenced, mut rows) = (false, 0);
    for line in page.lines().map(str::trim).chain([""]) {
        let row = !fenced && line.starts_with('|');
        if !row && rows > 0 {
            found.push(format!("table of {rows} rows"));
            rows = 0;
        }
        if let Some(info) = line.strip_prefix("```") {
            fenced = !fenced;
            if fenced {
                found.push(format!("code block: {info}"));
            }
        } else if row {
            rows += 1;
        } else if let Some((host, command)) = line.split_once("$ ")
            && fenced
            && host.chars().all(|c| c.is_ascii_lowercase())
        {
            let command = command.split(" # ").next().unwrap_or_default().trim_end();
            found.push(format!("command: {command}"));
        } else if let Some(name) = scenario(line) {
            found.push(format!("scenario: {name}"));
        } else if !fenced && line.starts_with('#') {
            found.push(format!(
                "heading of level {}",
                line.chars().take_while(|c| *c == '#').count()
            ));
        }
    }
    found
}

/// Content written by commands is on English pages only. The corresponding Chinese page has the
/// length of a screen and links to the English page, and contains no number that the English page
/// lacks.
#[test]
fn what_commands_write_exists_once() {
    let mut wrong = String::new();
    let mut written = 0;
    for page in pages("en").into_iter().filter(|page| !is_decision(page)) {
        let name = page.to_string_lossy().into_owned();
        let [english, chinese] =
            ["en", "zh"].map(|language| read(&docs().join(language).join(&page)));
        if chinese.contains("puts what follows -->") {
            let _ = writeln!(wrong, "docs/zh/{name} has what a command writes");
        }
        let summarised = SUMMARISED.contains(&&*name);
        if english.contains("puts what follows -->") {
            written += 1;
            if !summarised {
                let _ =
                    writeln!(wrong, "docs/en/{name} is written by a command: add it to SUMMARISED");
            }
        }
        let place = format!("/en/{name}");
        if summarised && !name.contains("decisions") {
            let (lines, links) = (chinese.lines().count(), chinese.matches(&place).count());
            if lines > 60 || links < 2 {
                let _ = writeln!(
                    wrong,
                    "docs/zh/{name}: {lines} lines, {links} links to the English page"
                );
            }
            let numbers = |text: &str| -> BTreeSet<String> {
                let words = text.split(|c: char| !c.is_ascii_digit());
                words.filter(|word| word.len() > 2).map(str::to_owned).collect()
            };
            let unknown: Vec<_> =
                numbers(&chinese).difference(&numbers(&english)).cloned().collect();
            if !unknown.is_empty() {
                let _ = writeln!(wrong, "docs/zh/{name}: not in English: {unknown:?}");
            }
        }
    }
    assert!(wrong.is_empty() && written > 3, "{written} pages\n{wrong}");
}

/// The figures on the page for users are those of the last measurement.
#[test]
fn the_figures_of_the_performance_page_were_measured() {
    let numbers = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_digit() || c == '.'));
        words
            .filter(|word| word.contains('.'))
            .map(|word| word.trim_matches('.').to_owned())
            .collect()
    };
    let measured = numbers(&read(&docs().join("en/project/performance.md")));
    for language in ["en", "zh"] {
        let page = read(&docs().join(language).join("know/performance.md"));
        let rows: String = page.lines().filter(|line| line.starts_with('|')).collect();
        let shown = numbers(&rows);
        let unknown: Vec<_> = shown.difference(&measured).collect();
        assert!(unknown.is_empty() && shown.len() > 50, "{language}: not measured: {unknown:?}");
    }
}

#[test]
fn the_skeleton_of_a_page_has_headings_commands_and_tables() {
    let page = "# A\n| x |\n| - |\n\n```sh\n# no heading\n| no row\n$ ls -l  # all\npeer$ ls\n```\n\
                <!-- laboratory: rnr_nak -->\n- b\n  ```c\n  ```\n## C\n| x |\n";
    let expected = "heading of level 1, table of 2 rows, code block: sh, command: ls -l, \
                    command: ls, scenario: rnr_nak, code block: c, heading of level 2, \
                    table of 1 rows";
    assert_eq!(skeleton(page).join(", "), expected);
}

/// A page has the same headings, code blocks and tables in both languages, unless the Chinese page
/// is a summary.
#[test]
fn both_languages_have_the_same_contents_and_forms() {
    let expected = contents("en");
    assert_eq!(contents("zh"), expected, "the contents of both languages");
    let mut wrong = String::new();
    let mut others = 0;
    for name in expected.iter() {
        let [en, zh] =
            ["en", "zh"].map(|language| skeleton(&read(&docs().join(language).join(name))));
        let other = SUMMARISED.contains(&name.as_str());
        others += usize::from(other);
        if other && en == zh {
            let _ =
                writeln!(wrong, "{name} has the form of the English: strike it from SUMMARISED");
        } else if !other && en != zh {
            let first = en.iter().zip(&zh).take_while(|(a, b)| a == b).count();
            let of = |found: &[String]| found.get(first).map_or("nothing", |x| x).to_owned();
            let _ = writeln!(
                wrong,
                "{name}: its part {} is a {} in English, a {} in Chinese",
                first + 1,
                of(&en),
                of(&zh)
            );
        }
    }
    assert_eq!(others, SUMMARISED.len(), "SUMMARISED names pages that are not in the contents");
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn the_laboratory_has_each_scenario_that_a_page_marks() {
    let (mut wrong, mut count) = (String::new(), 0);
    for name in pages("en") {
        for line in read(&docs().join("en").join(&name)).lines() {
            if !line.contains("<!-- laboratory") {
                continue;
            }
            count += 1;
            let path = |name| docs().join(format!("../pcaps/scenarios/{name}.toml"));
            if !scenario(line).is_some_and(|name| path(name).exists()) {
                let _ = writeln!(wrong, "docs/en/{}: no scenario: {line}", name.display());
            }
        }
    }
    assert!(wrong.is_empty() && count > 10, "{count} markers\n{wrong}");
}

/// Each page begins with its title and a link to the page in the other language.
#[test]
fn every_page_leads_to_the_other_language() {
    let mut wrong = String::new();
    for name in contents("en") {
        let [english, chinese] = ["en", "zh"].map(|language| format!("{language}/{name}"));
        for (page, other, label) in [(&english, &chinese, "中文"), (&chinese, &english, "English")]
        {
            // The link leads from the page up to `docs`, and down to the other page.
            let link = format!("[{label}]({}{other})", "../".repeat(page.matches('/').count()));
            if read(&docs().join(page)).lines().nth(2) != Some(&*link) {
                let _ = writeln!(wrong, "docs/{page}: its third line is not {link}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// The first page contains the table of contents too, and its entries are the titles of the pages.
#[test]
fn the_contents_name_the_pages_by_their_titles() {
    let mut wrong = String::new();
    for language in ["en", "zh"] {
        let root = docs().join(language);
        let entries = |name: &str| -> Vec<String> {
            let page = read(&root.join(name));
            let entry =
                |line: &&str| line.trim_start().starts_with("- [") && line.ends_with(".md)");
            page.lines().filter(entry).map(|line| line.trim_end().to_owned()).collect()
        };
        let contents = entries("SUMMARY.md");
        if entries("README.md") != contents {
            let _ = writeln!(wrong, "docs/{language}/README.md has other contents than SUMMARY.md");
        }
        for entry in contents {
            let (title, name) = entry.trim_start()[3..].split_once("](").expect("a link");
            let name = name.trim_end_matches(')');
            let page = read(&root.join(name));
            if page.lines().next() != Some(&format!("# {title}")) {
                let _ = writeln!(wrong, "docs/{language}/{name} has another title than {title}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Each command of `rxe --help` is in the index of commands of both languages.
#[test]
fn every_command_is_in_the_index_of_commands() {
    let help = Command::new(common::rxe()).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let (_, list) = help.split_once("\nCommands:\n").expect("commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names: Vec<&str> = names.filter(|name| !name.is_empty() && *name != "help").collect();
    assert!(names.len() > 20, "{names:?}");
    for language in ["en", "zh"] {
        let index = read(&docs().join(language).join("reference/commands/README.md"));
        let there = |name: &&&str| {
            [' ', '`'].iter().any(|end| index.contains(&format!("`rxe {name}{end}")))
        };
        let absent: Vec<_> = names.iter().filter(|name| !there(name)).collect();
        assert!(absent.is_empty(), "{language}: {absent:?}");
    }
}

/// Blocks marked `from=FILE` consist of lines of that file.
#[test]
fn excerpts_are_in_their_files() {
    let mut count = 0;
    for page in pages("en") {
        for block in blocks(&read(&docs().join("en").join(&page))) {
            let Some(file) = block.value("from") else { continue };
            let source = read(&docs().join("examples").join(file));
            for part in block.text.split("…\n") {
                assert!(source.contains(part), "{}: not in {file}:\n{part}", page.display());
            }
            count += 1;
        }
    }
    assert!(count > 3, "{count}");
}

/// The topics of the glossary: in English, in Chinese, and their words by the names in
/// `rxe explain`. States come last.
const TOPICS: [(&str, &str, &str); 9] = [
    ("RDMA and RoCE", "RDMA 与 RoCE", "rdma verbs roce soft-roce nic requester"),
    (
        "Devices and addresses",
        "设备与地址",
        "device gid gid-index ah grh lid pkey traffic-class multicast",
    ),
    ("Services and queue pairs", "服务类型与队列对", "qp qpn rc uc ud qkey xrc srq"),
    ("Connections by address", "按地址建立连接", "cm mad"),
    (
        "Requests and completions",
        "请求与完成",
        "post wr sge send recv write read atomic imm inline fence cq wc signaled notify solicited flush",
    ),
    ("Memory", "内存", "pd mr lkey rkey mw odp"),
    (
        "Acknowledgements and retries",
        "确认与重试",
        "psn syndrome timeout retry-cnt retransmission rnr rnr-retry rd-atomic",
    ),
    ("Packets and the network", "报文与网络", "path-mtu bth icrc gso cnp pfc"),
    ("Queue pair states", "队列对状态", "RESET INIT RTR RTS SQD SQE ERR"),
];

fn both(en: &str, zh: &str) -> Text {
    Text { en: en.into(), zh: zh.into() }
}

/// Returns the glossary in one language: the entries of `rxe explain` that are concepts, objects,
/// operations or states, by topic.
fn glossary(pick: fn(&Text) -> &str) -> String {
    let mut out = String::new();
    let mut count = 0;
    for (en, zh, ids) in TOPICS {
        let _ = writeln!(out, "\n## {}", pick(&both(en, zh)));
        for id in ids.split(' ') {
            let entry = words::by_id(id).unwrap_or_else(|| panic!("no entry {id}"));
            let _ = writeln!(out, "\n### {}\n\n{}", pick(&entry.title), pick(&entry.what));
            let _ = writeln!(out, "\n`rxe explain {}`", entry.id);
            count += 1;
        }
    }
    let all: Vec<&Entry> = words::sections()[..4].iter().flat_map(|s| &s.entries).collect();
    let absent = all.iter().filter(|e| !out.contains(&format!("`rxe explain {}`", e.id)));
    let absent: Vec<_> = absent.map(|entry| &entry.id).collect();
    assert!(absent.is_empty() && count == all.len(), "without a topic, or with two: {absent:?}");
    out
}

/// Returns the page of messages in one language: the entries of `rxe explain` that a program or a
/// capture can show, with their causes and remedies. A heading is the text that a reader sees and
/// searches for.
fn messages(pick: fn(&Text) -> &str) -> String {
    let label = |en, zh| pick(&both(en, zh)).to_owned();
    let mut out = String::new();
    // Messages of programs come first, then the numbers in messages, then the findings of
    // `rxe check`.
    let order = ["messages", "status", "errno", "event", "nak", "delivery", "rules"];
    let order = order.map(|id| words::sections().iter().find(|section| section.id == id).unwrap());
    for section in order {
        let _ = writeln!(out, "\n## {}", pick(&section.title));
        for entry in &section.entries {
            let _ = writeln!(out, "\n### {}\n\n{}", pick(&entry.title), pick(&entry.what));
            let lists = [
                (label("Usual causes:", "常见原因："), &entry.causes),
                (label("What to do:", "解决办法："), &entry.remedies),
            ];
            for (title, lines) in lists.into_iter().filter(|(_, lines)| !lines.is_empty()) {
                let _ = writeln!(out, "\n{title}\n");
                for line in lines {
                    let _ = writeln!(out, "- {}", pick(line));
                }
            }
            let seen: Vec<_> = entry
                .names
                .iter()
                .chain(&entry.phrases)
                .map(|text| format!("`{}`", text.replace('*', "…")))
                .collect();
            if !seen.is_empty() {
                let _ = writeln!(
                    out,
                    "\n{} {}",
                    label("Also seen as:", "也写作："),
                    seen.join(&label(", ", "、"))
                );
            }
        }
    }
    out
}

/// `RXE_WRITE=1 cargo test -p rxe-tests --test book rxe_explain` writes the pages.
#[test]
fn the_glossary_and_the_messages_have_the_words_of_rxe_explain() {
    const BEGIN: &str = "<!-- made from rxe-words by the test `book` -->\n";
    const END: &str = "<!-- end -->";
    for (language, pick) in
        [("en", (|text| &text.en) as fn(&Text) -> &str), ("zh", |text| &text.zh)]
    {
        for (name, words) in [("glossary.md", glossary(pick)), ("messages.md", messages(pick))] {
            let path = docs().join(language).join(name);
            let page = read(&path);
            let (before, rest) = page.split_once(BEGIN).expect("the beginning of the words");
            let (_, after) = rest.split_once(END).expect("the end of the words");
            let new = format!("{before}{BEGIN}{words}\n{END}{after}");
            if std::env::var_os("RXE_WRITE").is_some() {
                fs::write(&path, &new).unwrap();
            }
            assert!(read(&path) == new, "{}: RXE_WRITE=1 writes it", path.display());
        }
    }
}

/// The C programs of the book compile without a warning.
#[test]
fn the_programs_in_c_compile() {
    let test = "the programs in C";
    if !installed(test, "cc") || !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        return skipped(test, "no cc, or no librdmacm-dev");
    }
    let examples = fs::read_dir(docs().join("examples")).unwrap().flatten().map(|e| e.path());
    let sources: Vec<_> = examples.filter(|p| p.extension().is_some_and(|e| e == "c")).collect();
    assert!(sources.len() >= 5, "{sources:?}");
    let out = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(sources)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
