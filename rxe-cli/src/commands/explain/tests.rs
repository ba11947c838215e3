use std::collections::HashSet;

use rxe_core::VerbsError;
use rxe_core::qp::{AttrMask, QpState, QpType, check_modify};
use rxe_core::queue::Status;
use rxe_core::types::{AckTimeout, RnrTimer};
use rxe_core::wire::NakCode;
use rxe_verbs::AsyncKind;
use rxe_words::Entry;

use super::*;
use rxe_lab::explain::of_finding;

const LANGS: [Lang; 2] = [Lang::En, Lang::Zh];

#[track_caller]
fn title(topic: &str) -> String {
    find(topic, Lang::En).unwrap_or_else(|| panic!("{topic} is not found")).title
}

#[test]
fn topics_are_found_by_name_by_number_and_by_what_a_message_contains() {
    let retry = "Completion status 12, transport retry counter exceeded";
    for topic in [
        "RETRY_EXC",
        "retry_exc_err",
        "IBV_WC_RETRY_EXC_ERR",
        "12",
        "wc 12",
        "status=12",
        "transport retry counter exceeded",
        " Failed status 12: wr_id 0 syndrom 0x81",
        "Failed status transport retry counter exceeded (12) for wr_id 2",
        " Failed status-transport retry counter exceeded (12): wr_id 0 syndrom 0x81",
        "got bad completion with status: 0xc, vendor syndrome: 0x81",
        " Bad wc status -- 12 -- 0",
        "cq completion failed status 12",
        "Work completion error 12",
    ] {
        assert_eq!(title(topic), retry, "{topic}");
    }
    for (topic, id) in [
        ("Failed to modify QP to RTR", "modify-to-rtr"),
        ("Failed to modify QP 0x1a to RTR: Invalid argument", "modify-to-rtr"),
        ("Failed to change qp to rtr", "modify-to-rtr"),
        (" Unable to Connect the HCA's through the link", "modify-to-rtr"),
        ("Failed to modify QP to RTS", "modify-to-rts"),
        ("Failed to modify QP to INIT", "INIT"),
        ("Couldn't get device", "no-devices"),
        ("Couldn't listen to port 18515", "listen"),
        ("No IB devices found", "no-devices"),
        ("IB device mlx5_0 not found", "no-devices"),
        ("Couldn't connect to 10.0.0.1:18515", "connect"),
        (" Unable to open device", "open-device"),
        ("Couldn't read remote address", "remote-address"),
        ("Failed to register MR", "register-mr"),
        ("Received 10 times ADDR_ERROR", "addr-error"),
        ("RDMA_CM_EVENT_REJECTED, error 8", "rejected"),
        ("path mtu", "path-mtu"),
        ("GID index", "gid-index"),
        ("Q_Key", "qkey"),
        ("nak 2", "nak-2"),
        ("0x62", "nak-2"),
        ("errno 22", "EINVAL"),
        ("errno -22", "EINVAL"),
        ("ibv_create_qp: Cannot allocate memory", "ENOMEM"),
        ("IBV_EVENT_GID_CHANGE", "GID_CHANGE"),
        // Messages of perftest, of rdma-core's examples, and of the programming manual's example.
        ("parse WC failed 1", "failed-status"),
        (" Completion with error at client", "failed-status"),
        ("poll CQ failed -1", "poll-cq"),
        ("completion wasn't found in the CQ after timeout", "no-completion"),
        ("failed to post SR", "post-send"),
        ("failed to post RR", "post-send"),
        ("Couldn't post recv Qp=17 rcnt=0", "post-send"),
        ("IB device mlx5_0 wasn't found", "no-devices"),
        (" Port number 1 state is Down", "port-state"),
        (" Unable to query port 2 attributes", "query-port"),
        ("can't read sgid of index 3", "query-gid"),
        ("Could not get local gid for gid index 3", "query-gid"),
        ("could not get gid for port 1, index 3", "query-gid"),
        (" Found Incompatibility issue with GID types.", "gid-types"),
        ("Couldn't allocate MR", "register-mr"),
        ("rdma_buf reg_mr failed", "register-mr"),
        ("Unable to create QP.", "create-qp"),
        ("setup_qp failed: 22", "create-qp"),
        ("Couldn't create CQ", "create-cq"),
        ("Couldn't create IB resources", "earlier-line"),
        (" Failed to negotiate parameters", "options-differ"),
        (" Unable to read to socket/rdma_cm", "remote-address"),
        ("failed to modify QP state to RTS", "modify-to-rts"),
        ("Couldn't connect to remote QP", "modify-to-rtr"),
        (
            "libibverbs: Warning: couldn't load driver 'libmlx5-rdmav34.so': libmlx5-rdmav34.so: \
             cannot open shared object file: No such file or directory",
            "load-driver",
        ),
        ("cma event RDMA_CM_EVENT_REJECTED, error 8", "rejected"),
        ("rdma_resolve_addr: No such device", "addr-error"),
        ("rdma_create_event_channel: No such device", "open-cm"),
        ("rdma_bind_addr: Cannot assign requested address", "bind-address"),
        ("rdma_connect: Invalid argument", "cm-connect"),
        ("wait for CONNECTED state 10", "rping-state"),
        ("server DISCONNECT EVENT...", "rping-state"),
    ] {
        let found = find(topic, Lang::En).unwrap_or_else(|| panic!("{topic} is not found"));
        assert_eq!(found.id, id, "{topic}");
    }
    let both = find("Couldn't register MR: Cannot allocate memory", Lang::En).unwrap();
    assert_eq!((both.id.as_str(), both.see_also), ("register-mr", vec!["ENOMEM".into()]));
    let status = find("Failed status 12: wr_id 0 syndrom 0x81", Lang::En).unwrap();
    assert_eq!(status.see_also, ["failed-status"]);
    let also = find("12", Lang::En).unwrap().see_also;
    assert_eq!(also, ["syndrome 12", "rnr 12", "timeout 12", "errno 12"]);
}

#[test]
fn codes_have_the_engine_s_times() {
    assert_eq!(title("rnr 0"), "RNR timer code 0 (0x00): 655.36 ms");
    assert_eq!(title("rnr 0x0c"), "RNR timer code 12 (0x0c): 640 µs");
    assert_eq!(title("timeout 14"), "Local ACK timeout code 14: 67.109 ms");
    assert_eq!(title("timeout 0"), "Local ACK timeout code 0: forever");
    assert_eq!(title("syndrome 0x2c"), "Syndrome 0x2c: RNR NAK, try again after 640 µs");
    assert_eq!(title("0x1f"), "Syndrome 0x1f: ACK, without end-to-end flow control");
    for code in 0..32 {
        assert!(RnrTimer::new(code).is_some() && AckTimeout::new(code).is_some());
        for lang in LANGS {
            for kind in ["rnr", "timeout"] {
                let found = find(&format!("{kind} {code}"), lang).unwrap();
                assert!(!found.what.is_empty() && !found.remedies.is_empty());
            }
        }
    }
    for byte in 0..=255_u8 {
        assert!(find(&format!("syndrome {byte:#x}"), Lang::Zh).is_some(), "{byte:#x}");
    }
    for wrong in ["rnr 32", "timeout 32", "nak 5", "syndrome 256", "wc 24"] {
        assert!(find(wrong, Lang::En).is_none_or(|found| !found.id.contains(' ')), "{wrong}");
    }
}

/// The printed attributes of a transition are those that ibv_modify_qp requires.
#[test]
fn transitions_are_those_that_modify_accepts() {
    let services = [
        ("RC", QpType::Rc),
        ("UC", QpType::Uc),
        ("UD", QpType::Ud),
        ("XRC_SEND", QpType::XrcSend),
        ("XRC_RECV", QpType::XrcRecv),
    ];
    let mask = |names: &[String]| {
        let bits = names
            .iter()
            .map(|name| AttrMask::from_name(name.strip_prefix("IBV_QP_").unwrap()).unwrap());
        bits.fold(AttrMask::empty(), |all, bit| all | bit)
    };
    let mut seen = 0;
    for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let steps = find(to.name(), Lang::En).unwrap().transitions;
        for from in QpState::ALL {
            for (name, service) in services {
                let printed = steps
                    .iter()
                    .find(|step| step.from == from.name() && step.services.contains(&name));
                let bare = check_modify(service, from, to, AttrMask::STATE);
                let Some(step) = printed else {
                    assert!(matches!(bare, Err(VerbsError::InvalidTransition { .. })));
                    continue;
                };
                let missing = match bare {
                    Ok(()) => AttrMask::empty(),
                    Err(VerbsError::MissingAttributes { missing, .. }) => missing,
                    Err(other) => panic!("{from:?} to {to:?}: {other}"),
                };
                assert_eq!(mask(&step.required), missing, "{name}: {from:?} to {to:?}");
                let all = AttrMask::STATE | missing | mask(&step.optional);
                assert_eq!(check_modify(service, from, to, all), Ok(()));
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 8 + 9 + 9 + 8 + 8);
}

#[test]
fn pages_fit_80_columns_in_both_languages() {
    for lang in LANGS {
        let pages = list(lang).into_iter().map(|topic| {
            let found = find(topic.id, lang).unwrap();
            assert_eq!(found.id, topic.id);
            text::explanation(&found, lang)
        });
        for page in pages.chain([text::list(lang)]) {
            for line in page.lines() {
                let width = textwrap::core::display_width(line);
                assert!(width <= 80, "{width} columns: {line}");
            }
        }
    }
}

#[test]
fn an_unknown_topic_suggests_the_nearest() {
    assert!(find("rety_exc", Lang::En).is_none());
    assert_eq!(nearest("rety_exc").first(), Some(&"RETRY_EXC_ERR"));
    assert_eq!(nearest("qkye").first(), Some(&"qkey"));
    assert!(nearest("zzzzzz").is_empty());
    let said = unknown("rety_exc").to_string();
    assert!(
        said.starts_with("there is no topic \"rety_exc\": did you mean RETRY_EXC_ERR"),
        "{said}"
    );
}

/// Words from tutorials are topics.
#[test]
fn a_learner_s_words_are_topics() {
    for (topic, id) in [
        ("SEND", "send"),
        ("receive", "recv"),
        ("RDMA write", "write"),
        ("RDMA READ", "read"),
        ("fetch and add", "atomic"),
        ("IBV_SEND_SIGNALED", "signaled"),
        ("max_inline_data", "inline"),
        ("solicited", "solicited"),
        ("fence", "fence"),
        ("completion channel", "notify"),
        ("go-back-N", "retransmission"),
        ("multicast", "multicast"),
        ("BTH", "bth"),
        ("reth", "bth"),
        ("P_Key", "pkey"),
        ("LID", "lid"),
        ("DSCP", "traffic-class"),
        ("PFC", "pfc"),
        ("gso", "gso"),
        ("dreq", "mad"),
        ("Soft-RoCE", "soft-roce"),
        ("InfiniBand", "nic"),
        ("ODP", "odp"),
        ("vendor_err", "wc"),
        ("work request flushed", "WR_FLUSH_ERR"),
        ("retry count exceeded", "RETRY_EXC_ERR"),
        ("RNR retry count exceeded", "RNR_RETRY_EXC_ERR"),
        ("Address already in use", "EADDRINUSE"),
        ("errno 98", "EADDRINUSE"),
    ] {
        let found = find(topic, Lang::En).unwrap_or_else(|| panic!("{topic} is not found"));
        assert_eq!(found.id, id, "{topic}");
    }
}

/// For a message, suggestions come from telling words, not from similar letters.
#[test]
fn a_message_that_is_not_known_suggests_what_its_words_name() {
    for (message, suggested) in [
        ("Couldn't destroy QP", &["qp"][..]),
        ("ibv_resize_cq of my CQ failed", &["cq"]),
        ("the GID of the peer is gone", &["gid"]),
        ("What is the best path MTU?", &["path-mtu"]),
        ("hello to the wide world", &[]),
        ("Couldn't do anything at all", &[]),
    ] {
        assert!(find(message, Lang::En).is_none(), "{message}");
        let nearest = nearest(message);
        assert_eq!(nearest.first(), suggested.first(), "{message}: {nearest:?}");
    }
}

#[test]
fn the_locale_chooses_the_language() {
    assert_eq!(of_locale(None), Lang::En);
    assert_eq!(of_locale(Some("C")), Lang::En);
    assert_eq!(of_locale(Some("zh_CN.UTF-8")), Lang::Zh);
    assert_eq!(of_locale(Some("zh_TW")), Lang::Zh);
}

#[test]
fn each_finding_of_check_is_explained() {
    for kind in rxe_lab::check::Kind::ALL {
        let name = kind.name();
        assert!(find(name, Lang::En).is_some(), "{name}");
        let entry = of_finding(name).unwrap();
        assert!(!entry.causes.is_empty(), "{name}: no cause");
    }
}

/// Each value that the engine reports has an entry of its own. The catalogue and
/// [`Status::meaning`] explain a status alike.
#[test]
fn everything_that_the_engine_reports_has_its_own_entry() {
    let mut seen = HashSet::new();
    let mut own = |entry: &'static Entry, begin: &str| {
        assert!(entry.title.en.starts_with(begin), "{begin}: {}", entry.title.en);
        assert!(seen.insert(&entry.id), "{begin}");
        entry
    };
    for status in Status::ALL {
        let code = status.code();
        let begin = format!("Completion status {code}, {status}");
        let entry = own(rxe_words::of_status(code.into()).unwrap(), &begin);
        let what = entry.what.en.trim_end_matches('.').to_lowercase();
        assert!(status.meaning().to_lowercase().starts_with(&what), "{status}");
    }
    for code in NakCode::ALL {
        let number = code as u8;
        own(rxe_words::of_nak(number.into()).unwrap(), &format!("NAK code {number}, "));
    }
    for state in QpState::ALL {
        own(rxe_words::by_id(state.name()).unwrap(), "");
    }
    for kind in AsyncKind::ALL {
        let named = rxe_words::entries().find(|entry| entry.is_named(kind.name()));
        own(named.unwrap(), &format!("Event {}", kind.name()));
    }
    assert_eq!(seen.len(), 12 + 5 + 7 + 12);
}

#[test]
fn a_status_as_a_sentence_says_what_it_is_and_what_to_do() {
    assert_eq!(Status::Success.meaning(), "the request was carried out");
    assert_eq!(
        Status::RetryExceeded.meaning(),
        "the peer did not answer: is it alive, its QP in RTR or RTS with our QPN, addresses and path \
         MTU, and UDP port 4791 not blocked by a firewall?"
    );
}

/// The lists `ALL` are written by hand. Each value that has a number must be in its list.
#[test]
fn the_lists_are_complete() {
    let codes: Vec<_> = (0..32).filter_map(NakCode::from_code).collect();
    assert_eq!(codes, NakCode::ALL);
    let states: Vec<_> = (0..32).filter_map(QpState::from_verbs).collect();
    assert_eq!(states, QpState::ALL);
    // A new value makes this match incomplete. Add the value to `ALL` as well.
    let _ = |status: Status| match status {
        Status::Success
        | Status::LocalLength
        | Status::LocalQpOperation
        | Status::LocalProtection
        | Status::WorkRequestFlushed
        | Status::MemoryWindowBind
        | Status::BadResponse
        | Status::RemoteInvalidRequest
        | Status::RemoteAccess
        | Status::RemoteOperation
        | Status::RetryExceeded
        | Status::RnrRetryExceeded => {}
    };
}
