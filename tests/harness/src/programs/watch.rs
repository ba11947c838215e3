//! Watches the link for a bug of `rdma_rxe` of Linux 6.1. On a busy machine it sometimes
//! retransmits a message, and occasionally sends one wrong packet first: ONLY with the PSN of
//! FIRST, or FIRST with that of the first MIDDLE. Its peer can only refuse such a packet. A row
//! that fails for this reason is run again; the captured packets must prove it.

use crate::vm::{Capture, Error, Frames, Net, Result};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use tempfile::NamedTempFile;

/// The kernel with the bug.
pub(super) const KERNEL: &str = "6.1";

/// The name of the finding in `rxe check`.
const CHANGED: &str = "changed-request";

/// A capture of the headers on the link.
pub(super) struct Watch {
    capture: Capture,
    file: NamedTempFile,
}

impl Watch {
    /// Starts the capture.
    pub(super) fn begin(net: &Net) -> Result<Self> {
        let file = NamedTempFile::with_prefix("rxe-watch-");
        let file = file.map_err(|e| Error::Failed(format!("a file for a capture: {e}")))?;
        let capture = net.capture(file.path(), Frames::Headers)?;
        Ok(Self { capture, file })
    }

    /// Stops the capture, and asks `rxe` for a request that `kernel` retransmitted with another
    /// opcode.
    pub(super) fn changed_request(self, rxe: &Path, kernel: Ipv4Addr) -> Result<Option<String>> {
        self.capture.stop();
        // The exit code is 1 if there are findings.
        let out = Command::new(rxe).args(["check", "--json"]).arg(self.file.path()).output();
        let out = out.map_err(|e| Error::Failed(format!("rxe check: {e}")))?;
        let report = serde_json::from_slice(&out.stdout).map_err(|e| {
            Error::Failed(format!("rxe check: {e}: {}", String::from_utf8_lossy(&out.stderr)))
        })?;
        Ok(changed_request(&report, kernel))
    }
}

/// Returns the finding of `rxe check` about a request that `kernel` retransmitted with another
/// opcode.
fn changed_request(report: &Value, kernel: Ipv4Addr) -> Option<String> {
    let findings =
        report.as_array()?.iter().filter_map(|file| file["findings"].as_array()).flatten();
    let mut changed = findings.filter(|f| f["kind"] == CHANGED && f["from"] == kernel.to_string());
    changed.find_map(|f| Some(format!("PSN {}: {}", f["psn"], f["text"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 47, 91, 11);

    #[test]
    fn only_a_request_that_the_kernel_has_changed_is_an_excuse() {
        let report = |kind, from| {
            let text = "It was sent as RC_WRITE_FIRST and again as RC_WRITE_ONLY.";
            json!([{ "findings": [{ "kind": kind, "from": from, "psn": 7, "text": text }] }])
        };
        let why = changed_request(&report(CHANGED, "10.47.91.11"), THEIRS).unwrap();
        assert!(why.starts_with("PSN 7: It was sent as"), "{why}");
        for (kind, from) in [(CHANGED, "10.47.91.1"), ("opcode-order", "10.47.91.11")] {
            assert_eq!(changed_request(&report(kind, from), THEIRS), None);
        }
        assert_eq!(changed_request(&json!([{ "findings": [] }]), THEIRS), None);
    }
}
