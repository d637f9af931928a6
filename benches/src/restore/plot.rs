//! The figures as a picture: for each row, a bar for each of those measured, as
//! long as its median is in proportion to the row's largest, with a line over the
//! middle half of the values.

use std::fmt::Write as _;

use coppice_benches::spread::Spread;

use crate::report::{Row, number};

const BAR: f64 = 12.0;
const GAP: f64 = 14.0;
const LEFT: f64 = 250.0;
const LENGTH: f64 = 430.0;
const WIDTH: f64 = 790.0;
const TOP: f64 = 34.0;

/// Who is measured, and the colour of the bars.
const SERIES: [(&str, &str); 3] = [
    ("Coppice", "#2f7d4f"),
    ("Firecracker", "#d08a3c"),
    ("floor", "#8a8f98"),
];

/// The picture as an SVG file.
pub fn svg(rows: &[Row]) -> String {
    let mut marks = String::new();
    let mut x = LEFT;
    for (name, colour) in SERIES {
        rectangle(&mut marks, x, 10.0, 12.0, colour);
        text(&mut marks, x + 18.0, 20.0, "start", name);
        x += 110.0;
    }
    let mut y = TOP + GAP / 2.0;
    for row in rows {
        let bars: Vec<(Spread, &str)> = [row.ours, row.peer, row.floor]
            .into_iter()
            .zip(SERIES)
            .filter_map(|(spread, (_, colour))| Some((spread?, colour)))
            .collect();
        let largest = bars.iter().map(|(spread, _)| spread.high);
        let scale = LENGTH / largest.fold(f64::MIN_POSITIVE, f64::max);
        let middle = y + bars.len() as f64 * BAR / 2.0 + 4.0;
        text(&mut marks, LEFT - 10.0, middle, "end", &row.title());
        for (spread, colour) in bars {
            rectangle(&mut marks, LEFT, y + 1.0, spread.median * scale, colour);
            let (from, to) = (LEFT + spread.low * scale, LEFT + spread.high * scale);
            let at = y + BAR / 2.0;
            // Writing to a String cannot fail.
            let _ = writeln!(
                marks,
                r##"<line x1="{from:.1}" y1="{at:.1}" x2="{to:.1}" y2="{at:.1}" stroke="#222"/>"##
            );
            let label = format!("{} {}", number(spread.median), row.unit);
            text(&mut marks, to + 6.0, y + BAR - 2.0, "start", &label);
            y += BAR;
        }
        y += GAP;
    }
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="11">
<rect width="{WIDTH}" height="{y}" fill="#fff"/>
{marks}</svg>
"##
    )
}

fn rectangle(marks: &mut String, x: f64, y: f64, width: f64, colour: &str) {
    let height = BAR - 2.0;
    let _ = writeln!(
        marks,
        r#"<rect x="{x}" y="{y:.1}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
    );
}

fn text(marks: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let _ = writeln!(
        marks,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#222">{what}</text>"##
    );
}
