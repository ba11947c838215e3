//! The usual causes of findings, as text.

use rxe_lab::explain::{Explained, Lang};

use super::super::explain::paragraph;

/// Formats the causes of a kind of finding as one line.
pub(super) fn line(of: &Explained, lang: Lang) -> String {
    match lang {
        Lang::En => format!("Usual causes: {} ({})", of.causes.join(" "), of.more),
        Lang::Zh => format!("常见原因：{}（{}）", of.causes.join(""), of.more),
    }
}

/// Appends the causes of a kind of finding to a page as a paragraph.
pub(super) fn write(of: &Explained, page: &mut String, lang: Lang) {
    let head = match lang {
        Lang::En => format!("{}: usual causes ({})", of.kind, of.more),
        Lang::Zh => format!("{}：常见原因（{}）", of.kind, of.more),
    };
    paragraph(page, "  ", "    ", &head);
    for cause in &of.causes {
        paragraph(page, "    - ", "      ", cause);
    }
}
