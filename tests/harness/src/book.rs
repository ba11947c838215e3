//! The commands on pages of the book: their marks, the script that runs them, and the comparison of
//! their output with the page.
//!
//! A block that starts with ```` ```sh run=NAME ```` is run, in the order of the page; so is one of
//! `python`, by pytest if it contains a test. A block `server` runs in the background until the
//! next `client` of the page has ended; a block of another name runs to its end before the next
//! one. The word `fails` means that the exit code is not 0. The `text` block after a command is its
//! expected output: `…` stands for any text, all numbers are equal, and lines may be broken
//! anywhere. The unit MB of older perftest versions counts as MiB.
//!
//! Only when a page is tried on a clean system ([`crate::dist`]), root runs ```` ```sh install
//! ````, and the user of the package runs ```` ```sh package ````.

use std::fmt::Write as _;

/// A fenced code block of a page.
#[derive(Clone, Debug)]
pub struct Block {
    /// The words after the fence: the language, then the marks.
    pub info: Vec<String>,
    /// The text between the fences.
    pub text: String,
}

impl Block {
    /// Returns the first word after the fence.
    pub fn language(&self) -> &str {
        self.info.first().map_or("", String::as_str)
    }

    /// Returns the value of `key=value` after the language.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.info.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Returns whether this word is among the marks after the language.
    pub fn says(&self, word: &str) -> bool {
        self.info.iter().skip(1).any(|found| found == word)
    }

    /// Returns the role in which the block is run, if it is run. Blocks that change the system are
    /// run only if `clean`.
    fn role(&self, clean: bool) -> Option<&str> {
        let marked = ["install", "package"].into_iter().find(|mark| clean && self.says(mark));
        marked.or_else(|| self.value("run"))
    }
}

/// Returns the fenced blocks of a page, in their order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            open = !open;
            if open {
                let info = info.split_whitespace().map(str::to_owned).collect();
                found.push(Block { info, text: String::new() });
            }
        } else if open && let Some(block) = found.last_mut() {
            block.text += line;
            block.text.push('\n');
        }
    }
    found
}

/// Replaces all numbers and perftest's unit by one spelling, and all white space by single spaces.
fn masked(text: &str) -> String {
    // Older versions of perftest call 2^20 bytes MB.
    let text = text.replace("[MB/sec]", "[MiB/sec]");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        let hex = rest.strip_prefix("0x");
        let length = match hex {
            Some(digits) => 2 + digits.chars().take_while(char::is_ascii_hexdigit).count(),
            None => {
                let number = |c: &char| c.is_ascii_digit() || *c == '.';
                if c.is_ascii_digit() { rest.chars().take_while(number).count() } else { 0 }
            }
        };
        if length > 0 {
            out.push('#');
            rest = &rest[length..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the parts of a sample that are missing in the output, which must contain them in order.
fn missing<'a>(sample: &'a str, printed: &str) -> Vec<&'a str> {
    let printed = masked(printed);
    let mut rest = printed.as_str();
    let is_missing = |part: &&str| match rest.split_once(&masked(part)) {
        Some((_, after)) => {
            rest = after;
            false
        }
        None => true,
    };
    sample.split('…').filter(is_missing).collect()
}

/// Returns a shell script that runs the marked blocks. It prints the exit code and the output of
/// each, for [`wrong`]. On a clean system, `clean` is put before each command that root does not
/// run. The script needs a command `listeners`, which prints the number of listening TCP sockets.
pub fn script(blocks: &[Block], clean: Option<&str>) -> String {
    let mut out = String::from("end() { echo \"=== $1 $2\"; cat out.$1; echo; }\n");
    let mut servers = Vec::new();
    for (i, block) in blocks.iter().enumerate() {
        let Some(role) = block.role(clean.is_some()) else { continue };
        let text = &block.text;
        let user = clean.filter(|_| role != "install").unwrap_or_default();
        // Installing and building take longer than running.
        let limit = match role {
            "install" => 600,
            _ if text.contains("cargo build") => 900,
            _ => 60,
        };
        // pytest accepts only certain file names.
        let (file, command) = match block.language() {
            "python" if text.contains("def test_") => {
                (format!("block_{i}_test.py"), "/usr/bin/python3 -m pytest -q")
            }
            "python" => (format!("block_{i}.py"), "/usr/bin/python3"),
            _ => (format!("block.{i}"), "sh -e"),
        };
        let _ = writeln!(out, "cat > {file} <<'END'\n{text}END");
        let run = format!("{user} timeout {limit} {command} {file} > out.{i} 2>&1");
        if role == "server" {
            let _ = writeln!(
                out,
                "before=$(listeners); {run} & server_{i}=$!; n=0
                 until [ $(listeners) -gt $before ] || [ $n -gt 100 ]; do
                     kill -0 $server_{i} 2> gone || break; n=$((n + 1)); sleep 0.05; done"
            );
            servers.push(i);
        } else {
            let _ = writeln!(out, "{run}; end {i} $?");
            if role == "client" {
                for server in servers.drain(..) {
                    let _ = writeln!(out, "wait $server_{server}; end {server} $?");
                }
            }
        }
    }
    out
}

/// Returns the differences between the output of a script and the page. The result is empty if
/// there are none. `clean` states whether the script ran on a clean system.
pub fn wrong(blocks: &[Block], clean: bool, printed: &str) -> String {
    let mut wrong = String::new();
    let expected = blocks.iter().filter(|block| block.role(clean).is_some()).count();
    let mut count = 0;
    // pytest prints lines that begin with more than three of these signs.
    for part in format!("\n{printed}").split("\n=== ").skip(1) {
        let (head, said) = part.split_once('\n').unwrap_or((part, ""));
        let Some((index, code)) = head.split_once(' ') else { continue };
        let Some((index, block)) =
            index.parse().ok().and_then(|i: usize| Some((i, blocks.get(i)?)))
        else {
            continue;
        };
        count += 1;
        if (code != "0") != block.says("fails") || code == "124" {
            let _ = writeln!(wrong, "exit code {code} of\n{}it printed\n{said}", block.text);
        }
        if let Some(sample) = blocks.get(index + 1).filter(|next| next.language() == "text") {
            for part in missing(&sample.text, said) {
                let _ = writeln!(wrong, "{}does not print\n{part}\nbut\n{said}", block.text);
            }
        }
    }
    if count != expected {
        let _ = writeln!(wrong, "of {expected} commands {count} were run");
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_shows_is_compared_with_what_is_printed() {
        let printed = "QPN 0x1a, 12.5 MB\n  all  is well\n";
        assert!(missing("QPN 0x02 , 7 MB all is\nwell", printed).len() == 1);
        assert!(missing("QPN 0x02, 7 MB all is\nwell", printed).is_empty());
        assert!(missing("QPN 0x02…well", printed).is_empty());
        assert_eq!(missing("QPN…all is lost", printed), ["all is lost"]);
        assert_eq!(missing("all is well…QPN", printed), ["QPN"], "in their order");
        let older = "peak[MB/sec] average[MB/sec]\n 12.5 12.0\n";
        assert!(missing("peak[MiB/sec] average[MiB/sec]\n 7.25 7.0\n", older).is_empty());
        assert!(!missing("peak[Gb/sec]", older).is_empty());
    }

    const PAGE: &str = "```sh run=here\necho 1\n```\n```text\n7\n```\n```sh\nrm -r /\n```\n\
                        ```sh run=here fails\nfalse\n```\n```sh install\nsudo true\n```\n";

    #[test]
    fn the_marked_blocks_are_run_and_only_they() {
        let blocks = blocks(PAGE);
        let dir = tempfile::tempdir().unwrap();
        assert!(!script(&blocks, None).contains("sudo"));
        let script = script(&blocks, Some("env"));
        assert!(!script.contains("rm -r") && script.contains("sudo true"));
        let script = script.replace("sudo true", "true");
        let mut shell = std::process::Command::new("sh");
        let out = shell.args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        let printed = String::from_utf8(out.stdout).unwrap();
        assert_eq!(wrong(&blocks, true, &printed), "", "{printed}");
        let other = wrong(&blocks, true, &printed.replace("\n1\n", "\none\n"));
        assert!(other.contains("echo 1\ndoes not print\n7"), "{other}");
        let other = wrong(&blocks, true, &printed.replace("=== 3 1", "=== 3 0"));
        assert!(other.contains("exit code 0 of\nfalse"), "{other}");
        let other = wrong(&blocks, true, printed.split("=== 3").next().unwrap());
        assert!(other.contains("of 3 commands 1 were run"), "{other}");
    }
}
