//! Links of Markdown pages, whose targets depend on the place of the page.

/// Returns a page with the target of each link replaced by the result of `to`. If there is none,
/// only the text of the link remains. Code is unchanged.
pub fn relinked(text: &str, to: impl Fn(&str) -> Option<String>) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        out += &if fenced || fence { line.to_owned() } else { relinked_line(line, &to) };
        out.push('\n');
    }
    out
}

fn relinked_line(line: &str, to: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(middle) = rest.find("](") {
        let (before, after) = rest.split_at(middle);
        let Some(end) = after.find(')') else { break };
        let target = &after[2..end];
        out += before;
        let code = out.matches('`').count() % 2 == 1;
        match if code { Some(target.to_owned()) } else { to(target) } {
            Some(target) => out += &format!("]({target})"),
            None => {
                if let Some(open) = out.rfind('[') {
                    out.remove(open);
                }
            }
        }
        rest = &after[end + 1..];
    }
    out + rest
}

/// Returns the targets of a page's links, outside code.
pub fn targets(text: &str) -> Vec<String> {
    let found = std::cell::RefCell::new(Vec::new());
    relinked(text, |target| {
        found.borrow_mut().push(target.to_owned());
        None
    });
    found.into_inner()
}

/// Returns the path from the root of the file that a link points to. Returns `None` for a link to
/// another site or within the page. `page` is the path of the page.
pub fn leads_to(page: &str, target: &str) -> Option<String> {
    let path = target.split('#').next().unwrap_or_default();
    if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
        return None;
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns the scenario of `pcaps/scenarios` that a line `<!-- laboratory: NAME -->` marks. The book
/// has a link there that opens the scenario in the page for browsers.
pub fn scenario(line: &str) -> Option<&str> {
    line.strip_prefix("<!-- laboratory: ")?.strip_suffix(" -->")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_stays_of_a_link_that_leads_nowhere() {
        let page = "See [the source](../a.rs), [here](b.md#c) and `[a](b)`.\n```sh\n[x](y)\n```\n";
        let to = |target: &str| target.ends_with("#c").then(|| "d.md#c".to_owned());
        let new = "See the source, [here](d.md#c) and `[a](b)`.\n```sh\n[x](y)\n```\n";
        assert_eq!(relinked(page, to), new);
        assert_eq!(targets(page), ["../a.rs", "b.md#c"]);
    }

    #[test]
    fn a_link_is_followed_from_its_page() {
        let from = |target| leads_to("docs/en/a.md", target);
        assert_eq!(from("../b.md#c").unwrap(), "docs/b.md");
        assert_eq!(from("../../README.md").unwrap(), "README.md");
        assert_eq!(from("../../../other").unwrap(), "../other");
        assert_eq!(from("./c/").unwrap(), "docs/en/c");
        assert_eq!((from("#c"), from("https://example.com/")), (None, None));
    }
}
