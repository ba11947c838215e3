//! Counters in Prometheus text format 0.0.4, and a minimal HTTP server for them. It serves one
//! request at a time, each for a bounded time, because a scrape comes only every few seconds.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rxe_verbs::observe::Subject;

use crate::common::running::{Running, Which};
use crate::common::{Error, print_error};

/// The time limit of a request, and the most bytes of it.
const REQUEST_TIME: Duration = Duration::from_secs(2);
const REQUEST_LEN: usize = 8 << 10;

/// Formats all counters of these devices.
pub(super) fn text(running: &[Running]) -> String {
    let mut metrics: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for device in running {
        let labels = [
            ("device", device.device()),
            ("netdev", device.netdev()),
            ("pid", &device.pid_text()),
            ("comm", &device.comm),
        ]
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .join(",");
        for record in device.records() {
            for (name, value) in record.fields().filter(|(_, value)| value.parse::<u64>().is_ok()) {
                let (metric, extra) = match record.kind() {
                    "dropped" => ("dropped".into(), format!(",reason=\"{}\"", escaped(name))),
                    "net" => (format!("net_{}", plain(name)), String::new()),
                    _ => (plain(name), String::new()),
                };
                let metric = format!("rxe_{metric}_total");
                let sample = format!("{metric}{{{labels}{extra}}} {value}\n");
                metrics.entry(metric).or_default().push(sample);
            }
        }
    }
    let families = metrics.iter();
    families.map(|(name, samples)| format!("# TYPE {name} counter\n{}", samples.concat())).collect()
}

/// Answers requests at this address until the process is ended.
pub(super) fn serve(address: SocketAddr, which: &Which) -> Result<(), Error> {
    let cannot = |e: io::Error| {
        Error::new(format!("cannot listen on {address}: {e}"), "name another with --prometheus")
    };
    let listener = TcpListener::bind(address).map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    print_error(&format!("http://{bound}/metrics answers until this is interrupted"));
    for stream in listener.incoming() {
        // A client that is gone or too slow gets no answer.
        if let Ok(mut stream) = stream
            && let Ok(request) = request(&mut stream)
        {
            let _ = stream.write_all(&answer(&request, which));
        }
    }
    Ok(())
}

/// Reads a request up to its empty line, and returns its text.
fn request(stream: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + REQUEST_TIME;
    stream.set_write_timeout(Some(REQUEST_TIME))?;
    let mut bytes = Vec::new();
    let mut buf = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() > REQUEST_LEN {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buf)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => bytes.extend_from_slice(&buf[..len]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn answer(request: &str, which: &Which) -> Vec<u8> {
    let mut words = request.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, body) = match path.split('?').next().unwrap_or_default() {
        _ if !matches!(method, "GET" | "HEAD") => {
            ("405 Method Not Allowed", "the methods are GET and HEAD\n".into())
        }
        "/metrics" | "/" => match which.ask(Subject::Counters) {
            Ok(running) => ("200 OK", text(&running)),
            Err(e) => ("503 Service Unavailable", format!("{e}\n")),
        },
        _ => ("404 Not Found", "the counters are at /metrics\n".into()),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &body };
    [head.as_bytes(), body.as_bytes()].concat()
}

/// Escapes a label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Replaces the characters that a metric's name must not have.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_names_are_as_the_format_wants_them() {
        assert_eq!(escaped("a\"b\\c\nd"), r#"a\"b\\c\nd"#);
        assert_eq!(plain("sent-pkts{"), "sent_pkts_");
    }
}
