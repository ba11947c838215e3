//! Conversions of enumerations to text, and of rates.

use std::ffi::{CStr, c_char, c_int, c_uint};

pub(super) extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const TEXTS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    pick(&TEXTS, status, c"unknown")
}

pub(super) extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    const TEXTS: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    pick(&TEXTS, kind.cast_unsigned(), c"unknown")
}

pub(super) extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    const TEXTS: [&CStr; 6] =
        [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    pick(&TEXTS, state, c"unknown")
}

pub(super) extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const TEXTS: [&CStr; 21] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
        c"Device link speed change",
    ];
    pick(&TEXTS, event, c"unknown")
}

fn pick(texts: &'static [&'static CStr], at: c_uint, other: &'static CStr) -> *const c_char {
    let text = usize::try_from(at).ok().and_then(|at| texts.get(at).copied());
    text.unwrap_or(other).as_ptr()
}

/// Each `ibv_rate`, as a multiple of 2.5 Gb/s (0 if it has none there), and in Mb/s.
const RATES: [(c_uint, c_int, c_int); 24] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
    (0, 0, 0),
];

pub(super) extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|(code, mult, _)| *code == rate && *mult > 0);
    found.map_or(-1, |(_, mult, _)| *mult)
}

pub(super) extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|(_, m, _)| *m == mult && mult > 0).map_or(0, |(code, _, _)| *code)
}

pub(super) extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    let found = RATES.iter().find(|(code, _, mbps)| *code == rate && *mbps > 0);
    found.map_or(-1, |(_, _, mbps)| *mbps)
}

pub(super) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|(_, _, m)| *m == mbps && mbps > 0).map_or(0, |(code, _, _)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_multiples_that_rdma_core_gives_them() {
        const NONE: [c_uint; 8] = [11, 12, 13, 14, 15, 16, 17, 18];
        for (rate, mult) in [(2, 1), (10, 48), (19, 11), (20, 20), (21, 160), (24, 480)] {
            assert_eq!((ibv_rate_to_mult(rate), mult_to_ibv_rate(mult)), (mult, rate));
        }
        assert!(NONE.iter().all(|rate| ibv_rate_to_mult(*rate) == -1));
        assert_eq!((mult_to_ibv_rate(0), mult_to_ibv_rate(-1), mult_to_ibv_rate(7)), (0, 0, 0));
    }

    #[test]
    fn states_of_a_port_have_the_names_of_rdma_core() {
        // SAFETY: one of the texts above.
        let text = |state| unsafe { CStr::from_ptr(ibv_port_state_str(state)) };
        let names = [c"down", c"init", c"armed", c"active", c"active defer", c"unknown"];
        assert!((1..).zip(names).all(|(state, name)| text(state) == name));
    }
}
