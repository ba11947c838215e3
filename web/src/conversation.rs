//! Conversations made from a scenario.

use std::collections::BTreeMap;
use std::io::Cursor;

use rxe_lab::scenario::{self, Bounds, Generated, ScenarioError};
use serde::Serialize;

use crate::loaded::Loaded;

/// What a scenario may make, so that a page stays quick while one types.
const BOUNDS: Bounds = Bounds { frames: 20_000, bytes: 64 << 20, memory: 64 << 20 };

/// The name of a made conversation.
const NAME: &str = "conversation.pcap";

/// A conversation that was made.
#[derive(Debug)]
pub(crate) struct Conversation {
    generated: Generated,
}

/// What became of a conversation.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    /// The state of each queue pair after the last step.
    states: BTreeMap<String, &'static str>,
    completions: Vec<Count>,
    unaccepted: Vec<Count>,
    /// The faults that hit frames after they were captured, by the number of the frame.
    faults: BTreeMap<usize, Vec<&'static str>>,
    /// What is probably not meant.
    warnings: Vec<Mistake>,
}

#[derive(Debug, Serialize)]
struct Count {
    whose: String,
    what: String,
    count: u64,
}

/// A mistake in a scenario, or a warning.
#[derive(Debug, Serialize)]
pub(crate) struct Mistake {
    line: usize,
    column: usize,
    error: String,
}

impl From<ScenarioError> for Mistake {
    fn from(e: ScenarioError) -> Self {
        Self { line: e.line, column: e.column, error: e.text }
    }
}

impl Conversation {
    /// Makes the conversation of a scenario, and the capture of it.
    pub(crate) fn make(text: &str) -> Result<(Self, Loaded), Mistake> {
        let generated = scenario::generate(text, BOUNDS)?;
        // Comments tell which requests completed. A frame that is too long has none.
        let file = generated.to_pcapng().unwrap_or_else(|_| generated.to_pcap());
        let loaded = Loaded::read(NAME, Box::new(Cursor::new(file)), true);
        Ok((Self { generated }, loaded))
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let Generated { completions, unaccepted, states, frames, warnings, .. } = &self.generated;
        let hit = (1..).zip(frames).filter(|(_, frame)| !frame.faults.is_empty());
        Outcome {
            states: states.iter().map(|(name, state)| (name.clone(), state.name())).collect(),
            completions: (completions.iter())
                .map(|((whose, what), count)| Count::of(whose, what, *count))
                .collect(),
            unaccepted: (unaccepted.iter())
                .map(|((whose, what), count)| Count::of(whose, what, *count))
                .collect(),
            faults: hit.map(|(number, frame)| (number, frame.faults.clone())).collect(),
            warnings: warnings.iter().cloned().map(Mistake::from).collect(),
        }
    }

    /// Returns whether the frame with this index was lost behind the capture.
    pub(crate) fn is_lost(&self, index: usize) -> bool {
        self.generated.frames.get(index).is_some_and(|frame| frame.faults.contains(&"lost"))
    }

    /// Returns the capture as `rxe gen -w conversation.pcap` writes it.
    pub(crate) fn file(&self) -> Vec<u8> {
        self.generated.to_pcap()
    }
}

impl Count {
    fn of(whose: &str, what: &str, count: u64) -> Self {
        Self { whose: whose.to_owned(), what: what.to_owned(), count }
    }
}
