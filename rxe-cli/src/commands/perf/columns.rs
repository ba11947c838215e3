//! The rows of results, with the columns of perftest. In a narrower terminal, the same columns are
//! closer together.

use super::plan::{Kind, Plan};
use super::stats::{Bandwidth, Latency, Loss, Row};

/// The width of the lines between the parts, in perftest and in a narrow terminal.
const WIDE: usize = 87;
const NARROW: usize = 79;

/// The columns of a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    kind: Kind,
    /// Whether bandwidth is shown in Gb/s instead of MiB/s.
    gbits: bool,
    /// Whether messages may be lost, so that losses are shown.
    loses: bool,
    narrow: bool,
}

impl Columns {
    /// Creates the columns of a plan. `terminal` is the terminal's width in columns, if there is
    /// one.
    pub(super) fn new(plan: &Plan, gbits: bool, terminal: Option<usize>) -> Self {
        let (kind, loses) = (plan.kind, plan.transport.loses());
        let wide = Self { kind, gbits, loses, narrow: false };
        let narrow =
            terminal.is_some_and(|columns| columns < wide.head().trim_end().len().max(WIDE));
        Self { narrow, ..wide }
    }

    /// Returns the line between the parts of a report.
    pub(super) fn line(self) -> String {
        "-".repeat(if self.narrow { NARROW } else { WIDE }) + "\n"
    }

    /// Returns the headings.
    pub(super) fn head(self) -> String {
        let Self { kind, gbits, loses, narrow } = self;
        let lost = match (loses, kind, narrow) {
            (false, ..) => "",
            (true, _, false) => "   Lost       Lost[%]",
            (true, Kind::Lat, true) => " Lost",
            (true, Kind::Bw, true) => "     Lost  Lost[%]",
        };
        let head = match (kind, gbits, narrow) {
            (Kind::Lat, _, false) => {
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                 t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
            }
            (Kind::Lat, _, true) => {
                let times = ["t_min", "t_max", "t_typ", "t_avg", "t_stdev", "99%", "99.9%"];
                let times = times.map(|name| format!(" {name:>0$}", self.time_width())).concat();
                return format!(" Times in usec.\n {:<7} {:<6}{times}{lost}\n", "#bytes", "#iter");
            }
            (Kind::Bw, false, false) => {
                " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
            }
            (Kind::Bw, true, false) => {
                " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
            }
            (Kind::Bw, false, true) => {
                " #bytes  #iterations  peak[MiB/s]  average[MiB/s]  rate[Mpps]"
            }
            (Kind::Bw, true, true) => {
                " #bytes  #iterations   peak[Gb/s]   average[Gb/s]  rate[Mpps]"
            }
        };
        format!("{head}{lost}\n")
    }

    /// Returns the width of a latency in a narrow row.
    fn time_width(self) -> usize {
        if self.loses { 7 } else { 8 }
    }

    /// Formats a row.
    pub(super) fn row(self, row: &Row) -> String {
        match row {
            Row::Bw(bw) => self.bandwidth(bw),
            Row::Lat(lat) => self.latency(lat),
        }
    }

    fn bandwidth(self, bw: &Bandwidth) -> String {
        let unit = if self.gbits { 1e9 / 8.0 } else { f64::from(1 << 20) };
        let in_unit = |messages: f64| messages * f64::from(bw.bytes) / unit;
        let Bandwidth { bytes, iterations, average, peak, .. } = *bw;
        let (peak, mean, rate) = (in_unit(peak), in_unit(average), average / 1e6);
        if self.narrow {
            let lost = bw.loss.map(|loss| format!("{:>9}  {:>7.2}", loss.lost, loss.percent()));
            let lost = lost.unwrap_or_default();
            return format!(
                " {bytes:<7} {iterations:<11}  {peak:>11.2}  {mean:>14.2}  {rate:>10.6}{lost}\n"
            );
        }
        format!(
            " {bytes:<7}    {iterations:<10}       {peak:<7.2}            {mean:<7.2}               {rate:<7.6}{}",
            loss(bw.loss)
        )
    }

    fn latency(self, lat: &Latency) -> String {
        let Latency { bytes, iterations, t_min_usec, t_max_usec, t_typical_usec, .. } = lat;
        let Latency { t_avg_usec, t_stdev_usec, percentile_99_usec, percentile_99_9_usec, .. } =
            lat;
        if self.narrow {
            let times = [t_min_usec, t_max_usec, t_typical_usec, t_avg_usec, t_stdev_usec];
            let times = times.into_iter().chain([percentile_99_usec, percentile_99_9_usec]);
            let lost = lat.lost.map(|lost| format!(" {lost:>4}")).unwrap_or_default();
            let width = self.time_width();
            let digits = if self.loses { 1 } else { 2 };
            let times: String = times.map(|time| format!(" {time:>width$.digits$}")).collect();
            return format!(" {bytes:<7} {iterations:<6}{times}{lost}\n");
        }
        format!(
            " {bytes:<7} {iterations:<10}    {t_min_usec:<11.2}    {t_max_usec:<11.2}  \
             {t_typical_usec:<15.2}    {t_avg_usec:<11.2}    {t_stdev_usec:<13.2}   \
             {percentile_99_usec:<20.2}   {percentile_99_9_usec:<7.2}{}",
            loss(lat.lost.map(|lost| Loss { lost, sent: iterations + lost }))
        )
    }
}

/// Formats the columns for services that lose messages.
fn loss(loss: Option<Loss>) -> String {
    match loss {
        Some(loss) => format!("   {:<8}   {:<7.2}\n", loss.lost, loss.percent()),
        None => "\n".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bw(loss: Option<Loss>) -> Bandwidth {
        let (average, peak) = (1000.0, 1500.0);
        let (bytes, iterations, seconds) = (1 << 20, 5000, 5.0);
        Bandwidth { bytes, iterations, seconds, average, peak, loss, packets: None }
    }

    #[test]
    fn a_row_has_the_columns_of_perftest() {
        let columns = Columns { kind: Kind::Bw, gbits: false, loses: false, narrow: false };
        let cells = |columns: Columns, bw: &Bandwidth| {
            let row = columns.bandwidth(bw);
            row.split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(
            cells(columns, &bw(None)),
            ["1048576", "5000", "1500.00", "1000.00", "0.001000"]
        );
        assert_eq!(cells(Columns { gbits: true, ..columns }, &bw(None))[3], "8.39");
        let lossy = bw(Some(Loss { lost: 50, sent: 5000 }));
        assert_eq!(cells(columns, &lossy)[5..], ["50", "1.00"]);
    }

    #[test]
    fn narrow_rows_fit_into_80_columns_below_their_headings() {
        let lat = |lost| Latency {
            bytes: 1 << 23,
            iterations: 20000,
            t_min_usec: 1234.5,
            t_max_usec: 98765.4,
            t_typical_usec: 1300.0,
            t_avg_usec: 1301.2,
            t_stdev_usec: 99.9,
            percentile_99_usec: 2000.0,
            percentile_99_9_usec: 3000.0,
            lost,
        };
        for (loses, lost) in [(false, None), (true, Some(20))] {
            let columns = |kind| Columns { kind, gbits: false, loses, narrow: true };
            let loss = lost.map(|lost| Loss { lost, sent: 20000 });
            for (head, row) in [
                (columns(Kind::Bw).head(), columns(Kind::Bw).bandwidth(&bw(loss))),
                (columns(Kind::Lat).head(), columns(Kind::Lat).latency(&lat(lost))),
            ] {
                let last = head.lines().last().unwrap();
                assert_eq!(last.len(), row.trim_end().len(), "{head}{row}");
                assert!(last.len() < 80, "{head}{row}");
            }
        }
    }
}
