//! Adds a fault for one packet to the text of a scenario.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rxe_lab::frame::Address;
use rxe_lab::packets::Shown;
use serde::Deserialize;
use toml::Spanned;

use crate::conversation::Conversation;
use crate::loaded::Loaded;

/// What is to happen to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The packet is lost behind the capture.
    Lose,
    /// The packet arrives 1 ms later.
    Delay,
    /// The packet arrives twice.
    Duplicate,
    /// Bits of the packet flip behind the capture.
    Damage,
    /// The network marks the packet "congestion experienced".
    Mark,
}

impl Fault {
    fn words(self) -> &'static str {
        match self {
            Self::Lose => "drop 1",
            Self::Delay => "delay 1ms 1",
            Self::Duplicate => "dup 1",
            Self::Damage => "corrupt 1",
            Self::Mark => "ecn 1",
        }
    }
}

/// The packet that a fault is to hit, as the fault language describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    to: Option<Address>,
    from: Option<Address>,
    qp: u32,
    psn: u32,
    opcode: &'static str,
}

/// The faults of a scenario, with their places in the text.
#[derive(Debug, Deserialize)]
struct Scenario {
    hosts: BTreeMap<String, Host>,
}

#[derive(Debug, Deserialize)]
struct Host {
    address: IpAddr,
    faults: Option<Spanned<String>>,
}

/// Returns the text of the scenario with a fault for the first packet of a frame, counted from 1.
/// The fault is one of the receiving host, so the capture still has the packet.
pub(crate) fn with_fault(
    text: &str,
    conversation: &Conversation,
    of: &Loaded,
    frame: u64,
    fault: Fault,
) -> Result<String, String> {
    let target = |row| of.with(row, target).flatten();
    let row = of.rows.iter().copied().find(|row| u64::from(row.frame) + 1 == frame);
    let target_of_row =
        row.and_then(target).ok_or("this frame has no packet that can be chosen")?;
    // Earlier packets that the same conditions choose pass first. A packet that is lost to an earlier
    // fault does not reach the new one.
    let earlier = of.rows.iter().take_while(|row| u64::from(row.frame) + 1 < frame);
    let earlier = earlier.filter(|row| !conversation.is_lost(row.frame as usize));
    let before = earlier.filter(|row| target(**row).as_ref() == Some(&target_of_row)).count();
    let Target { to, qp, psn, opcode, .. } = target_of_row;
    let mut clause = format!("in: {} only qp={qp:#x} opcode={opcode} psn={psn}", fault.words());
    if before > 0 {
        clause += &format!(" after {before}");
    }
    let scenario: Option<Scenario> = toml::from_str(text).ok();
    let found = scenario.as_ref().and_then(|scenario| scenario.host(to?));
    let (name, host) = found.ok_or_else(|| format!("write it at the receiving host: {clause}"))?;
    insert(text, name, host, &clause).ok_or_else(|| format!("write it at [hosts.{name}]: {clause}"))
}

fn target(shown: &Shown<'_>) -> Option<Target> {
    let packet = shown.packet?;
    Some(Target {
        from: shown.frame.ends.map(|(from, _)| from),
        to: shown.frame.ends.map(|(_, to)| to),
        qp: packet.bth.dest_qp.value(),
        psn: packet.bth.psn.value(),
        opcode: packet.info?.name,
    })
}

impl Scenario {
    /// Returns the host with this address, and its name.
    fn host(&self, address: Address) -> Option<(&String, &Host)> {
        let Address::Ip(wanted) = address else { return None };
        self.hosts.iter().find(|(_, host)| host.address.to_canonical() == wanted)
    }
}

/// Adds a clause to the faults of a host. `None` if the host is not a section of its own.
fn insert(text: &str, name: &str, host: &Host, clause: &str) -> Option<String> {
    let mut new = text.to_owned();
    if let Some(faults) = &host.faults {
        let old = faults.get_ref().trim_end_matches([';', ' ']);
        let all = if old.is_empty() { clause.to_owned() } else { format!("{old}; {clause}") };
        // A string in JSON is one in TOML too.
        new.replace_range(faults.span(), &serde_json::to_string(&all).ok()?);
        return Some(new);
    }
    let header = format!("[hosts.{name}]");
    let is_header = |line: &str| line.split('#').next().is_some_and(|it| it.trim() == header);
    let mut at = 0;
    text.split_inclusive('\n').find(|line| {
        at += line.len();
        is_header(line)
    })?;
    new.insert_str(at, &format!("faults = \"{clause}\"\n"));
    Some(new)
}

#[cfg(test)]
mod tests {
    use rxe_lab::track::Mark;

    use super::*;

    const TEXT: &str = include_str!("../../pcaps/scenarios/psn_sequence_nak.toml");

    fn insert(text: &str, name: &str, clause: &str) -> Option<String> {
        let scenario: Scenario = toml::from_str(text).unwrap();
        super::insert(text, name, scenario.hosts.get(name)?, clause)
    }

    #[test]
    fn a_fault_is_appended_to_others_of_its_host() {
        let new = insert(TEXT, "b", "in: dup 1").unwrap();
        assert!(new.contains("faults = \"in: drop 1 only psn=+1; in: dup 1\"\n"), "{new}");
        let new = insert(TEXT, "a", "in: dup 1").unwrap();
        assert!(
            new.contains("[hosts.a]\nfaults = \"in: dup 1\"\naddress = \"10.0.0.1\"\n"),
            "{new}"
        );
        assert_eq!(insert(TEXT, "c", "in: dup 1"), None);
    }

    #[test]
    fn comments_and_quotes_are_not_mistaken_for_faults() {
        let host = |rest: &str| format!("[hosts.a] # \"first\"\naddress = \"10.0.0.1\"{rest}\n");
        for (old, new) in [
            ("\nfaults = \"drop 1\" # \"b\"", "\nfaults = \"drop 1; dup 1\" # \"b\""),
            ("\nfaults = 'drop 1;'", "\nfaults = \"drop 1; dup 1\""),
            ("\nfaults = \"\"", "\nfaults = \"dup 1\""),
        ] {
            assert_eq!(insert(&host(old), "a", "dup 1"), Some(host(new)), "{old}");
        }
        let new = insert(&host(""), "a", "dup 1").unwrap();
        assert_eq!(new, host("").replace("address", "faults = \"dup 1\"\naddress"));
    }

    #[test]
    fn each_fault_hits_the_chosen_packet() {
        let text = include_str!("../../pcaps/scenarios/rc_send.toml");
        let (first, loaded) =
            Conversation::make(text).unwrap_or_else(|_| panic!("it is well formed"));
        for fault in [Fault::Lose, Fault::Delay, Fault::Duplicate, Fault::Damage, Fault::Mark] {
            let new = with_fault(text, &first, &loaded, 1, fault).unwrap();
            let (made, _) = Conversation::make(&new).unwrap_or_else(|_| panic!("{new}"));
            let outcome = serde_json::to_value(made.outcome()).unwrap();
            let hit = match fault {
                Fault::Lose => "lost",
                Fault::Duplicate => "duplicated",
                Fault::Damage => "damaged",
                Fault::Mark => "marked",
                // A delay is not counted.
                Fault::Delay => continue,
            };
            assert_eq!(outcome["faults"]["1"], serde_json::json!([hit]), "{new}");
        }
    }

    #[test]
    fn a_packet_that_came_through_before_passes_first() {
        let text = include_str!("../../pcaps/scenarios/ack_lost.toml");
        let (first, loaded) =
            Conversation::make(text).unwrap_or_else(|_| panic!("it is well formed"));
        let again = loaded.rows.iter().find(|row| row.mark == Some(Mark::Retransmitted));
        let frame = u64::from(again.expect("one is sent again").frame) + 1;
        let new = with_fault(text, &first, &loaded, frame, Fault::Lose).unwrap();
        assert!(new.contains(" after 1\""), "{new}");
        let (made, _) = Conversation::make(&new).unwrap_or_else(|_| panic!("{new}"));
        assert!(made.is_lost(usize::try_from(frame - 1).unwrap()), "{new}");
    }

    #[test]
    fn a_packet_that_comes_again_is_hit_where_it_was_chosen() {
        let (first, loaded) =
            Conversation::make(TEXT).unwrap_or_else(|_| panic!("it is well formed"));
        // The second packet with PSN +1 is the repetition.
        let again = loaded.rows.iter().find(|row| row.mark == Some(Mark::Retransmitted));
        let frame = u64::from(again.expect("one is sent again").frame) + 1;
        let new = with_fault(TEXT, &first, &loaded, frame, Fault::Lose).unwrap();
        let (made, _) = Conversation::make(&new).unwrap_or_else(|_| panic!("{new}"));
        let outcome = serde_json::to_value(made.outcome()).unwrap();
        assert_eq!(outcome["faults"][frame.to_string()], serde_json::json!(["lost"]), "{new}");
    }
}
