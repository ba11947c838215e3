//! The floors that are kept.

use super::Layers;

/// All floors. A crate or a module is added with its floors; [`super::check`] says what is missing.
pub const LAYERS: &[Layers] = &[
    Layers {
        name: "rxe-core",
        within: "",
        floors: &[
            &["engine"],
            &["cm", "qp"],
            &["rc", "uc", "ud"],
            &["message"],
            &["service"],
            &["queue"],
            &["mem"],
            &["config", "error", "event"],
            &["wire"],
            &["bounds", "prefetch", "sync", "types"],
        ],
    },
    Layers {
        name: "rxe-net",
        within: "",
        floors: &[
            &["open"],
            &["fault", "packet", "untrusted"],
            &["fabric", "pcap", "shm", "trace", "udp"],
            &["backend"],
            &["sharing"],
            &["lease", "membership"],
            &["interface", "udp_socket"],
            &["loss", "netlink", "port_owner", "sys"],
            &["blocking", "counters", "error", "rng"],
        ],
    },
    Layers {
        name: "rxe-net",
        within: "lease",
        floors: &[
            &["port_groups", "untrusted"],
            &["forward"],
            &["group", "message"],
            &["control", "sweep"],
            &["blocks", "deadline", "directory", "mad", "tx_queue"],
        ],
    },
    Layers {
        name: "rxe-net",
        within: "sys",
        floors: &[
            &["epoll", "timer_fd"],
            &["netdev", "shared_fd", "unix"],
            &["event_fd", "fork", "mmsg", "program_epoll", "sockopt"],
            &["addr", "checked_fd", "cmsg", "exit", "secure", "thread"],
        ],
    },
    Layers {
        name: "rxe-verbs",
        within: "",
        floors: &[
            &["cm"],
            &["qp"],
            &["srq"],
            &["ah", "channel", "mr", "mw", "xrc"],
            &["cq", "pd"],
            &["device"],
            &["progress"],
            &["event", "os"],
            &["error"],
            &["device_error", "words"],
        ],
    },
    Layers {
        name: "rxe-verbs",
        within: "device",
        floors: &[
            &["options"],
            &["open", "tentative"],
            &["list", "port_monitor"],
            &["attr", "links", "qpn_allocator", "quota"],
        ],
    },
    Layers {
        name: "rxe-verbs",
        within: "progress",
        floors: &[&["driver", "sleep"], &["shard"], &["turn"], &["watch"], &["policy", "unsent"]],
    },
    Layers {
        name: "rxe-preload",
        within: "",
        floors: &[
            &["rdmacm"],
            &["ibverbs", "load"],
            &["files", "liveness"],
            &["ffi"],
            &["explain"],
            &["config", "fault_guard", "panics", "per_process"],
            &["exits", "fork", "next", "stderr"],
        ],
    },
    Layers {
        name: "rxe-preload",
        within: "ibverbs",
        floors: &[
            &["open"],
            &["qp"],
            &["ah", "builder"],
            &["buf", "cq", "post", "qp_attr"],
            &["asynchronous", "channel", "cq_ex", "mr", "mw", "pd", "query", "srq", "xrcd"],
            &["objects"],
            &["absent", "completion", "device"],
            &["abi", "lid", "pages", "text", "wall_clock"],
        ],
    },
    Layers {
        name: "rxe-preload",
        within: "ibverbs::objects",
        floors: &[
            &["channel"],
            &["cq", "qp", "srq"],
            &["ah", "context", "mr", "mw", "pd"],
            &["handle", "unacknowledged", "xrcd"],
        ],
    },
    Layers {
        name: "rxe-preload",
        within: "rdmacm",
        floors: &[
            &["connect", "ep"],
            &["addrinfo", "get_event", "multicast", "options", "qp"],
            &["id"],
            &["channel"],
            &["devices", "event", "getaddrinfo"],
            &["abi", "verbs"],
        ],
    },
    Layers {
        name: "rxe-preload",
        within: "explain",
        floors: &[&["watch"], &["connect", "text"], &["once", "regions"]],
    },
    Layers { name: "rxe-cli", within: "", floors: &[&["commands"], &["common"]] },
    Layers {
        name: "rxe-cli",
        within: "commands::perf",
        floors: &[
            &["lossy"],
            &["bw", "lat", "report"],
            &["side"],
            &["progress", "talk"],
            &["plan", "stats"],
        ],
    },
    Layers {
        name: "rxe-cli",
        within: "commands::pingpong",
        floors: &[&["run", "xrc"], &["exchange", "wait"], &["lifeline", "stamps", "transport"]],
    },
    Layers {
        name: "xtask",
        within: "",
        floors: &[
            &["interop", "programs", "scenario"],
            &["c", "libs", "peer", "skip"],
            &["vm"],
            &["cmd", "layers", "say"],
        ],
    },
    Layers {
        name: "xtask",
        within: "interop",
        floors: &[
            &["report"],
            &["features"],
            &["datagram", "placed", "shared", "unreliable", "windows"],
            &["faults", "feature", "pingpong"],
            &["exchange", "world"],
            &["end"],
        ],
    },
    Layers {
        name: "xtask",
        within: "vm",
        floors: &[&["qemu"], &["initrd"], &["channel", "kernel"], &["apt", "frame", "net"]],
    },
    Layers {
        name: "xtask",
        within: "programs",
        floors: &[&["cm", "fabric", "plain", "ucx"], &["world"]],
    },
    Layers {
        name: "xtask",
        within: "cmd",
        floors: &[
            &["test"],
            &["bench", "fresh", "pcaps", "programs", "quick", "sanitize"],
            &["checkout", "deps", "interop", "kernel", "layers", "libs", "stages"],
        ],
    },
];

/// Modules, by crate and path, whose children still use each other in a circle.
pub const KNOWN_CIRCLES: &[(&str, &str)] = &[("rxe-verbs", "cm")];
