//! Medians, with what is around them.

/// A median, the quartiles and extremes around it, in the unit of the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle of the values; of two middles, the mean.
    pub median: f64,
    /// A quarter of the values are not larger.
    pub low: f64,
    /// A quarter of the values are not smaller.
    pub high: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// How many values there are.
    pub count: usize,
}

impl Spread {
    /// The spread of `values`, unless there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        Some(Self {
            median: (values.get(count.checked_sub(1)? / 2)? + values.get(count / 2)?) / 2.0,
            low: *values.get(count / 4)?,
            high: *values.get(count - 1 - count / 4)?,
            min: *values.first()?,
            max: *values.last()?,
            count,
        })
    }

    /// For a report.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "median": self.median, "low": self.low, "high": self.high, "min": self.min, "max": self.max, "count": self.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let of = |values: &[f64]| Spread::of(values.to_vec()).map(|spread| spread.median);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(3.0));
        assert_eq!(of(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 9.0, 1.0, 2.0]), Some(3.0));
        let spread = Spread::of((1..=15).map(f64::from).collect()).unwrap();
        assert_eq!((spread.low, spread.high), (4.0, 12.0));
    }
}
