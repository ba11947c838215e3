//! Explanations with values that the engine computes.
//! These are times of timer codes, meanings of syndromes, and the attributes for each transition of
//! a queue pair.

use std::time::Duration;

use rxe_core::qp::{AttrMask, QpState, QpType, transitions};
use rxe_core::types::{AckTimeout, RnrTimer};
use rxe_core::wire::Syndrome;
use rxe_words::{self as words, Entry, Text};

use super::{Explanation, Lang, Step};

/// Returns the catalogue's explanation of an entry.
pub(super) fn of_entry(entry: &Entry, lang: Lang) -> Explanation {
    let all = |texts: &[Text]| texts.iter().map(|text| lang.of(text).to_owned()).collect();
    let to = match entry.id.as_str() {
        "modify-to-rtr" => Some(QpState::Rtr),
        "modify-to-rts" => Some(QpState::Rts),
        id => QpState::ALL.into_iter().find(|state| state.name() == id),
    };
    Explanation {
        id: entry.id.clone(),
        title: lang.of(&entry.title).into(),
        what: lang.of(&entry.what).into(),
        causes: all(&entry.causes),
        remedies: all(&entry.remedies),
        transitions: to.map_or(Vec::new(), steps_to),
        see_also: Vec::new(),
    }
}

/// Returns all transitions to a state. Services with equal transitions share a step.
fn steps_to(to: QpState) -> Vec<Step> {
    const SERVICES: [(QpType, &str); 5] = [
        (QpType::Rc, "RC"),
        (QpType::Uc, "UC"),
        (QpType::Ud, "UD"),
        (QpType::XrcSend, "XRC_SEND"),
        (QpType::XrcRecv, "XRC_RECV"),
    ];
    let mut steps: Vec<(QpState, AttrMask, AttrMask, Vec<&str>)> = Vec::new();
    for (service, name) in SERVICES {
        for step in transitions(service).iter().filter(|step| step.to == to) {
            let same = steps.iter_mut().find(|(from, required, optional, _)| {
                (*from, *required, *optional) == (step.from, step.required, step.optional)
            });
            match same {
                Some((.., services)) => services.push(name),
                None => steps.push((step.from, step.required, step.optional, vec![name])),
            }
        }
    }
    steps.sort_by_key(|(from, ..)| *from);
    let names = |mask: AttrMask| mask.iter().map(AttrMask::verbs_names).collect();
    let step = |(from, required, optional, services): (QpState, _, _, _)| Step {
        from: from.name(),
        to: to.name(),
        services,
        required: names(required),
        optional: names(optional),
    };
    steps.into_iter().map(step).collect()
}

pub(super) fn of_rnr_timer(timer: RnrTimer, lang: Lang) -> Explanation {
    let (code, wait) = (timer.code(), time(timer.duration()));
    let title = match lang {
        Lang::En => format!("RNR timer code {code} ({code:#04x}): {wait}"),
        Lang::Zh => format!("RNR 定时器代码 {code}（{code:#04x}）：{wait}"),
    };
    with_title("rnr", format!("rnr-{code}"), title, lang)
}

pub(super) fn of_timeout(timeout: AckTimeout, lang: Lang) -> Explanation {
    let code = timeout.code();
    let title = match (lang, timeout.duration().map(time)) {
        (Lang::En, Some(wait)) => format!("Local ACK timeout code {code}: {wait}"),
        (Lang::Zh, Some(wait)) => format!("本地 ACK 超时代码 {code}：{wait}"),
        (Lang::En, None) => format!("Local ACK timeout code {code}: forever"),
        (Lang::Zh, None) => format!("本地 ACK 超时代码 {code}：无限等待"),
    };
    with_title("timeout", format!("timeout-{code}"), title, lang)
}

pub(super) fn of_syndrome(syndrome: Syndrome, lang: Lang) -> Explanation {
    let byte = syndrome.to_byte();
    let what = match (syndrome, lang) {
        (Syndrome::Nak(code), _) => {
            return words::of_nak(code as u32)
                .map(|entry| of_entry(entry, lang))
                .unwrap_or_default();
        }
        (Syndrome::RnrNak { timer }, _) => {
            let wait = time(timer.duration());
            let title = match lang {
                Lang::En => format!("Syndrome {byte:#04x}: RNR NAK, try again after {wait}"),
                Lang::Zh => format!("syndrome {byte:#04x}：RNR NAK，{wait} 之后重试"),
            };
            return with_title("rnr", format!("syndrome-{byte:#04x}"), title, lang);
        }
        (Syndrome::Ack { credits: Syndrome::NO_CREDITS }, Lang::En) => {
            "ACK, without end-to-end flow control".into()
        }
        (Syndrome::Ack { credits: Syndrome::NO_CREDITS }, Lang::Zh) => {
            "ACK，不使用端到端流控".into()
        }
        (Syndrome::Ack { credits }, Lang::En) => format!("ACK, credit code {credits}"),
        (Syndrome::Ack { credits }, Lang::Zh) => format!("ACK，信用值代码 {credits}"),
        (Syndrome::Reserved(_), Lang::En) => "reserved by the specification".into(),
        (Syndrome::Reserved(_), Lang::Zh) => "规范保留的值".into(),
    };
    let title = match lang {
        Lang::En => format!("Syndrome {byte:#04x}: {what}"),
        Lang::Zh => format!("syndrome {byte:#04x}：{what}"),
    };
    with_title("syndrome", format!("syndrome-{byte:#04x}"), title, lang)
}

/// Returns the explanation of the entry `of`, with the title of a specific value.
fn with_title(of: &str, id: String, title: String, lang: Lang) -> Explanation {
    let general = words::by_id(of).map(|entry| of_entry(entry, lang)).unwrap_or_default();
    Explanation { id, title, ..general }
}

/// Formats a time in a suitable unit.
fn time(of: Duration) -> String {
    let seconds = of.as_secs_f64();
    let (value, unit) = if of < Duration::from_millis(1) {
        (seconds * 1e6, "µs")
    } else if of < Duration::from_secs(1) {
        (seconds * 1e3, "ms")
    } else {
        (seconds, "s")
    };
    let text = format!("{value:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}
