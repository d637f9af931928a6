//! The table, and the same for programs.

use std::path::Path;

use coppice_benches::Fallible;
use coppice_benches::spread::Spread;
use serde_json::{Value, json};

use crate::plot;

/// One thing that was measured.
pub struct Row {
    /// Its name in reports.
    pub name: String,
    /// What sets it apart from the row of the same name that counts; none for
    /// that one itself.
    pub variant: Option<&'static str>,
    /// The unit of all figures.
    pub unit: &'static str,
    /// Coppice.
    pub ours: Option<Spread>,
    /// Firecracker.
    pub peer: Option<Spread>,
    /// The least that it can cost.
    pub floor: Option<Spread>,
    target: &'static str,
    note: String,
}

impl Row {
    /// A row with the figures of Coppice, of the peer and of the floor.
    pub fn new(name: &str, unit: &'static str, figures: [Option<Spread>; 3]) -> Self {
        let [ours, peer, floor] = figures;
        Self {
            name: name.to_owned(),
            variant: None,
            unit,
            ours,
            peer,
            floor,
            target: "",
            note: String::new(),
        }
    }

    /// What Coppice is to reach.
    pub fn target(self, target: &'static str) -> Self {
        Self { target, ..self }
    }

    /// Under which conditions it was measured.
    pub fn note(self, note: &str) -> Self {
        let note = note.to_owned();
        Self { note, ..self }
    }

    /// Makes it a row for information, beside the one that counts.
    pub fn beside(self, variant: &'static str) -> Self {
        let variant = Some(variant);
        Self { variant, ..self }
    }

    fn ratio(&self, to: Option<Spread>) -> Option<f64> {
        Some(self.ours?.median / to?.median)
    }

    /// Its name with the variant.
    pub fn title(&self) -> String {
        match self.variant {
            Some(variant) => format!("{}, {variant}", self.name),
            None => self.name.clone(),
        }
    }

    fn json(&self) -> Value {
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        json!({
            "name": self.name,
            "unit": self.unit,
            "ours": median(self.ours),
            "peer": median(self.peer),
            "floor": median(self.floor),
            "ratio_peer": self.ratio(self.peer),
            "ratio_floor": self.ratio(self.floor),
        })
    }

    fn details(&self) -> Value {
        let spread = |spread: Option<Spread>| spread.map(|spread| spread.json());
        json!({
            "name": self.title(),
            "unit": self.unit,
            "ours": spread(self.ours),
            "peer": spread(self.peer),
            "floor": spread(self.floor),
            "ratio_peer": self.ratio(self.peer),
            "ratio_floor": self.ratio(self.floor),
            "target": self.target,
            "conditions": self.note,
        })
    }

    /// The cells of its line in the table.
    fn cells(&self) -> [String; 9] {
        let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let median = |spread: Option<Spread>| spread.map_or("-".into(), |s| number(s.median));
        let spread = |spread: Option<Spread>| {
            spread.map_or("-".into(), |s| {
                format!("{}–{}", number(s.low), number(s.high))
            })
        };
        [
            format!("{} ({})", self.title(), self.unit),
            median(self.ours),
            median(self.peer),
            median(self.floor),
            ratio(self.ratio(self.peer)),
            ratio(self.ratio(self.floor)),
            self.target.to_owned(),
            spread(self.ours),
            match (self.peer, self.floor) {
                (None, None) => "-".to_owned(),
                (Some(_), _) => spread(self.peer),
                (None, _) => spread(self.floor),
            },
        ]
    }
}

/// Three digits that count.
pub fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Prints the table, in the form of Markdown.
pub fn print(rows: &[Row]) {
    print!("{}", table(rows));
}

fn table(rows: &[Row]) -> String {
    let head = [
        "what",
        "ours",
        "peer",
        "floor",
        "ours/peer",
        "ours/floor",
        "target",
        "middle half of ours",
        "of the peer, else the floor",
    ]
    .map(str::to_owned);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(Row::cells));
    let widths: [usize; 9] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    });
    lines.insert(1, widths.map(|width| "-".repeat(width)));
    let mut text = String::new();
    for line in lines {
        for (cell, width) in line.iter().zip(widths) {
            let padding = " ".repeat(width - cell.chars().count());
            text += &format!("| {cell}{padding} ");
        }
        text += "|\n";
    }
    text.push('\n');
    for row in rows {
        text += &format!("- {}: {}.\n", row.title(), row.note);
    }
    text
}

/// Writes `restore.json`, `restore-details.json`, `restore.md` and `restore.svg`.
pub fn write(rows: &[Row], directory: &Path) -> Fallible<()> {
    let counting = rows.iter().filter(|row| row.variant.is_none());
    let figures = json!({ "rows": counting.map(Row::json).collect::<Vec<_>>() });
    let details = json!({ "rows": rows.iter().map(Row::details).collect::<Vec<_>>() });
    let files = [
        ("restore.json", serde_json::to_string_pretty(&figures)?),
        (
            "restore-details.json",
            serde_json::to_string_pretty(&details)?,
        ),
        ("restore.md", table(rows)),
        ("restore.svg", plot::svg(rows)),
    ];
    for (name, content) in files {
        std::fs::write(directory.join(name), content)?;
    }
    Ok(())
}
