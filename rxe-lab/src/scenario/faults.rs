//! The faults of a host.

use rxe_net::{FaultRule, fault_language};

/// Parses the faults of a host, in the language of `rxe run --fault`.
///
/// # Errors
/// Fails if the text has a mistake, or a fault that is not one of packets. The error is the column,
/// counted in characters from 1, and a message.
pub(super) fn faults(text: &str) -> Result<Vec<FaultRule>, (usize, String)> {
    let mut others = false;
    let rules = fault_language::rules(text, |_| {
        others = true;
        Ok(())
    });
    let rules = rules.map_err(|e| {
        let message = e.to_string();
        // The column is reported separately.
        let (_, why) = message.split_once(": ").unwrap_or(("", &message));
        (e.column(), why.to_owned())
    })?;
    if others {
        let why = "a host of a scenario has faults of packets only, such as \"drop 1%\"";
        return Err((1, why.to_owned()));
    }
    Ok(rules)
}
