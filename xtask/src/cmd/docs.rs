//! `cargo xtask docs`: builds the book in English and in Chinese, as web pages in `target/book`.
//!
//! The pages are Markdown files whose links work in the repository, so a forge shows them too. For
//! the book they are copied: the pages of a language to the root of its book, pictures that both
//! languages use to the English book. Links are adapted; links that leave `docs` become plain text.
//! Links to the laboratory's page replace markers ([`laboratory`]).

mod laboratory;
mod pictures;
mod scenes;
mod svg;
mod terminal;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use super::files::{files, succeed, write};
use super::stages::Count;
use rxe_harness::links::relinked;
use rxe_harness::vm::{Error, Result};

/// The version of mdbook that is installed if there is none.
const MDBOOK: &str = "0.5.4";

/// The directory and the title of each book, and the text of its links to the laboratory's page.
const BOOKS: [(&str, &str, &str); 2] = [
    ("en", "rxe, the book", "Open this conversation in your browser"),
    ("zh", "rxe 手册", "在浏览器中打开这段会话"),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory for the pages
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
    /// Use this rxe_web.wasm, built elsewhere, for the page for browsers instead of building it
    #[arg(long, value_name = "FILE")]
    wasm: Option<PathBuf>,
    /// Generate the pictures of terminals and of `rxe ladder` again instead, or those whose names
    /// contain NAME; the page of `rxe ladder` needs chromium
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["to", "wasm"])]
    pictures: Option<String>,
}

/// Runs the stage of `cargo xtask test --all` that builds the book and checks its links.
pub(super) fn test(count: &mut Count) {
    match run(&Args { to: None, wasm: None, pictures: None }) {
        Ok(_) => count.check("the book", Ok(true)),
        Err(Error::Missing(why)) => count.skip(&format!("the book: {why}")),
        Err(why) => count.check("the book", Err(why)),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    if let Some(name) = &args.pictures {
        return pictures::run(top, name).map(|()| ExitCode::SUCCESS);
    }
    let mdbook = mdbook(top)?;
    let to = args.to.clone().unwrap_or_else(|| top.join("target/book"));
    let has_laboratory = laboratory::put(top, &to, args.wasm.as_deref())?;
    let staged = tempfile::tempdir().map_err(|e| Error::Failed(e.to_string()))?;
    for (language, title, open) in BOOKS {
        let book = staged.path().join(language);
        stage(&top.join("docs"), language, has_laboratory.then_some(open), &book.join("src"))?;
        write(&book.join("book.toml"), settings(language, title))?;
        let to = to.join(language);
        let to = std::path::absolute(&to).map_err(|e| Error::io(&to, &e))?;
        let mut build = Command::new(&mdbook);
        build.env("RUST_LOG", "warn").arg("build").arg(&book).arg("--dest-dir").arg(&to);
        succeed(&mut build)?;
    }
    write(&to.join("index.html"), START)?;
    let (pages, broken) = check(&to)?;
    if !broken.is_empty() {
        return Err(Error::Failed(format!("links that lead nowhere:\n{}", broken.join("\n"))));
    }
    println!("{pages} pages: {}", to.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// The start page, with the choice of the language.
const START: &str = "<!doctype html><meta charset=\"utf-8\"><title>rxe</title>
<p><a href=\"en/index.html\">English</a></p><p><a href=\"zh/index.html\" lang=\"zh\">中文</a></p>\n";

fn settings(language: &str, title: &str) -> String {
    format!(
        "[book]\ntitle = \"{title}\"\nlanguage = \"{language}\"\n\
         [build]\ncreate-missing = false\n\
         [output.html]\nno-section-label = true\n\
         [output.html.fold]\nenable = true\nlevel = 0\n\
         [output.html.print]\nenable = false\n"
    )
}

/// Returns the mdbook in `target/tools`, the one in PATH, or one that is installed now.
fn mdbook(top: &Path) -> Result<PathBuf> {
    let root = top.join("target/tools");
    let own = root.join("bin/mdbook");
    for program in [own.clone(), PathBuf::from("mdbook")] {
        if Command::new(&program).arg("--version").output().is_ok_and(|out| out.status.success()) {
            return Ok(program);
        }
    }
    println!("installing mdbook {MDBOOK} in target/tools; this takes some minutes");
    let mut install = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    install.args(["install", "mdbook", "--version", MDBOOK, "--locked", "--quiet"]);
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&root);
    // mdbook is built outside the workspace, whose settings differ.
    succeed(install.current_dir(std::env::temp_dir()))
        .map_err(|why| Error::Missing(format!("mdbook, which is not installed: {why}")))?;
    Ok(own)
}

/// Copies the files of one book to `to`. `open` is the text of links to the laboratory's page, if
/// there is one.
fn stage(docs: &Path, language: &str, open: Option<&str>, to: &Path) -> Result<()> {
    let mut all = Vec::new();
    files(docs, Path::new(""), &mut all)?;
    for file in &all {
        let Some(place) = place(file, language) else { continue };
        let Ok(place) = place.strip_prefix(language) else { continue };
        let (from, to) = (docs.join(file), to.join(place));
        if file.extension().is_some_and(|ext| ext == "md") {
            let mut text = rewritten(&read(&from)?, file, language);
            // The decisions exist in English only.
            if file.ends_with("SUMMARY.md") && language == "en" {
                text = with_decisions(&text, docs)?;
            }
            if let Some(open) = open {
                text = laboratory::linked(&text, file, language, open);
            }
            write(&to, &text)?;
        } else {
            let bytes = fs::read(&from).map_err(|e| Error::io(&from, &e))?;
            write(&to, bytes)?;
        }
    }
    Ok(())
}

/// Returns where a file of `docs` is in both books, for a reader of one language.
/// Returns `None` if the file is not in `docs`.
fn place(file: &Path, language: &str) -> Option<PathBuf> {
    let mut parts = file.components();
    let first = parts.next()?.as_os_str().to_str()?;
    let mut place = match first {
        ".." => return None,
        "en" | "zh" => file.to_owned(),
        "examples" => Path::new(language).join(file),
        _ => Path::new("en").join(file),
    };
    // A web server shows this page for a directory.
    if place.file_name().is_some_and(|name| name == "README.md") {
        place.set_file_name("index.md");
    }
    Some(place)
}

/// Returns the table of contents with the decisions below their index page. That page lists them.
fn with_decisions(summary: &str, docs: &Path) -> Result<String> {
    const INDEX: &str = "(project/decisions/index.md)";
    let index = Path::new("en/project/decisions/README.md");
    let list = rewritten(&read(&docs.join(index))?, index, "en");
    let mut out = String::new();
    for line in summary.lines() {
        out += line;
        out.push('\n');
        if line.ends_with(INDEX) {
            for entry in list.lines().filter(|line| line.starts_with("- [")) {
                out += &format!("  {}\n", entry.replace("](", "](project/decisions/"));
            }
        }
    }
    Ok(out)
}

/// Returns a page with its links adapted to the book.
fn rewritten(text: &str, file: &Path, language: &str) -> String {
    relinked(text, |target| moved(target, file, language))
}

/// Returns the target of a link in this file, adapted to the book. `None` if it is not in the book.
fn moved(target: &str, file: &Path, language: &str) -> Option<String> {
    if target.contains("://") || target.starts_with('#') {
        return Some(target.to_owned());
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let from = place(file, language)?;
    let to = place(&normal(&file.parent()?.join(path)), language)?;
    to.extension()?;
    let mut link = relative(from.parent()?, &to).to_str()?.to_owned();
    if let Some(anchor) = anchor {
        link = format!("{link}#{anchor}");
    }
    Some(link)
}

/// Returns the path with each `..` in its middle resolved.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if out.file_name().is_some() => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn relative(from: &Path, to: &Path) -> PathBuf {
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

/// Returns the number of pages, and the links that lead to no file, or to a missing anchor.
fn check(pages: &Path) -> Result<(usize, Vec<String>)> {
    let mut all = Vec::new();
    files(pages, Path::new(""), &mut all)?;
    let html = |file: &&PathBuf| {
        // In the laboratory's page, the part behind `#` is no anchor.
        file.extension().is_some_and(|ext| ext == "html")
            && !file.ends_with("404.html")
            && !file.starts_with(laboratory::DIRECTORY)
    };
    let mut texts = BTreeMap::new();
    for file in all.iter().filter(html) {
        texts.insert(file.clone(), read(&pages.join(file))?);
    }
    let places: BTreeMap<_, _> = texts.iter().map(|(file, text)| (file, ids(text))).collect();
    let mut broken = Vec::new();
    for (file, text) in &texts {
        for part in text.split(" href=\"").chain(text.split(" src=\"")).skip(1) {
            let Some((target, _)) = part.split_once('"') else { continue };
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = path.split('?').next().unwrap_or_default();
            let outside = ["://", "mailto:", "data:"].iter().any(|word| target.contains(word));
            if outside || path.contains('<') {
                continue;
            }
            let to = match path {
                "" => file.clone(),
                _ => normal(&file.parent().unwrap_or(Path::new("")).join(path)),
            };
            let has = |ids: &BTreeSet<&str>| anchor.is_empty() || ids.contains(&*decoded(anchor));
            if !pages.join(&to).exists() || !places.get(&to).is_none_or(has) {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    Ok((texts.len(), broken))
}

/// Returns the anchors of a page.
fn ids(text: &str) -> BTreeSet<&str> {
    text.split(" id=\"").skip(1).filter_map(|part| Some(part.split_once('"')?.0)).collect()
}

/// Decodes `%XX` in the name of an anchor.
fn decoded(name: &str) -> String {
    let mut out = Vec::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('%') {
        out.extend_from_slice(before.as_bytes());
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.unwrap_or(b'%'));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    out.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Error::io(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_the_pages() {
        let to = |target, file| moved(target, Path::new(file), "en");
        assert_eq!(to("2-b.md", "en/learn/1-a.md").unwrap(), "2-b.md");
        assert_eq!(to("../faults.md#x", "en/learn/1-a.md").unwrap(), "../faults.md#x");
        assert_eq!(
            to("../../zh/learn/1-a.md", "en/learn/1-a.md").unwrap(),
            "../../zh/learn/1-a.md"
        );
        assert_eq!(to("../README.md", "en/do/install.md").unwrap(), "../index.md");
        assert_eq!(to("https://example.com/", "en/faq.md").unwrap(), "https://example.com/");
        assert_eq!(to("../../README.md", "en/faq.md"), None);
        let chinese = moved("../../ladder/nak.svg", Path::new("zh/do/a.md"), "zh").unwrap();
        assert_eq!(chinese, "../../en/ladder/nak.svg");
    }

    #[test]
    fn a_link_leads_to_a_page_and_a_place_of_it() {
        let pages = tempfile::tempdir().unwrap();
        let link = |to: &str| format!("<a href=\"{to}\">x</a>\n");
        let good = ["b/c.html", "b/c.html#here", "b/c.html#%E6%8A%93", "#top", "https://x.org/#y"];
        let bad = ["b/d.html", "b/c.html#there", "#bottom", "b/c.html#%E6%8A"];
        let all: String = good.iter().chain(&bad).map(|to| link(to)).collect();
        write(&pages.path().join("a.html"), format!("<h1 id=\"top\">A</h1>{all}")).unwrap();
        let c = "<h2 id=\"here\">C</h2><h2 id=\"抓\"></h2><a href=\"../a.html#top\"></a>";
        write(&pages.path().join("b/c.html"), c).unwrap();
        let (count, broken) = check(pages.path()).unwrap();
        assert_eq!((count, broken), (2, bad.map(|to| format!("a.html: {to}")).to_vec()));
    }

    #[test]
    fn only_the_text_stays_of_a_link_out_of_the_book() {
        let line = "See [the source](../../README.md), [here](faults.md) and `[a](b)`.\n";
        let new = rewritten(line, Path::new("en/faq.md"), "en");
        assert_eq!(new, "See the source, [here](faults.md) and `[a](b)`.\n");
    }
}
