//! The cells that `cargo xtask test` runs within a few minutes: each combination of backend and
//! role completely with one kernel, and a few of its cells with the other kernel.

use super::{Asks, Backend};

/// Returns the combinations that are run completely with this kernel.
fn whole(kernel: &str) -> &'static [(Backend, Asks)] {
    match kernel {
        "6.1" => &[(Backend::Udp, Asks::Ours), (Backend::Packet, Asks::Kernel)],
        "7.2" => &[(Backend::Udp, Asks::Kernel), (Backend::Packet, Asks::Ours)],
        _ => &[],
    }
}

/// Returns the combinations of backend and requester that a short run limits to
/// [`FEW`](super::FEW). `kernel` is a version such as `6.1`.
pub fn brief(kernel: &str) -> Vec<(Backend, Asks)> {
    let backends = Backend::OF_HOST.into_iter().chain([Backend::Interface, Backend::Guest]);
    let all = backends.flat_map(|backend| Asks::BOTH.map(|a| (backend, a)));
    all.filter(|combination| !whole(kernel).contains(combination)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::{FEW, KERNELS, Options};

    fn short(kernel: &str) -> Options {
        Options {
            backends: Backend::OF_HOST.into(),
            brief: brief(kernel),
            asks: Asks::BOTH.into(),
            filter: None,
            verbose: false,
            capture: None,
            peer: "rxe-peer".into(),
            rxe: "rxe".into(),
        }
    }

    /// Returns the kernels with which a short run includes this cell.
    fn kernels(backend: Backend, asks: Asks, name: &str) -> Vec<&'static str> {
        let mut kernels = Vec::from(KERNELS);
        kernels.retain(|kernel| short(kernel).chooses(backend, asks, name));
        kernels
    }

    #[test]
    fn each_combination_is_whole_with_one_kernel() {
        assert!(!FEW.contains(&"SEND/0"));
        for asks in Asks::BOTH {
            for backend in [Backend::Udp, Backend::Packet] {
                assert_eq!(kernels(backend, asks, "SEND/0").len(), 1, "{backend:?} {asks:?}");
            }
            assert!(kernels(Backend::Xdp, asks, "SEND/0").is_empty());
        }
    }

    #[test]
    fn each_kernel_plays_both_backends_and_both_roles_whole() {
        for kernel in KERNELS {
            for backend in [Backend::Udp, Backend::Packet] {
                assert_eq!(whole(kernel).iter().filter(|(b, _)| *b == backend).count(), 1);
            }
            for asks in Asks::BOTH {
                assert_eq!(whole(kernel).iter().filter(|(_, a)| *a == asks).count(), 1);
            }
        }
    }

    #[test]
    fn a_few_cells_are_played_with_each_kernel() {
        for asks in Asks::BOTH {
            for backend in Backend::OF_HOST {
                for name in FEW {
                    assert_eq!(kernels(backend, asks, name), KERNELS);
                }
            }
        }
    }
}
