//! Requests of the page, and what the laboratory remembers between them.

use std::io::Read;

use rxe_lab::explain::Lang;
use rxe_lab::packets::Only;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::conversation::Conversation;
use crate::edit::{self, Fault};
use crate::list::{Filters, List, fields};
use crate::loaded::Loaded;
use crate::{explain, ladder};

/// A request of the page. Its answer is JSON, except where another format is named.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Reads the capture that the page has opened.
    Open {
        /// The name of the file.
        name: String,
    },
    /// Makes the conversation of a scenario.
    Make {
        /// The scenario, in TOML.
        text: String,
    },
    /// Adds a fault for one packet of the made conversation to its scenario.
    AddFault {
        /// The scenario, in TOML.
        text: String,
        /// The number of the frame, counted from 1.
        frame: u64,
        /// What is to happen.
        fault: Fault,
    },
    /// Returns a part of the list of packets.
    Packets {
        /// The filters.
        filters: Filters,
        /// The place in the filtered list of the first packet wanted.
        from: usize,
        /// The number of packets wanted.
        count: usize,
    },
    /// Returns the index of the first packet of a frame or a later one.
    Place {
        /// The number of the frame, counted from 1.
        frame: u64,
    },
    /// Returns all fields of a packet.
    Fields {
        /// The index of the packet.
        index: usize,
    },
    /// Returns a part of a sequence diagram.
    Ladder {
        /// The index of the diagram.
        nth: usize,
        /// The index of the first row wanted.
        from: usize,
        /// The number of rows wanted.
        count: usize,
    },
    /// Returns the report, exactly as `rxe check --json` prints it.
    Findings {
        /// The language of the explanations.
        lang: Lang,
    },
    /// Returns the made conversation as a pcap file.
    File,
    /// Searches the catalogue.
    Explain {
        /// The words.
        query: String,
        /// The language of the explanations.
        lang: Lang,
    },
    /// Returns what can be said of packets: the values of the filter `only`.
    Kinds,
}

/// What the laboratory remembers: the capture, or the conversation and its capture.
#[derive(Debug, Default)]
pub struct Laboratory {
    loaded: Option<Loaded>,
    conversation: Option<Conversation>,
    list: List,
}

impl Laboratory {
    /// Carries out a request. `file` is the capture that the page has opened.
    /// A request that cannot be carried out is answered with an object that has `error`.
    pub fn call(&mut self, request: &[u8], file: Box<dyn Read + '_>) -> Vec<u8> {
        match serde_json::from_slice(request) {
            Ok(request) => self.carry_out(request, file).unwrap_or_else(|error| failed(&error)),
            Err(e) => failed(&e.to_string()),
        }
    }

    fn carry_out(&mut self, request: Request, file: Box<dyn Read + '_>) -> Result<Vec<u8>, String> {
        match request {
            Request::Open { name } => {
                // The capture before is given up first: both may not fit into memory.
                *self = Self::default();
                let loaded = self.loaded.insert(Loaded::read(&name, file, false));
                Ok(bytes(&loaded.overview()))
            }
            Request::Make { text } => {
                let (conversation, loaded) = match Conversation::make(&text) {
                    Ok(made) => made,
                    Err(mistake) => return Ok(bytes(&mistake)),
                };
                let answer = json!({
                    "overview": loaded.overview(),
                    "outcome": conversation.outcome(),
                });
                let (loaded, conversation) = (Some(loaded), Some(conversation));
                *self = Self { loaded, conversation, list: List::default() };
                Ok(bytes(&answer))
            }
            Request::AddFault { text, frame, fault } => {
                let conversation = self.conversation.as_ref().ok_or(NOTHING)?;
                let text = edit::with_fault(&text, conversation, self.loaded()?, frame, fault)?;
                Ok(bytes(&json!({ "text": text })))
            }
            Request::Packets { filters, from, count } => {
                let loaded = self.loaded.as_ref().ok_or(NOTHING)?;
                Ok(match self.list.page(loaded, filters, from, count) {
                    Ok(page) => bytes(&page),
                    Err(wrong) => bytes(&wrong),
                })
            }
            Request::Place { frame } => Ok(bytes(&json!({ "place": self.loaded()?.place(frame) }))),
            Request::Fields { index } => {
                let fields = fields(self.loaded()?, index);
                Ok(bytes(&fields.ok_or("there is no such packet")?))
            }
            Request::Ladder { nth, from, count } => {
                let ladder = self.loaded()?.ladders.get(nth).ok_or("there is no such diagram")?;
                Ok(bytes(&ladder::part(ladder, from, count)))
            }
            Request::Findings { lang } => Ok(self.loaded()?.findings(lang)),
            Request::File => Ok(self.conversation.as_ref().ok_or(NOTHING)?.file()),
            Request::Explain { query, lang } => Ok(bytes(&explain::search(&query, lang))),
            Request::Kinds => {
                let all = Only::all();
                let all: Vec<_> = all.iter().map(|(name, what, _)| (name, what)).collect();
                Ok(bytes(&all))
            }
        }
    }

    fn loaded(&self) -> Result<&Loaded, String> {
        self.loaded.as_ref().ok_or_else(|| NOTHING.to_owned())
    }
}

const NOTHING: &str = "no capture is open";

fn bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_else(|e| failed(&e.to_string()))
}

fn failed(error: &str) -> Vec<u8> {
    json!({ "error": error }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const CAPTURE: &[u8] = include_bytes!("../../pcaps/scenarios/rnr_nak.pcap");
    const SCENARIO: &str = include_str!("../../pcaps/scenarios/rnr_nak.toml");

    fn ask(laboratory: &mut Laboratory, request: &Value) -> Value {
        let answer = laboratory.call(request.to_string().as_bytes(), Box::new(CAPTURE));
        serde_json::from_slice(&answer).unwrap()
    }

    #[test]
    fn a_capture_is_opened_listed_drawn_and_checked() {
        let lab = &mut Laboratory::default();
        assert_eq!(ask(lab, &json!({ "do": "findings", "lang": "en" }))["error"], NOTHING);
        let overview = ask(lab, &json!({ "do": "open", "name": "a.pcap" }));
        assert_eq!(overview["error"], Value::Null);
        let packets =
            json!({ "do": "packets", "filters": { "only": "nak" }, "from": 0, "count": 9 });
        let page = ask(lab, &packets);
        assert_eq!((&page["total"], &page["rows"][0]["kind"]), (&json!(1), &json!("nak")));
        let wrong = json!({ "do": "packets", "filters": { "qp": "x" }, "from": 0, "count": 9 });
        assert_eq!(ask(lab, &wrong)["field"], "qp");
        let fields = ask(lab, &json!({ "do": "fields", "index": 0 }));
        assert_eq!(fields["layers"][0]["name"], "Ethernet");
        let ladder = ask(lab, &json!({ "do": "ladder", "nth": 0, "from": 0, "count": 9 }));
        assert!(ladder["rows"].as_array().unwrap().iter().any(|row| row["kind"] == "nak"));
        let findings = ask(lab, &json!({ "do": "findings", "lang": "zh" }));
        assert_eq!(findings[0]["findings"][0]["kind"], "rnr-nak");
    }

    /// Returns a capture in which each frame comes twice.
    fn twice(pcap: &[u8]) -> Vec<u8> {
        let (head, mut rest) = pcap.split_at(24);
        let mut file = head.to_vec();
        while let Some(len) = rest.get(8..12) {
            let len = 16 + u32::from_le_bytes(len.try_into().unwrap()) as usize;
            file.extend(rest[..len].repeat(2));
            rest = &rest[len..];
        }
        file
    }

    #[test]
    fn a_finding_chooses_packets_of_a_capture_of_two_places_and_each_occurrence_counts() {
        let lab = &mut Laboratory::default();
        let file = twice(include_bytes!("../../pcaps/kernel-6.1/rnr_late.pcap"));
        let open = json!({ "do": "open", "name": "a.pcap" }).to_string();
        let overview = lab.call(open.as_bytes(), Box::new(&file[..]));
        let overview: Value = serde_json::from_slice(&overview).unwrap();
        let report = &ask(lab, &json!({ "do": "findings", "lang": "en" }))[0];
        let kinds: Vec<_> = report["kinds"].as_array().unwrap().iter().collect();
        let counts: Vec<_> = kinds.iter().map(|it| (&it["kind"], &it["count"])).collect();
        assert_eq!(counts, [(&json!("rnr-nak"), &json!(9)), (&json!("two-places"), &json!(1))]);
        assert_eq!(overview["findings"], 10);
        let filters = json!({ "only": "rnr-nak" });
        let page = json!({ "do": "packets", "filters": filters, "from": 0, "count": 9 });
        assert_eq!(ask(lab, &page)["total"], 18, "{report}");
    }

    #[test]
    fn a_conversation_is_made_and_a_mistake_has_its_place() {
        let lab = &mut Laboratory::default();
        let made = ask(lab, &json!({ "do": "make", "text": SCENARIO }));
        assert_eq!(made["outcome"]["states"], json!({ "a": "RTS", "b": "RTS" }));
        let wrong = ask(lab, &json!({ "do": "make", "text": "seed = 1\nsteps = 3\n" }));
        assert_eq!((&wrong["line"], &wrong["column"]), (&json!(2), &json!(9)));
        assert!(!lab.call(br#"{"do":"file"}"#, Box::new(&[][..])).is_empty());
    }

    #[test]
    fn a_request_that_is_none_is_answered() {
        let lab = &mut Laboratory::default();
        assert!(ask(lab, &json!({ "do": "nothing" }))["error"].is_string());
    }
}
