//! Bare UDP sockets, without a protocol: the example `raw_udp` of rxe-net.

use super::{Read, Reading, words};
use crate::link::{Link, ServerAndClient};
use crate::tests::{Kind, Test};

const PORT: u16 = 18519;
/// The bytes of BTH and ICRC that a RoCE packet has besides the payload.
const HEADERS: u32 = 16;

/// Runs the program once, for a second.
pub(super) fn run(program: &str, link: &Link, test: Test, gso: bool) -> Read {
    let (mode, bytes) = match test.kind {
        Kind::Latency => ("latency", test.bytes + HEADERS),
        _ => ("stream", test.mtu + HEADERS),
    };
    let server = words(&format!("{program} {mode} {bytes}{}", if gso { " --gso" } else { "" }));
    let client = [&server[..], &[link.host()]].concat();
    let ran =
        link.run(&ServerAndClient { port: PORT, ..ServerAndClient::new(&server, &client) })?;
    let value = ran.text.trim().parse::<f64>().ok();
    let reading = value.map(|value| match test.kind {
        Kind::Latency => Reading { value, bytes: f64::NAN, ..Reading::default() },
        _ => {
            let bytes = value * f64::from(test.mtu) / f64::from(bytes);
            Reading { value: bytes / 1e9, bytes, ..Reading::default() }
        }
    });
    Ok((ran, reading))
}
