//! Explanations as text of at most 80 columns. A Chinese character takes two columns.

use std::fmt::Write;

use rxe_words::{entries, sections};
use textwrap::WordSeparator;

use crate::common::{self, lines};
use rxe_lab::explain::{Explanation, Lang, Step};

/// The labels of a page.
struct Labels {
    causes: &'static str,
    remedies: &'static str,
    transitions: &'static str,
    required: &'static str,
    optional: &'static str,
    nothing: &'static str,
    see_also: &'static str,
    codes: &'static str,
}

const fn labels(lang: Lang) -> Labels {
    match lang {
        Lang::En => Labels {
            causes: "Usual causes",
            remedies: "What to do",
            transitions: "Attributes of ibv_modify_qp, besides IBV_QP_STATE",
            required: "required: ",
            optional: "optional: ",
            nothing: "none",
            see_also: "See also",
            codes: "Codes, as in: rxe explain wc 12 | nak 2 | syndrome 0x62 | rnr 12 | timeout 14 | errno 22",
        },
        Lang::Zh => Labels {
            causes: "常见原因",
            remedies: "怎么办",
            transitions: "ibv_modify_qp 的属性（IBV_QP_STATE 之外）",
            required: "必需：",
            optional: "可选：",
            nothing: "无",
            see_also: "另见",
            codes: "代码的写法：rxe explain wc 12 | nak 2 | syndrome 0x62 | rnr 12 | timeout 14 | errno 22",
        },
    }
}

/// Formats the explanation of a topic.
pub(super) fn explanation(of: &Explanation, lang: Lang) -> String {
    let labels = labels(lang);
    let mut page = String::new();
    paragraph(&mut page, "", "", &of.title);
    page.push('\n');
    paragraph(&mut page, "  ", "  ", &of.what);
    for (label, items) in [(labels.causes, &of.causes), (labels.remedies, &of.remedies)] {
        if items.is_empty() {
            continue;
        }
        page += &format!("\n{label}\n");
        for item in items {
            paragraph(&mut page, "  - ", "    ", item);
        }
    }
    if !of.transitions.is_empty() {
        page += &format!("\n{}\n", labels.transitions);
        for step in &of.transitions {
            transition(&mut page, step, &labels);
        }
    }
    if !of.see_also.is_empty() {
        page += &format!("\n{}\n", labels.see_also);
        for topic in &of.see_also {
            // Writing to a string does not fail.
            let _ = writeln!(page, "  rxe explain {topic}");
        }
    }
    page
}

fn transition(page: &mut String, step: &Step, labels: &Labels) {
    let _ = writeln!(page, "  {} → {}, {}", step.from, step.to, step.services.join(", "));
    let required = match step.required.as_slice() {
        [] => labels.nothing.to_owned(),
        names => names.join(" | "),
    };
    let behind = " ".repeat(4 + textwrap::core::display_width(labels.required));
    paragraph(page, &format!("    {}", labels.required), &behind, &required);
    if !step.optional.is_empty() {
        let optional = step.optional.join(" | ");
        paragraph(page, &format!("    {}", labels.optional), &behind, &optional);
    }
}

/// Formats the list of all topics.
pub(super) fn list(lang: Lang) -> String {
    let ids = entries().map(|entry| entry.id.len());
    let column = ids.max().unwrap_or_default();
    let mut page = String::new();
    for section in sections() {
        page += &format!("{}\n", lang.of(&section.title));
        for entry in &section.entries {
            let first = format!("  {:<column$}  ", entry.id);
            let behind = " ".repeat(column + 4);
            paragraph(&mut page, &first, &behind, lang.of(&entry.title));
        }
        page.push('\n');
    }
    paragraph(&mut page, "", "  ", labels(lang).codes);
    page
}

/// Appends a paragraph. Chinese has no spaces, so lines also break where Unicode allows it.
pub(in crate::commands) fn paragraph(page: &mut String, first: &str, behind: &str, text: &str) {
    let lines = lines(first, behind).word_separator(WordSeparator::UnicodeBreakProperties);
    common::paragraph(page, text, lines.break_words(true));
}
