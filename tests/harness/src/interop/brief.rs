//! The cells that `cargo xtask test` runs within a few minutes: each combination of backend and
//! role completely with one kernel, and a few of its cells with the other kernel.

use super::{Backend, Requester};

/// Returns the combinations that are run completely with this kernel.
fn whole(kernel: &str) -> &'static [(Backend, Requester)] {
    match kernel {
        "6.1" => &[(Backend::Udp, Requester::Ours), (Backend::Packet, Requester::Kernel)],
        "7.2" => &[(Backend::Udp, Requester::Kernel), (Backend::Packet, Requester::Ours)],
        _ => &[],
    }
}

/// Returns the combinations of backend and requester that a short run limits to
/// [`SMOKE_CELLS`](super::SMOKE_CELLS). `kernel` is a version such as `6.1`.
pub fn brief(kernel: &str) -> Vec<(Backend, Requester)> {
    let backends =
        Backend::OF_HOST.into_iter().chain([Backend::Interface, Backend::Pnet, Backend::Guest]);
    let all = backends.flat_map(|backend| Requester::BOTH.map(|a| (backend, a)));
    all.filter(|combination| !whole(kernel).contains(combination)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::{KERNELS, Options, SMOKE_CELLS};

    fn short(kernel: &str) -> Options {
        Options {
            backends: Backend::OF_HOST.into(),
            brief: brief(kernel),
            requesters: Requester::BOTH.into(),
            filter: None,
            verbose: false,
            capture: None,
            peer: "rxe-peer".into(),
            rxe: "rxe".into(),
        }
    }

    /// Returns the kernels with which a short run includes this cell.
    fn kernels(backend: Backend, requester: Requester, name: &str) -> Vec<&'static str> {
        let mut kernels = Vec::from(KERNELS);
        kernels.retain(|kernel| short(kernel).chooses(backend, requester, name));
        kernels
    }

    #[test]
    fn each_combination_is_whole_with_one_kernel() {
        assert!(!SMOKE_CELLS.contains(&"SEND/0"));
        for requester in Requester::BOTH {
            for backend in [Backend::Udp, Backend::Packet] {
                assert_eq!(
                    kernels(backend, requester, "SEND/0").len(),
                    1,
                    "{backend:?} {requester:?}"
                );
            }
            assert!(kernels(Backend::Xdp, requester, "SEND/0").is_empty());
        }
    }

    #[test]
    fn each_kernel_plays_both_backends_and_both_roles_whole() {
        for kernel in KERNELS {
            for backend in [Backend::Udp, Backend::Packet] {
                assert_eq!(whole(kernel).iter().filter(|(b, _)| *b == backend).count(), 1);
            }
            for requester in Requester::BOTH {
                assert_eq!(whole(kernel).iter().filter(|(_, a)| *a == requester).count(), 1);
            }
        }
    }

    #[test]
    fn a_few_cells_are_played_with_each_kernel() {
        for requester in Requester::BOTH {
            for backend in Backend::OF_HOST {
                for name in SMOKE_CELLS {
                    assert_eq!(kernels(backend, requester, name), KERNELS);
                }
            }
        }
    }
}
