//! The laboratory's page in a real browser: a capture that is dropped there has the findings of
//! `rxe check --json`, byte for byte, and a scenario that a link carries becomes a conversation.
//!
//! The page is built with `cargo xtask web`, or taken from the directory in `RXE_WEB`.

mod common;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use common::{Dir, rxe};
use rxe_test_support::skipped;

/// How long the browser may take for all captures.
const PATIENCE: Duration = Duration::from_secs(180);

/// Captures with findings and without, with datagrams, a VLAN, a malformed packet and a kernel's
/// packets, and a file that is no capture.
const CAPTURES: [&str; 9] = [
    "pcaps/scenarios/rnr_nak.pcap",
    "pcaps/scenarios/psn_sequence_nak.pcap",
    "pcaps/scenarios/lost_in_bursts.pcap",
    "pcaps/scenarios/ud_missing.pcap",
    "pcaps/scenarios/credits_without_receive.pcap",
    "pcaps/scenarios/connectx_vlan.pcap",
    "pcaps/scenarios/malformed_pad.pcap",
    "pcaps/kernel-6.1/rnr_late.pcap",
    "pcaps/scenarios/rnr_nak.toml",
];

/// Opens the page in a frame, drops the captures one by one, and posts what the page says.
const DRIVER: &str = r##"<!doctype html><meta charset="utf-8"><iframe id="page" width="1200" height="900"></iframe>
<script type="module">
const post = (name, body) => fetch(`/result/${name}`, { method: "POST", body });
const until = async (is) => { while (!is()) await new Promise((go) => setTimeout(go, 20)); };
const frame = document.getElementById("page");
const show = async (hash) => {
  frame.src = "about:blank";
  await new Promise((go) => (frame.onload = go));
  frame.src = `/index.html?lang=en${hash}`;
  await until(() => frame.contentWindow?.lab !== undefined && frame.contentDocument.body.dataset.view);
  return [frame.contentWindow, (id) => frame.contentDocument.getElementById(id)];
};
try {
  const captures = await (await fetch("/captures")).json();
  const [page, of] = await show("");
  for (const name of captures) {
    const bytes = await (await fetch(`/capture/${name}`)).arrayBuffer();
    const data = new page.DataTransfer();
    data.items.add(new page.File([bytes], name));
    page.document.body.dispatchEvent(new page.DragEvent("drop", { dataTransfer: data, bubbles: true }));
    await until(() => !of("read").hidden && of("name").textContent === name);
    await post(name, await page.lab.report());
    if (name !== "rnr_late.pcap") continue;
    // The list is drawn after the report can be asked for.
    await page.lab.openCapture(data.files[0]);
    of("view-packets").click();
    const list = of("packets").querySelector(".view");
    await until(() => list.querySelector("tbody tr"));
    list.dispatchEvent(new page.KeyboardEvent("keydown", { key: "End", bubbles: true }));
    await until(() => list.querySelector("[aria-selected=true]"));
    const last = list.querySelector("[aria-selected=true]");
    const [{ top, bottom }, box] = [last.getBoundingClientRect(), list.getBoundingClientRect()];
    const count = of("view-packets").querySelector(".count").textContent;
    await post("last", `${last.querySelector(".no").textContent} of ${count} ${top >= box.top && bottom <= box.bottom}`);
  }
  const [lab, made] = await show("#scenario/rnr_nak");
  await until(() => made("made").querySelector(".rung.nak") && made("made").querySelector(".card"));
  const nak = made("made").querySelector(".rung.nak .face");
  await post("ladder", `${made("made").querySelectorAll(".rung .face").length} ${nak.textContent}`);
  made("made").querySelector(".rung .face").click();
  await until(() => made("made").querySelector(".under button"));
  made("made").querySelector(".under button").click();
  await until(() => made("made").querySelector(".rung.lost"));
  await post("fault", made("text").value);
  lab.location.hash = "explain/psn";
  await until(() => lab.document.body.dataset.view === "explain");
  lab.history.back();
  await until(() => lab.document.body.dataset.view === "make");
  await post("kept", made("text").value);
  const [, damaged] = await show("#toml/q1ZKy0xRslJQ");
  await until(() => damaged("made").querySelector(".rung"));
  await post("damaged", damaged("about").textContent);
} catch (e) {
  await post("failed", String(e.stack ?? e));
}
await post("end", "");
</script>"##;

#[test]
fn a_browser_finds_what_the_command_finds() {
    let test = "a_browser_finds_what_the_command_finds";
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let mut version = Command::new(name);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    });
    let Some(browser) = browser else { return skipped(test, "chromium is not installed") };
    let dir = Dir::new();
    let page = match page(&dir.0) {
        Ok(page) => page,
        Err(why) => return skipped(test, why),
    };
    let results = drive(browser, &page, &dir.0.join("profile"));
    assert_eq!(results.get("failed").map(|why| String::from_utf8_lossy(why)), None);
    for capture in CAPTURES {
        let path = root().join(capture);
        let name = path.file_name().unwrap();
        let mut check = Command::new(rxe());
        check.args(["check", "--json", "--lang", "en"]).arg(name);
        let command = check.current_dir(path.parent().unwrap()).output().unwrap().stdout;
        let page = &results[name.to_str().unwrap()];
        let [command, page] = [&command, page].map(|it| String::from_utf8_lossy(it));
        assert_eq!(page, command, "{capture}");
    }
    let ladder = String::from_utf8_lossy(&results["ladder"]);
    assert!(ladder.contains("RNR NAK"), "{ladder}");
    let text = String::from_utf8_lossy(&results["fault"]);
    assert!(text.contains("faults = \"in: drop 1 only qp="), "{text}");
    let said = |name: &str| String::from_utf8_lossy(&results[name]).into_owned();
    assert_eq!(said("kept"), text, "the way back loses nothing");
    assert!(said("damaged").starts_with("The link is damaged"), "{}", said("damaged"));
    let last = said("last");
    let [number, _, count, visible] = last.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{last}")
    };
    assert_eq!((number, visible), (count, "true"), "the last packet is reached");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the directory of the page, built if need be, or what this machine lacks for it.
fn page(dir: &Path) -> Result<PathBuf, String> {
    if let Some(built) = env::var_os("RXE_WEB") {
        return Ok(built.into());
    }
    let to = dir.join("web");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["run", "--quiet", "--package", "xtask", "--", "web", "--to"]).arg(&to);
    let out = build.current_dir(root()).output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    match out.status.success() {
        true => Ok(to),
        false if said.contains("rustup target add") => Err(said.trim().to_owned()),
        false => panic!("the page does not build:\n{said}"),
    }
}

/// Lets a browser open the driver. Returns what it has posted, by name.
fn drive(browser: &str, page: &Path, profile: &Path) -> BTreeMap<String, Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (posted, results) = mpsc::channel();
    let page = page.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (page, posted) = (page.clone(), posted.clone());
            thread::spawn(move || serve(stream, &page, &posted));
        }
    });
    let mut command = Command::new(browser);
    // In a container the browser cannot create its sandbox. The page is our own.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    command.arg("--remote-debugging-port=0").stdout(Stdio::null()).stderr(Stdio::null());
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("http://{address}/driver.html"));
    let _browser = Ended(command.spawn().unwrap());
    collect(&results)
}

fn collect(results: &Receiver<(String, Vec<u8>)>) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    loop {
        let (name, body) = results.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            let names: Vec<_> = all.keys().collect();
            panic!("the page says nothing more after {names:?}")
        });
        if name == "end" {
            return all;
        }
        all.insert(name, body);
    }
}

/// A process that ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers one request of the browser.
fn serve(stream: TcpStream, page: &Path, posted: &Sender<(String, Vec<u8>)>) {
    let mut input = BufReader::new(&stream);
    let (mut first, mut len) = (String::new(), 0);
    if input.read_line(&mut first).is_err() {
        return;
    }
    loop {
        let mut line = String::new();
        match input.read_line(&mut line) {
            Ok(3..) => {}
            _ => break,
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap_or(0);
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
    let mut body = vec![0; len];
    let answer = if let Some(name) = path.strip_prefix("result/") {
        if input.read_exact(&mut body).is_ok() {
            let _ = posted.send((name.to_owned(), body));
        }
        Some(Vec::new())
    } else {
        file(path, page)
    };
    let kind = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    let (status, body) = answer.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    let mut output = &stream;
    // A browser that goes away in the middle is no failure.
    let _ = output.write_all(head.as_bytes()).and_then(|()| output.write_all(&body));
}

/// Returns a file of the page, of the captures, or of this test.
fn file(path: &str, page: &Path) -> Option<Vec<u8>> {
    let names = CAPTURES.map(|capture| capture.rsplit('/').next().unwrap_or_default());
    match path {
        "driver.html" => Some(DRIVER.as_bytes().to_vec()),
        "captures" => Some(format!("{names:?}").into_bytes()),
        _ => match path.strip_prefix("capture/") {
            Some(name) => {
                let at = names.iter().position(|it| *it == name)?;
                fs::read(root().join(CAPTURES[at])).ok()
            }
            None if path.contains("..") => None,
            None => fs::read(page.join(path)).ok(),
        },
    }
}
