//! `fi_pingpong` over libfabric's reliable datagrams over UDP.

use super::{Read, Reading, words};
use crate::link::{Link, ServerAndClient};
use crate::tests::Test;

const PORT: u16 = 47592;

/// Runs `fi_pingpong` once.
pub(super) fn run(link: &Link, test: Test, quick: bool) -> Read {
    let iterations = if test.bytes > 4096 { 2000 } else { 10_000 } / if quick { 4 } else { 1 };
    let server =
        words(&format!("fi_pingpong -p udp;ofi_rxd -e rdm -I {iterations} -S {}", test.bytes));
    let client = [&server[..], &[link.host()]].concat();
    let ran =
        link.run(&ServerAndClient { port: PORT, ..ServerAndClient::new(&server, &client) })?;
    let bytes = f64::from(iterations) * f64::from(test.bytes);
    let reading = result(&ran.text).map(|value| Reading { value, bytes, ..Reading::default() });
    Ok((ran, reading))
}

/// Reads the one-way average from the column `usec/xfer`, which a header line names.
fn result(text: &str) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.contains("usec/xfer"));
    let column = lines.next()?.split_whitespace().position(|name| name == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints_is_understood() {
        let text = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                    64k     10k     =10k     1.2g        9.23s    142.03     461.43       0.00\n";
        assert_eq!(result(text), Some(461.43));
        assert_eq!(result("fi_getinfo: no data"), None);
    }
}
