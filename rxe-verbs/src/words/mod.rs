//! The catalogue of words for users, in English and Chinese: what a value of the protocol or a
//! message of a program means, its usual causes, and what to do. `rxe explain` prints it, and the
//! explanations of errors quote it.

mod concepts;
mod errno;
mod events;
mod findings;
mod messages;
mod naks;
mod objects;
mod operations;
mod states;
mod status;

use rxe_core::queue::Status;
use rxe_core::types::QpState;
use rxe_core::wire::NakCode;

use crate::event::AsyncKind;

/// The same words in each language.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// English.
    pub en: &'static str,
    /// Chinese, in simplified characters.
    pub zh: &'static str,
}

/// What there is to say of one thing.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// A name for the command line and for other programs. No two entries have the same.
    pub id: &'static str,
    /// Other names, such as constants of verbs.
    pub names: &'static [&'static str],
    /// Parts of messages, in lower case, that this entry explains. `*` stands for any text.
    pub phrases: &'static [&'static str],
    /// The heading.
    pub title: Text,
    /// What it is, in one sentence or a few.
    pub what: Text,
    /// Why it usually happens; empty if that is no question.
    pub causes: &'static [Text],
    /// What to do, or how to use it.
    pub remedies: &'static [Text],
}

/// A kind of entries.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Section {
    /// The heading.
    pub title: Text,
    /// Its entries.
    pub entries: &'static [Entry],
}

/// The whole catalogue.
pub static SECTIONS: [Section; 11] = [
    Section { title: t("Concepts", "概念"), entries: concepts::ENTRIES },
    Section { title: t("Objects and packets", "对象与报文"), entries: objects::ENTRIES },
    Section { title: t("Operations", "操作"), entries: operations::ENTRIES },
    Section { title: t("Queue pair states", "队列对状态"), entries: states::ENTRIES },
    Section { title: t("Completion statuses", "完成状态"), entries: status::ENTRIES },
    Section { title: t("NAK codes", "NAK 代码"), entries: naks::ENTRIES },
    Section { title: t("Asynchronous events", "异步事件"), entries: events::ENTRIES },
    Section {
        title: t(
            "Findings of rxe check: what is lost, late or repeated",
            "rxe check 的发现：丢失、迟到与重复",
        ),
        entries: findings::delivery::ENTRIES,
    },
    Section {
        title: t("Findings of rxe check: what breaks a rule", "rxe check 的发现：违反规则"),
        entries: findings::rules::ENTRIES,
    },
    Section {
        title: t("Errors of verbs calls", "verbs 调用的错误码"), entries: errno::ENTRIES
    },
    Section {
        title: t("Messages of programs", "程序的报错信息"), entries: messages::ENTRIES
    },
];

/// The entry with this `id`.
pub fn by_id(id: &str) -> Option<&'static Entry> {
    SECTIONS.iter().flat_map(|section| section.entries).find(|entry| entry.id == id)
}

/// The entry of a completion status.
pub fn of_status(status: Status) -> &'static Entry {
    status::of(status)
}

/// The entry of a number of `ibv_wc_status`, also of those that this engine never reports.
pub fn of_status_code(code: u32) -> Option<&'static Entry> {
    status::of_code(code)
}

/// The entry of a NAK code.
pub fn of_nak(code: NakCode) -> &'static Entry {
    naks::of(code)
}

/// The entry of a queue pair state.
pub fn of_state(state: QpState) -> &'static Entry {
    states::of(state)
}

/// The entry of an asynchronous event.
pub fn of_event(kind: AsyncKind) -> &'static Entry {
    events::of(kind)
}

/// The entry of an error number of Linux.
pub fn of_errno(errno: u32) -> Option<&'static Entry> {
    errno::of(errno)
}

/// The entry of a finding of `rxe check`, by its name in the output.
pub fn of_finding(name: &str) -> Option<&'static Entry> {
    findings::of(name)
}

/// What it usually means that a request ended like this, and what to do: part of a sentence, in
/// English.
pub fn status(status: Status) -> String {
    status::sentence(status)
}

/// An entry that only says what something is, and what to do with it.
const fn entry(
    id: &'static str,
    names: &'static [&'static str],
    title: Text,
    what: Text,
    remedies: &'static [Text],
) -> Entry {
    Entry { id, names, phrases: &[], title, what, causes: &[], remedies }
}

const fn t(en: &'static str, zh: &'static str) -> Text {
    Text { en, zh }
}

#[cfg(test)]
mod tests;
