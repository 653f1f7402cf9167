//! The computation is right, and the files are what it computes.

use super::table::Table;
use super::{compare, difference, knots, measurements, squares};

#[test]
fn the_committed_profiles_are_what_the_tables_give() {
    let root = crate::root();
    if !measurements(&root).is_dir() {
        println!("skipped: the_committed_profiles_are_what_the_tables_give (no PLIMSOLL_SHARED)");
        return;
    }
    let found = compare(&root).unwrap();
    assert!(found.is_empty(), "{}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_changed_number_is_found_and_rounding_is_not() {
    let text = "# 3 rows\nat = [1.0, 8.0]\nname = \"x\"\n";
    assert_eq!(difference(text, text), None);
    assert_eq!(difference(text, &text.replace("8.0", "8.01")), None);
    for changed in [text.replace("8.0", "8.1"), text.replace("\"x\"", "\"y\""), text.replace(", 8.0", "")] {
        assert!(difference(text, &changed).is_some(), "{changed}");
    }
    assert!(difference(text, "# 3 rows\n").unwrap().starts_with("line 2 is `at = [1.0, 8.0]`"));
}

#[test]
fn least_squares_finds_what_made_the_numbers_and_never_goes_below_zero() {
    let rows = |truth: [f64; 3]| -> Vec<([f64; 3], f64)> {
        (1..60)
            .map(|i| {
                let x = [1.0, f64::from(i % 7), f64::from(i * i)];
                (x, squares::dot(&x, &truth))
            })
            .collect()
    };
    for truth in [[3.0, 0.5, 0.01], [2.0, 0.0, 0.3]] {
        let found = squares::not_negative(&rows(truth));
        assert!(found.iter().zip(truth).all(|(found, truth)| (found - truth).abs() < 1e-9), "{found:?}");
    }
    let found = squares::not_negative(&rows([5.0, -0.1, 0.02]));
    assert_eq!(found[1], 0.0);
    assert!(found[0] > 4.0 && found[2] > 0.0, "{found:?}");
}

#[test]
fn knots_keep_to_their_tolerance_and_leave_out_what_lies_between() {
    let points: Vec<(f64, f64)> =
        (0..100).map(|i| (f64::from(i), if i < 40 { 10.0 } else { 10.0 + f64::from(i - 40) })).collect();
    let chosen = knots::choose(&points);
    assert_eq!((chosen.first(), chosen.last()), (points.first(), points.last()));
    assert!(chosen.len() <= 4, "{chosen:?}");
    for (x, y) in &points {
        let right = chosen.partition_point(|knot| knot.0 < *x).max(1);
        let ((x0, y0), (x1, y1)) = (chosen[right - 1], chosen[right]);
        let there = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
        assert!((there / y - 1.0).abs() <= knots::TOLERANCE + 1e-12, "{x}: {there} {y}");
    }
}

#[test]
fn a_table_says_what_is_missing_in_it() {
    let why = |text: &str, given: &[(&str, &str)], wanted: [&str; 1]| {
        let table = Table::parse("t.csv", text).map_err(|error| error.to_string());
        match table.and_then(|table| table.select(given, wanted).map_err(|error| error.to_string())) {
            Ok(_) => String::new(),
            Err(error) => error,
        }
    };
    let text = "gpu,m,us\na,1,2.5\nb,2,x\n";
    assert_eq!(why(text, &[("gpu", "a")], ["us"]), "");
    assert_eq!(why(text, &[("gpu", "c")], ["us"]), "t.csv: no row with gpu c");
    assert_eq!(why(text, &[("gpus", "a")], ["us"]), "t.csv: has no column \"gpus\"");
    assert_eq!(why(text, &[("gpu", "a")], ["ms"]), "t.csv: has no column \"ms\"");
    assert_eq!(why(text, &[("gpu", "b")], ["us"]), "t.csv: us is \"x\", expected a number");
    assert_eq!(why("gpu,m\na\n", &[], ["m"]), "t.csv: line 2 has 1 cells, the head has 2");
    assert_eq!(why("", &[], ["m"]), "t.csv: is empty");
}
