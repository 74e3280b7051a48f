//! Figures of at most six characters, for columns.

/// A number: `0`, `0.3`, `17`, `99999`, `123k`, `1.23M`.
pub(super) fn number(value: f64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if value > 0.0 && value < 0.05 {
        return "<0.1".to_owned();
    }
    if value < 9.95 && value.fract() != 0.0 {
        return format!("{value:.1}");
    }
    if value < 99_999.5 {
        return format!("{value:.0}");
    }
    let (mut value, mut unit) = (value / 1e3, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    format!("{}{}", three_digits(value), UNITS[unit])
}

/// Bytes in MiB.
pub(super) fn mebibytes(bytes: f64) -> String {
    number(bytes / f64::from(1 << 20))
}

/// A time: `12µs`, `1.23ms`, `12.3s`; that of nothing is `-`.
pub(super) fn time(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else {
        return "-".to_owned();
    };
    let microseconds = seconds * 1e6;
    if microseconds < 999.5 {
        format!("{microseconds:.0}µs")
    } else if seconds < 0.9995 {
        format!("{}ms", three_digits(seconds * 1e3))
    } else {
        format!("{}s", three_digits(seconds))
    }
}

/// A part of a whole, in percent.
pub(super) fn percent(part: f64) -> String {
    format!("{} %", number(part * 100.0))
}

fn three_digits(value: f64) -> String {
    if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else if value < 99_999.5 {
        format!("{value:.0}")
    } else {
        ">99999".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let all = [
            (0.0, "0"),
            (0.001, "<0.1"),
            (0.25, "0.2"),
            (9.0, "9"),
            (9.96, "10"),
            (1234.5, "1234"),
            (99_999.0, "99999"),
            (123_456.0, "123k"),
            (1_234_567.0, "1.23M"),
            (u64::MAX as f64, "18.4E"),
        ];
        for (value, text) in all {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn times() {
        let all = [
            (0.0, "0µs"),
            (12.4e-6, "12µs"),
            (999.4e-6, "999µs"),
            (999.6e-6, "1.00ms"),
            (0.0123, "12.3ms"),
            (0.9996, "1.00s"),
            (123.0, "123s"),
        ];
        for (seconds, text) in all {
            assert_eq!(time(Some(seconds)), text);
        }
        assert_eq!(time(None), "-");
    }

    /// Whatever a target tells, the columns are as wide as they are.
    #[test]
    fn width() {
        for exponent in -12..300 {
            for digits in [1.0, 4.999, 9.949, 9.9999] {
                let value = digits * 10_f64.powi(exponent);
                let short = |text: &str| text.chars().count() <= 6 || value > 9e22;
                assert!(short(&number(value)), "{value}: {}", number(value));
                let time = time(Some(value));
                assert!(time.chars().count() <= 7, "{value}: {time}");
            }
        }
    }
}
