//! Explains that the device whose name the user gave to a program does not exist.
//! Programs search the list for the name themselves, and report only that it is missing.

use std::{env, fs};

use super::once;

/// The beginnings of the device names that card drivers and kernel drivers give.
const DRIVERS: [&str; 12] = [
    "mlx5_", "mlx4_", "rxe", "siw", "irdma", "mana_", "bnxt_re", "efa_", "hfi1_", "hns_", "cxgb4_",
    "qedr",
];
/// The beginning of the names that our devices have without `rxe link`.
const PREFIX: &str = "rxe_";
/// The environment variables that name devices.
const VARIABLES: [&str; 2] = ["NCCL_IB_HCA", "UCX_NET_DEVICES"];

/// Where a device is whose name, such as `rxe_eth0`, is not in the list.
pub(crate) enum Instead {
    /// The device is in the list under this name; `given` if `rxe link` gave it the name.
    Called { name: String, given: bool },
    /// The device is not in the list.
    Hidden,
}

/// Explains the first device name that the user gave but the list lacks.
/// Names are sought in the program's arguments and in [`VARIABLES`].
pub(crate) fn unknown_devices(present: &[String], instead: impl Fn(&str) -> Option<Instead>) {
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = arguments.split(|byte| *byte == 0).skip(1).map(String::from_utf8_lossy);
    let variables = VARIABLES.iter().filter_map(|name| env::var(name).ok());
    let texts: Vec<String> = arguments.map(Into::into).chain(variables).collect();
    let words = texts.iter().flat_map(|text| words(text));
    let said = words.filter(|word| !present.iter().any(|name| name == word)).find_map(|word| {
        match word.starts_with(PREFIX).then(|| instead(word)).flatten() {
            Some(instead) => Some(found_elsewhere(word, &instead, present)),
            None => is_of_a_driver(word).then(|| explanation(word, present)),
        }
    });
    if let Some(said) = said {
        once("ibv_get_device_list", &said);
    }
}

/// Returns the words in `-dmlx5_0`, `--ib-dev=mlx5_0`, `mlx5_0:1,mlx5_1:1` and similar texts.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split([',', '=', ':', '^', '/']);
    words.map(|word| word.strip_prefix("-d").unwrap_or(word))
}

/// Returns whether a word is a device name from a driver: a known beginning and a number.
fn is_of_a_driver(word: &str) -> bool {
    let number = DRIVERS.iter().find_map(|driver| word.strip_prefix(driver));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

fn found_elsewhere(name: &str, instead: &Instead, present: &[String]) -> String {
    let begin = format!("the program is asked for {name}");
    match instead {
        Instead::Called { name, given: true } => format!(
            "{begin}, whose device has been given the name {name}: ask for {name}, or take that name \
             away (`rxe link delete {name}`)"
        ),
        Instead::Called { name, given: false } => {
            format!("{begin}, whose device is called {name} here: ask for {name}")
        }
        Instead::Hidden => format!(
            "{begin}, which is not among the devices that it is shown: ask for {}; or \
             `rxe run --device {name}` shows it that one",
            present.join(", ")
        ),
    }
}

fn explanation(name: &str, present: &[String]) -> String {
    let all = present.join(", ");
    let other = if name.starts_with("mlx5_") {
        "`rxe run --as mlx5` names the devices mlx5_0, mlx5_1 and so on".to_owned()
    } else {
        format!(
            "`rxe link add {name} type rxe netdev NETDEV` gives an interface's device that name"
        )
    };
    format!(
        "the program is asked for {name}, and there is no such device: ask for {all}; or {other}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_found_in_options() {
        for (text, expected) in [
            ("mlx5_0", vec!["mlx5_0"]),
            ("-dmlx5_12", vec!["mlx5_12"]),
            ("--ib-dev=rxe0", vec!["rxe0"]),
            ("mlx5_0:1,mlx5_1:1", vec!["mlx5_0", "mlx5_1"]),
            ("mlx5_", vec![]),
            ("mlx5_x0", vec![]),
            ("rxe_eth0", vec![]),
            ("192.168.1.1", vec![]),
        ] {
            let found: Vec<_> = words(text).filter(|word| is_of_a_driver(word)).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn the_devices_and_the_option_are_named() {
        let said = explanation("mlx5_0", &["rxe_eth0".into(), "rxe_eth1".into()]);
        assert!(said.contains("rxe_eth0, rxe_eth1") && said.contains("--as mlx5"), "{said}");
        assert!(explanation("rxe0", &[]).contains("rxe link add rxe0"));
    }

    #[test]
    fn the_present_name_of_a_device_is_said() {
        let said = |instead| found_elsewhere("rxe_eth0", &instead, &["eth0".into()]);
        let given = said(Instead::Called { name: "eth0".into(), given: true });
        assert!(given.contains("asked for rxe_eth0, whose device has been given the name eth0"));
        assert!(given.ends_with("(`rxe link delete eth0`)"), "{given}");
        let called = said(Instead::Called { name: "mlx5_0".into(), given: false });
        assert!(called.ends_with("is called mlx5_0 here: ask for mlx5_0"), "{called}");
        let hidden = said(Instead::Hidden);
        assert!(hidden.contains("ask for eth0; or `rxe run --device rxe_eth0`"), "{hidden}");
    }
}
