//! `iperf3` with one TCP connection.

use super::{Read, Reading, words};
use crate::link::{Link, ServerAndClient};

const PORT: u16 = 5201;

/// Runs iperf3 once, for a second.
pub(super) fn run(link: &Link) -> Read {
    let server = words("iperf3 -s -1");
    let client = words(&format!("iperf3 -c {} -t 1 -J", link.host()));
    let ran =
        link.run(&ServerAndClient { port: PORT, ..ServerAndClient::new(&server, &client) })?;
    let reading = serde_json::from_str(&ran.text).ok().and_then(|json: serde_json::Value| {
        let received = &json["end"]["sum_received"];
        let value = received["bits_per_second"].as_f64()? / 8e9;
        Some(Reading { value, bytes: received["bytes"].as_f64()?, ..Reading::default() })
    });
    Ok((ran, reading))
}
