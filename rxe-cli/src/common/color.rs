//! Colors in output for people. JSON, captures and packet lines have none.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// When output is colored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// In a terminal, unless the variable NO_COLOR is set.
    #[default]
    Auto,
    Always,
    Never,
}

impl From<When> for ColorChoice {
    fn from(when: When) -> Self {
        match when {
            When::Auto => Self::Auto,
            When::Always => Self::Always,
            When::Never => Self::Never,
        }
    }
}

/// The meaning of a colored text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Notice,
    Bad,
}

static OUTPUT: AtomicBool = AtomicBool::new(false);
static ERRORS: AtomicBool = AtomicBool::new(false);

/// Decides for this process whether standard output and standard error have colors. The default is
/// no colors.
pub(crate) fn choose(when: When) {
    // clap reads the global choice when it prints help.
    ColorChoice::from(when).write_global();
    let colored = |choice| choice != ColorChoice::Never;
    OUTPUT.store(colored(AutoStream::choice(&io::stdout())), Ordering::Relaxed);
    ERRORS.store(colored(AutoStream::choice(&io::stderr())), Ordering::Relaxed);
}

/// Returns a text for standard output, colored if standard output has colors.
pub(crate) fn paint(tone: Tone, text: &str) -> String {
    styled(OUTPUT.load(Ordering::Relaxed), tone, text)
}

/// Returns a text for standard error, in red if standard error has colors.
pub(crate) fn paint_error(text: &str) -> String {
    styled(ERRORS.load(Ordering::Relaxed), Tone::Bad, text)
}

fn styled(colored: bool, tone: Tone, text: &str) -> String {
    let color = match tone {
        Tone::Good => AnsiColor::Green,
        Tone::Notice => AnsiColor::Yellow,
        Tone::Bad => AnsiColor::Red,
    };
    let style =
        if colored { Style::new().bold().fg_color(Some(color.into())) } else { Style::new() };
    format!("{style}{text}{style:#}")
}
