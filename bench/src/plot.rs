//! Draws plots as SVG.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::tests::size;

/// A plot of lines over a common axis.
pub(super) struct Plot {
    /// The file's name, without `.svg`.
    pub(super) file: &'static str,
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
}

/// The quantity on an axis. An axis is logarithmic unless it is called linear.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Axis {
    /// The bytes of a message.
    Bytes,
    QueuePairs,
    /// Packets lost, in percent. Linear.
    Loss,
    /// Bandwidth in GB/s, from 0. Linear.
    Bandwidth,
    /// Millions of messages a second.
    Rate,
    /// Latency in µs.
    Latency,
    /// CPU seconds per gigabyte.
    Cpu,
    /// Bandwidth in MB/s, from 0. Linear.
    SlowBandwidth,
    /// The number of senders of an incast.
    Senders,
    /// Goodput in percent of the links' capacity. Linear.
    Share,
    /// Packets retransmitted, per hundred others. Linear.
    Again,
    /// Milliseconds since the start. Linear.
    Elapsed,
    /// The length of a queue in kB. Linear.
    Queue,
    /// Milliseconds until a message has completed.
    Completion,
    /// Percent of all messages. Linear.
    Messages,
}

/// The line of one contender, or of one percentile.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Axis {
    const fn title(self) -> &'static str {
        match self {
            Self::Bytes => "bytes in a message",
            Self::QueuePairs => "queue pairs",
            Self::Loss => "packets lost, %",
            Self::Bandwidth => "GB/s",
            Self::Rate => "million messages a second",
            Self::Latency => "µs, one way",
            Self::Cpu => "CPU seconds for a GB",
            Self::SlowBandwidth => "MB/s",
            Self::Senders => "senders",
            Self::Share => "goodput, % of the links",
            Self::Again => "packets sent again for 100 others",
            Self::Elapsed => "ms since the start",
            Self::Queue => "longest queue in 0.1 ms, kB",
            Self::Completion => "ms until a message has completed",
            Self::Messages => "messages, %",
        }
    }

    const fn is_log(self) -> bool {
        use Axis::{Bytes, Completion, Cpu, Latency, QueuePairs, Rate, Senders};
        matches!(self, Bytes | QueuePairs | Rate | Latency | Cpu | Senders | Completion)
    }

    fn label(self, value: f64) -> String {
        match self {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
            Self::Bytes => size(value.round() as u32),
            _ if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
            _ if value < 0.1 => format!("{value:.2}"),
            _ => format!("{value:.1}"),
        }
    }
}

/// The colours of lines, enough for the largest plot.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0x17, 0xbe, 0xcf),
    RGBColor(0xe3, 0x77, 0xc2),
    RGBColor(0x8c, 0x56, 0x4b),
    RGBColor(0xbc, 0xbd, 0x22),
    RGBColor(0x99, 0x99, 0x99),
    RGBColor(0x00, 0x4d, 0x40),
];

/// The widths in pixels of a picture, and of the key at its right side.
const WIDTH: u32 = 940;
const KEY: u32 = 200;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

impl Plot {
    /// Returns whether the plot has no points.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(|line| line.points.is_empty())
    }

    /// Draws the plot. An error names what could not be drawn.
    pub(super) fn svg(&self) -> Result<String, String> {
        let mut svg = String::new();
        let backend = SVGBackend::with_string(&mut svg, (WIDTH, 420));
        self.draw(&backend.into_drawing_area()).map_err(|e| format!("{}: {e}", self.file))?;
        Ok(svg)
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        area.fill(&WHITE)?;
        let (area, key) = &area.split_horizontally(WIDTH - KEY);
        self.draw_key(key)?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = range(self.x, points().map(|p| p.0));
        let y = range(self.y, points().map(|p| p.1));
        match (self.x.is_log(), self.y.is_log()) {
            (true, true) => self.lines_over(area, self.marked(self.x, x), self.marked(self.y, y)),
            (true, false) => self.lines_over(area, self.marked(self.x, x), y),
            (false, true) => self.lines_over(area, x, self.marked(self.y, y)),
            (false, false) => self.lines_over(area, x, y),
        }
    }

    /// Draws the key to the lines, to their right so that it covers none.
    fn draw_key(&self, area: &Area<'_>) -> Drawn {
        for (row, (line, colour)) in (0..).zip(self.lines.iter().zip(COLOURS.iter().cycle())) {
            let y = 48 + 18 * row;
            let stroke = [(0, y), (18, y)];
            area.draw(&PathElement::new(stroke, colour.stroke_width(2)))?;
            let style = TextStyle::from(("sans-serif", 13)).pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(line.name.as_str(), (24, y), style))?;
        }
        Ok(())
    }

    /// Returns a logarithmic axis with marks: for sizes at powers of 4 (among them 64 KiB), for
    /// counts where the lines have points, and otherwise at 1, 2 and 5 times powers of ten.
    fn marked(
        &self,
        axis: Axis,
        values: Range<f64>,
    ) -> impl AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>> + use<> {
        let mut marks: Vec<_> = match axis {
            Axis::Bytes => (1..12).map(|i| f64::from(1u32 << (2 * i))).collect(),
            Axis::QueuePairs | Axis::Senders => {
                self.lines.iter().flat_map(|line| &line.points).map(|p| p.0).collect()
            }
            _ => (-2..7).flat_map(|power| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(power))).collect(),
        };
        // Marks outside the range would be drawn outside the plot.
        marks.retain(|mark| (values.start..=values.end).contains(mark));
        values.log_scale().with_key_points(marks)
    }

    fn lines_over<X, Y>(&self, area: &Area<'_>, x: X, y: Y) -> Drawn
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(self.x.title())
            .y_desc(self.y.title())
            .x_label_formatter(&|x| self.x.label(*x))
            .y_label_formatter(&|y| self.y.label(*y))
            .label_style(("sans-serif", 13))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            chart.draw_series(line.points.iter().map(|&at| Circle::new(at, 2, colour.filled())))?;
        }
        area.present()?;
        Ok(())
    }
}

/// Returns the range of an axis: from the least to the greatest value, or from 0, with some room
/// where that helps.
fn range(axis: Axis, values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, greatest) =
        values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    if greatest <= 0.0 {
        return if axis.is_log() { 1.0..10.0 } else { 0.0..1.0 };
    }
    match axis {
        Axis::Bytes | Axis::QueuePairs | Axis::Senders => least..greatest,
        Axis::Rate | Axis::Latency | Axis::Cpu | Axis::Completion => least * 0.8..greatest * 1.2,
        Axis::Loss | Axis::Elapsed => 0.0..greatest,
        Axis::Share | Axis::Messages => 0.0..105.0,
        _ => 0.0..greatest * 1.08,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_and_both_axes_are_in_the_picture() {
        let line =
            |name: &str, y| Line { name: name.into(), points: vec![(2.0, y), (4096.0, 9.0)] };
        let plot = Plot {
            file: "x",
            title: "WRITE over sizes",
            x: Axis::Bytes,
            y: Axis::Bandwidth,
            lines: vec![line("ours", 1.0), line("theirs", 0.5)],
        };
        let svg = plot.svg().unwrap();
        for text in ["WRITE over sizes", "bytes in a message", "GB/s", "ours", "theirs", "1 KiB"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_marks_within_its_range_only() {
        let line = Line { name: "ours".into(), points: vec![(2.0, 0.3), (8192.0, 4.0)] };
        let (title, lines) = ("WRITE rate", vec![line]);
        let svg = Plot { file: "x", title, x: Axis::Bytes, y: Axis::Rate, lines }.svg().unwrap();
        let labels: Vec<_> = svg.lines().map(str::trim).collect();
        for mark in ["4 KiB", "0.5", "1", "2"] {
            assert!(labels.contains(&mark), "{mark} is not in {svg}");
        }
        assert!(!["16 KiB", "0.2", "5", "3"].iter().any(|mark| labels.contains(mark)), "{svg}");
    }

    #[test]
    fn a_plot_without_points_is_empty() {
        let mut plot =
            Plot { file: "x", title: "t", x: Axis::Loss, y: Axis::Latency, lines: Vec::new() };
        assert!(plot.is_empty() && plot.svg().is_ok());
        plot.lines.push(Line { name: "ours".into(), points: Vec::new() });
        assert!(plot.is_empty());
        plot.lines.push(Line { name: "theirs".into(), points: vec![(0.1, 1.0)] });
        assert!(!plot.is_empty());
    }
}
