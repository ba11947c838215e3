//! Explains that the device that a program is asked for does not exist. Programs look for its name in the
//! list themselves, and say only that it is not there.

use std::{env, fs};

use super::once;

/// How names of devices begin that drivers of cards and of kernels give.
const DRIVERS: [&str; 12] = [
    "mlx5_", "mlx4_", "rxe", "siw", "irdma", "mana_", "bnxt_re", "efa_", "hfi1_", "hns_", "cxgb4_",
    "qedr",
];
/// Variables with names of devices.
const VARIABLES: [&str; 2] = ["NCCL_IB_HCA", "UCX_NET_DEVICES"];

/// Looks for names of devices that do not exist in the program's arguments and in these variables.
pub(crate) fn unknown_devices(exists: impl Fn(&str) -> bool, present: &[String]) {
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    let arguments = arguments.split(|byte| *byte == 0).skip(1).map(String::from_utf8_lossy);
    let variables = VARIABLES.iter().filter_map(|name| env::var(name).ok());
    let texts = arguments.map(Into::into).chain(variables);
    for text in texts.collect::<Vec<String>>() {
        if let Some(name) = names(&text).find(|name| !exists(name)) {
            once("ibv_get_device_list", &explanation(name, present));
            return;
        }
    }
}

/// The names of devices in a text such as `-dmlx5_0`, `--ib-dev=mlx5_0` or `mlx5_0:1,mlx5_1:1`.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split([',', '=', ':', '^', '/']);
    words.map(|word| word.strip_prefix("-d").unwrap_or(word)).filter(|word| {
        let number = DRIVERS.iter().find_map(|driver| word.strip_prefix(driver));
        number
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    })
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
            assert_eq!(names(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn the_devices_and_the_option_are_named() {
        let said = explanation("mlx5_0", &["rxe_eth0".into(), "rxe_eth1".into()]);
        assert!(said.contains("rxe_eth0, rxe_eth1") && said.contains("--as mlx5"), "{said}");
        assert!(explanation("rxe0", &[]).contains("rxe link add rxe0"));
    }
}
