//! What those who read metrics understand.

use std::collections::{BTreeMap, BTreeSet};

use super::Format;

/// Labels of a sample, and what it is of.
type Series = (String, BTreeMap<String, String>);

/// Panics unless that is a text of this format. It is stricter than those who read them: families are not empty and not interleaved.
pub(crate) fn check(text: &str, format: Format) {
    let mut names = BTreeSet::new();
    let mut family = ("", "");
    let mut has_samples = true;
    let mut seen: BTreeMap<Series, f64> = BTreeMap::new();
    let mut histograms: BTreeMap<Series, Vec<(f64, f64)>> = BTreeMap::new();
    let text = match format {
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("an end"),
        Format::Prometheus => text,
    };
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, about) = help.split_once(' ').unwrap();
            assert!(is_name(name) && about.ends_with('.'), "{line}");
            assert!(names.insert(name), "{name} is declared twice");
            assert!(has_samples, "{} has no samples", family.0);
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let (typed, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, typed);
            let total = name.ends_with("_total");
            assert_eq!(
                total,
                kind == "counter" && format == Format::Prometheus,
                "{name}"
            );
            (family, has_samples) = ((name, kind), false);
            continue;
        }
        let (name, labels, value) = sample(line);
        let (of, kind) = family;
        let suffix = name.strip_prefix(of).unwrap_or_else(|| panic!("{line}"));
        let suffixes: &[&str] = match (kind, format) {
            ("counter", Format::OpenMetrics) => &["_total"],
            ("info", Format::OpenMetrics) => &["_info"],
            ("counter" | "gauge", _) => &[""],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            _ => panic!("{kind}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        let series = (name.to_owned(), labels.clone());
        assert!(seen.insert(series, value).is_none(), "{line} is twice");
        if suffix == "_bucket" {
            let mut labels = labels;
            let limit = labels.remove("le").unwrap();
            let limit = limit.replace("+Inf", "inf").parse().unwrap();
            let series = (of.to_owned(), labels);
            histograms.entry(series).or_default().push((limit, value));
        }
        has_samples = true;
    }
    assert!(has_samples, "{} has no samples", family.0);
    for ((name, labels), buckets) in histograms {
        let is_ordered = |pair: &[(f64, f64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
        assert!(buckets.windows(2).all(is_ordered), "{name} {labels:?}");
        let (limit, all) = buckets.last().unwrap();
        assert_eq!(*limit, f64::INFINITY, "{name} {labels:?}");
        let count = seen[&(format!("{name}_count"), labels.clone())];
        assert_eq!(*all, count, "{name} {labels:?}");
        assert!(seen.contains_key(&(format!("{name}_sum"), labels)));
    }
}

fn is_name(name: &str) -> bool {
    let is_good = |(at, byte): (usize, u8)| {
        byte.is_ascii_lowercase() || byte == b'_' || at > 0 && byte.is_ascii_digit()
    };
    !name.is_empty() && name.bytes().enumerate().all(is_good)
}

/// The parts of a line like `name{label="value",...} 1.5`.
fn sample(line: &str) -> (&str, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list;
        loop {
            let (label, value) = rest.split_once("=\"").unwrap();
            assert!(is_name(label), "{line}");
            let mut said = String::new();
            let mut chars = value.char_indices();
            let end = loop {
                match chars.next().expect("a quote") {
                    (at, '"') => break at,
                    (_, '\\') => said.push(match chars.next() {
                        Some((_, 'n')) => '\n',
                        Some((_, char @ ('\\' | '"'))) => char,
                        other => panic!("{other:?} in {line}"),
                    }),
                    (_, char) => said.push(char),
                }
            };
            assert!(labels.insert(label.to_owned(), said).is_none(), "{line}");
            let after = &value[end + 1..];
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').unwrap();
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap();
    (name, labels, value.parse().unwrap())
}
