//! The results of earlier runs for backends that a run omits, read from the section of the page.

use super::{
    Backend, Outcome, Report, Requester, Row, SIZES, UC_SIZES, UD_SIZES, faults, size_name,
};

/// Adds the results in the section `old` for backends without cells in the report.
pub(super) fn complete(report: &mut Report, old: &str) {
    let ran = |backend| report.rows.iter().any(|r| r.backend == backend && !r.name.is_empty());
    let absent: Vec<_> = Backend::ALL.into_iter().filter(|backend| !ran(*backend)).collect();
    let mut kept = cells(old);
    kept.retain(|row| absent.contains(&row.backend));
    report.rows.retain(|row| kept.iter().all(|kept| kept.backend != row.backend));
    report.rows.append(&mut kept);
    // The order in which a run of all backends visits them.
    report.rows.sort_by_key(|row| {
        let backend = Backend::ALL.iter().position(|b| *b == row.backend);
        (backend, Requester::BOTH.iter().position(|a| *a == row.requester))
    });
    for (name, seen) in baselines(old) {
        if !report.baselines.iter().any(|(known, _)| *known == name) {
            report.baselines.push((name, seen));
        }
    }
}

/// Returns the cells of a section.
fn cells(section: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    // The columns of the table that contains the current line.
    let mut header: Vec<&str> = Vec::new();
    for line in section.lines() {
        let Some(columns) = columns(line) else { continue };
        match columns[..] {
            ["operation" | "name", ..] => header = columns,
            [op, requester, backend, ..] if header.first() == Some(&"operation") => {
                let marks = header.iter().zip(&columns).skip(3);
                for (size, mark) in marks {
                    let size = size_of(size).map(|size| format!("{op}/{size}"));
                    rows.extend(
                        size.and_then(|name| cell(section, backend, requester, &name, mark)),
                    );
                }
            }
            [name, ..] => {
                for (column, mark) in header.iter().zip(&columns) {
                    let Some((requester, backend)) = column.split_once(" asks, ") else { continue };
                    rows.extend(cell(section, backend, requester, name.trim_matches('`'), mark));
                }
            }
            [] => {}
        }
    }
    rows
}

/// Returns the observations of two kernels for each fault.
fn baselines(section: &str) -> impl Iterator<Item = (&'static str, String)> {
    section.lines().filter_map(|line| {
        let columns = columns(line)?;
        let [name, _, seen, ref marks @ ..] = columns[..] else { return None };
        let fault = faults::ALL.iter().find(|f| f.name == name.trim_matches('`'))?;
        // Some faults can be caused in only one of the two roles.
        let played = marks.iter().any(|mark| !mark.is_empty());
        (played && !seen.is_empty()).then(|| (fault.name, seen.to_owned()))
    })
}

fn columns(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix("| ")?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

fn size_of(name: &str) -> Option<u64> {
    let all = SIZES.into_iter().chain(UC_SIZES).chain(UD_SIZES).chain([8]);
    all.into_iter().find(|size| size_name(*size) == name)
}

/// Returns the cell with this mark. Failed and skipped cells are not kept.
fn cell(section: &str, backend: &str, requester: &str, name: &str, mark: &str) -> Option<Row> {
    let backend = Backend::ALL.into_iter().find(|b| b.name() == backend)?;
    let requester = Requester::BOTH.into_iter().find(|a| a.name() == requester)?;
    let id = format!("{}/{}/{name}", backend.name(), requester.name());
    let remark = match mark {
        "ok" => None,
        "ok \\*" => {
            let start = format!("- {id}: ok (");
            let line = section.lines().find_map(|line| line.strip_prefix(&start));
            Some(line?.strip_suffix(')')?.to_owned())
        }
        _ => return None,
    };
    Some(Row { id, backend, requester, name: name.to_owned(), outcome: Outcome::Good(remark) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_as_it_was_written() {
        let mut whole = Report::new("6.1", "package", "6.1.1");
        let mut add = |backend, requester, name: &str, remark: Option<&str>| {
            let cell = (backend, requester, name.to_owned());
            let id = format!("{}/{}/{name}", Backend::name(backend), Requester::name(requester));
            let outcome = Outcome::Good(remark.map(str::to_owned));
            let (backend, requester, name) = cell;
            whole.rows.push(Row { id, backend, requester, name, outcome });
        };
        for backend in Backend::WITH_KERNEL {
            for requester in Requester::BOTH {
                add(backend, requester, "SEND/1048579", None);
                add(backend, requester, "uc/WRITE/1025", Some("a remark (with brackets)"));
                add(backend, requester, "ipv6", None);
                add(backend, requester, "long/SEND", Some("another"));
            }
            add(backend, Requester::Kernel, "unaligned/ATOMIC_WRITE", None);
        }
        add(Backend::Guest, Requester::Ours, "driver", None);
        add(Backend::Guest, Requester::Ours, "zerocopy", Some("refused"));
        whole.baselines.push(("long/SEND", "requester ERR: #1 REM_OP_ERR".into()));
        whole
            .baselines
            .push(("unaligned/ATOMIC_WRITE", "requester ERR: #1 REM_INV_REQ_ERR".into()));
        let page = whole.section();
        for left_out in Backend::ALL {
            let mut part = whole.clone();
            part.rows.retain(|row| row.backend != left_out);
            part.baselines.clear();
            assert_ne!(part.section(), page);
            complete(&mut part, &page);
            assert!(part.section() == page, "{}", part.section());
        }
    }
}
