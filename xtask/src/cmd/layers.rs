//! `cargo xtask layers`: shows which module uses which, as `xtask/src/layers.rs` checks it.

use std::path::Path;
use std::process::ExitCode;

use rxe_harness::vm::{Error, Result};
use xtask::layers::{Graph, LAYERS, Page, check, mermaid, pages, text};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print a diagram for Markdown instead of text
    #[arg(long)]
    mermaid: bool,
    /// Write docs/en/project/layers.md, and the drawing in architecture.md of both languages
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut code = ExitCode::SUCCESS;
    for layers in LAYERS {
        let graph = Graph::read(top, layers).map_err(Error::Failed)?;
        print!("{}", if args.mermaid { mermaid(layers, &graph) } else { text(layers, &graph) });
        if let Err(wrong) = check(layers, &graph) {
            eprint!("{wrong}");
            code = ExitCode::FAILURE;
        }
    }
    if args.write {
        for Page { file, text } in pages(top).map_err(Error::Failed)? {
            std::fs::write(top.join(file), text)
                .map_err(|e| Error::Failed(format!("{file}: {e}")))?;
        }
    }
    Ok(code)
}
