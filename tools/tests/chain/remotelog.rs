//! `flashnet bench remotelog`: all 72 ways to persist are proven and carried out. No time is judged here.

use std::collections::HashSet;

use crate::common::{flashnet, good};

/// What a recipe that is too weak does: it loses, or reorders.
const HARM: [&str; 2] = ["said to be durable, and lost", "b is there without a"];

fn document(arguments: &[&str]) -> serde_json::Value {
    let text = good(&[&["--json", "bench", "remotelog"], arguments].concat());
    serde_json::from_str(&text).unwrap()
}

/// 72 of 72 (defends I1): the printed recipe of each cell survives all power cuts, weaker ones are shown to do harm, and
/// what our endpoint does instead keeps every acknowledged record.
#[test]
fn all_cells_are_proven() {
    let result = document(&["--prove", "--records", "20", "--traces"]);
    assert_eq!(result["proven"], 72);
    let cells = result["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 72);
    let (mut keys, mut printed, mut weaker) = (HashSet::new(), HashSet::new(), [0; 2]);
    for cell in cells {
        assert_eq!(cell["proven"], true, "{cell}");
        let key = ["update", "domain", "ddio", "receive_queue", "primary"];
        keys.insert(key.map(|key| cell[key].to_string()));
        printed.insert(cell["rdma"]["recipe"].as_str().unwrap());
        assert!(cell["rdma"]["cuts"].as_u64().unwrap() > 10, "{cell}");
        for way in ["rdma", "endpoint"] {
            for other in cell[way]["weaker"].as_array().unwrap() {
                assert!(!other["trace"].as_array().unwrap().is_empty(), "{other}");
                let harm = other["harm"].as_str().unwrap();
                assert!(HARM.contains(&harm), "{other}");
                weaker[usize::from(way == "endpoint")] += 1;
            }
        }
        check_endpoint(cell);
    }
    assert_eq!(keys.len(), 72);
    // C4's other form is for tails that are too long for these tables.
    assert_eq!(printed.len(), 22);
    assert!(weaker.iter().all(|&found| found > 100), "{weaker:?}");
}

/// What the endpoint did: proven, and tried.
fn check_endpoint(cell: &serde_json::Value) {
    assert_eq!(cell["endpoint"]["proven"], true, "{cell}");
    assert_eq!(cell["latency"]["records"], 20, "{cell}");
    assert!(cell["latency"]["p50_us"].as_f64().unwrap() > 0.0);
}

/// The same without the private profile: no FLUSH, no ATOMIC WRITE, and still a way for each cell.
#[test]
fn all_cells_are_proven_without_flush() {
    let result = document(&["--prove", "--plain", "--records", "20"]);
    assert_eq!(result["proven"], 72);
    for cell in result["cells"].as_array().unwrap() {
        check_endpoint(cell);
        let steps = cell["endpoint"]["steps"].as_str().unwrap();
        assert!(
            !steps.contains("FLUSH") && !steps.contains("ATOMIC"),
            "{steps}"
        );
    }
}

/// No proof, no tick.
#[test]
fn nothing_is_ticked_unproven() {
    let result = document(&["--records", "0"]);
    assert_eq!(result["proven"], 0);
    for cell in result["cells"].as_array().unwrap() {
        assert_eq!(cell["proven"], false);
        assert_eq!(cell["latency"], serde_json::Value::Null);
    }
    let text = good(&["bench", "remotelog", "--records", "0"]);
    assert!(
        !text.contains('✓') && text.contains("without --prove"),
        "{text}"
    );
    let text = good(&["bench", "remotelog", "--records", "0", "--prove"]);
    assert!(text.contains("✓ 72 of 72 proven"), "{text}");
    let output = flashnet(&["bench", "remotelog", "--traces"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--prove"));
}
