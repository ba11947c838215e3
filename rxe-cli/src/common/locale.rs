//! The user's locale: the variables of POSIX.

use std::env;

use rxe_lab::ladder::Characters;

/// Returns the locale of a category such as `LC_CTYPE`; `None` if no variable sets it.
pub(crate) fn locale_of(category: &str) -> Option<String> {
    of_variables(category, |name| env::var(name).ok())
}

/// Returns the characters in which the user's locale can show a diagram, in a terminal or not.
pub(crate) fn characters() -> Characters {
    // Terminals of Windows show Unicode, and it does not set these variables.
    if cfg!(windows) { Characters::Unicode } else { of_locale(locale_of("LC_CTYPE").as_deref()) }
}

/// Returns the first of the variables that is set and not empty.
fn of_variables(category: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut set = ["LC_ALL", category, "LANG"].into_iter().filter_map(variable);
    set.find(|value| !value.is_empty())
}

/// Returns the characters of a locale such as `zh_CN.UTF-8`. Without a character set, or without a
/// locale, it is not UTF-8.
fn of_locale(locale: Option<&str>) -> Characters {
    let without_modifier = locale.and_then(|locale| locale.split('@').next());
    let set = without_modifier.and_then(|locale| locale.rsplit('.').next()).unwrap_or_default();
    match ["UTF-8", "UTF8"].iter().any(|utf8| set.eq_ignore_ascii_case(utf8)) {
        true => Characters::Unicode,
        false => Characters::Ascii,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_counts() {
        let of = |category: &str, set: &[(&str, &str)]| {
            of_variables(category, |name| {
                set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into())
            })
        };
        let set = [("LANG", "a"), ("LC_CTYPE", "b"), ("LC_ALL", "")];
        assert_eq!(of("LC_CTYPE", &set).as_deref(), Some("b"));
        assert_eq!(of("LC_MESSAGES", &set).as_deref(), Some("a"));
        assert_eq!(of("LC_CTYPE", &[("LC_ALL", "c"), set[1]]).as_deref(), Some("c"));
        assert_eq!(of("LC_CTYPE", &[]), None);
    }

    #[test]
    fn diagrams_are_in_unicode_if_the_locale_is_utf_8() {
        for locale in ["C.UTF-8", "en_US.utf8", "zh_CN.UTF-8@pinyin", "UTF-8"] {
            assert_eq!(of_locale(Some(locale)), Characters::Unicode, "{locale}");
        }
        for locale in [None, Some("C"), Some("POSIX"), Some("de_DE@euro"), Some("zh_CN.GB18030")] {
            assert_eq!(of_locale(locale), Characters::Ascii, "{locale:?}");
        }
    }
}
