//! Generates the pictures of the docs: commands in terminals of 80 and 160 columns, and pages in a
//! browser.
//!
//! The commands run in their own namespaces, with a network of this host at 10.0.0.1 and another
//! host, `far`, at 10.0.0.2. So nothing of the machine is shown, which is checked too.

use std::path::Path;
use std::process::{Command, Stdio};

use rxe_harness::checkout;
use rxe_harness::vm::{Error, Result};

use super::scenes::{NETWORK, Scene, TERMINALS};
use super::terminal::{self, When};
use super::{succeed, svg, write};

/// The directory of the pictures of terminals, in the checkout.
const DIRECTORY: &str = "docs/terminal";
/// The rows of a terminal in which nothing scrolls.
const ROWS: u16 = 400;

/// Generates all pictures whose name contains `only`.
pub(super) fn run(top: &Path, only: &str) -> Result<()> {
    let rxe = checkout::build(top, &["-p", "rxe-cli", "-p", "rxe-preload"])?;
    let mut wrong = Vec::new();
    for scene in TERMINALS.iter().filter(|scene| scene.name.contains(only)) {
        for columns in scene.columns {
            let file = Path::new(DIRECTORY).join(scene.file(*columns));
            match picture(top, &rxe, scene, *columns) {
                Ok(svg) => write(&top.join(&file), &svg)?,
                Err(why) => wrong.push(why.to_string()),
            }
            println!("{}", file.display());
        }
    }
    if "ladder".contains(only) {
        ladders(top, &rxe)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Failed(wrong.join("\n\n"))) }
}

/// Returns the screen of a terminal with `columns` columns as SVG.
fn picture(top: &Path, rxe: &Path, scene: &Scene, columns: u16) -> Result<String> {
    let wrong = |why: &str| Error::Failed(format!("{}: {why}", scene.file(columns)));
    let directory = tempfile::tempdir().map_err(|e| wrong(&e.to_string()))?;
    let pcaps = directory.path().join("pcaps");
    std::os::unix::fs::symlink(top.join("pcaps"), &pcaps).map_err(|e| Error::io(&pcaps, &e))?;
    let command = command(rxe, &scene.script(), directory.path());
    let rows = if matches!(scene.when, When::Ended) { ROWS } else { 24 };
    let screen = terminal::screen(command, columns, rows, scene.when)
        .map_err(|why| wrong(&why.to_string()))?;
    let text = screen.contents();
    let secrets = [top, directory.path()].map(|path| path.display().to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for secret in secrets.into_iter().chain([host]) {
        if text.contains(&secret) {
            return Err(wrong(&format!("{secret} is of this machine:\n{text}")));
        }
    }
    if let Some(row) = (0..rows).find(|row| screen.row_wrapped(*row)) {
        return Err(wrong(&format!("row {} is wider than the terminal:\n{text}", row + 1)));
    }
    Ok(svg::draw(&screen))
}

/// Returns a command that runs a script in its own namespaces, in a directory.
/// `rxe` is installed in /usr/local there.
fn command(rxe: &Path, script: &str, directory: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("unshare");
    command.args(["-Urnmpf", "--mount-proc", "--kill-child", "sh", "-ec"]);
    command.arg(format!("{NETWORK}{script}")).current_dir(directory).env_clear();
    command.env("PATH", format!("/usr/local/bin:{path}:/usr/sbin:/sbin")).env("HOME", directory);
    command.env("XDG_RUNTIME_DIR", directory).env("TERM", "xterm-256color");
    command.env("LC_ALL", "C.UTF-8").env("BUILT", rxe.parent().unwrap_or(Path::new("/")));
    command
}

/// Draws a capture as SVG. Takes screenshots of that picture and of another capture's page.
fn ladders(top: &Path, rxe: &Path) -> Result<()> {
    let to = top.join("docs/ladder");
    let staged = tempfile::tempdir().map_err(|e| Error::Failed(e.to_string()))?;
    let page = staged.path().join("page.html");
    let nak = to.join("nak.svg");
    for (capture, option, out) in [
        ("pcaps/scenarios/psn_sequence_nak.pcap", "--svg", &nak),
        ("pcaps/kernel-6.1/rnr_late.pcap", "--html", &page),
    ] {
        let mut ladder = Command::new(rxe);
        succeed(ladder.args(["ladder", capture, option]).arg(out).current_dir(top))?;
    }
    screenshot(&page, "1240,640", &to.join("page.png"))?;
    screenshot(&nak, "1100,260", &to.join("nak.png"))
}

/// Takes a screenshot of a page or a picture, in a browser window of this size.
fn screenshot(page: &Path, size: &str, to: &Path) -> Result<()> {
    let profile = tempfile::tempdir().map_err(|e| Error::Failed(e.to_string()))?;
    let mut browser = Command::new("chromium");
    // In a container the browser cannot create its sandbox. The page is our own.
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    browser.arg(format!("--window-size={size}"));
    browser.arg(format!("--user-data-dir={}", profile.path().display()));
    browser.arg(format!("--screenshot={}", to.display()));
    // stderr is discarded, because the browser complains that there is no desktop.
    succeed(browser.arg(format!("file://{}", page.display())).stderr(Stdio::null()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use rxe_harness::links::{leads_to, targets};

    fn is_picture(path: &str) -> bool {
        [".svg", ".png"].iter().any(|end| path.ends_with(end))
    }

    /// Returns all pages and all pictures of the docs, by their paths from the root.
    fn docs() -> (Vec<String>, BTreeSet<String>) {
        let top = checkout::root().unwrap();
        let mut all = Vec::new();
        super::super::files(&top.join("docs"), Path::new(""), &mut all).unwrap();
        let all = all.iter().map(|path| format!("docs/{}", path.display()));
        let (pictures, others): (BTreeSet<_>, BTreeSet<_>) = all.partition(|path| is_picture(path));
        let pages = others.into_iter().filter(|path| path.ends_with(".md"));
        let readmes = ["README.md", "README.zh-CN.md"].map(str::to_owned);
        (pages.chain(readmes).collect(), pictures)
    }

    #[test]
    fn every_picture_is_there_and_shown_on_a_page() {
        let (pages, pictures) = docs();
        let top = checkout::root().unwrap();
        let mut shown = BTreeSet::new();
        for page in &pages {
            let text = fs::read_to_string(top.join(page)).unwrap();
            let links = targets(&text).into_iter().filter_map(|to| leads_to(page, &to));
            for picture in links.filter(|to| is_picture(to)) {
                assert!(pictures.contains(&picture), "{page} shows {picture}, which is not there");
                shown.insert(picture);
            }
        }
        let unused: Vec<_> = pictures.difference(&shown).collect();
        assert!(unused.is_empty() && pictures.len() > 20, "no page shows {unused:?}");
    }

    #[test]
    fn every_picture_of_a_terminal_is_made_by_a_scene() {
        let (_, pictures) = docs();
        let there = pictures.into_iter().filter(|path| path.starts_with(DIRECTORY));
        let of = |scene: &Scene| {
            let file = |columns: &u16| format!("{DIRECTORY}/{}", scene.file(*columns));
            scene.columns.iter().map(file).collect::<Vec<_>>()
        };
        let made: BTreeSet<_> = TERMINALS.iter().flat_map(of).collect();
        assert_eq!(there.collect::<BTreeSet<_>>(), made);
    }
}
