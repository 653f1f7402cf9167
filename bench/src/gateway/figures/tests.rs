use super::*;

#[test]
fn median_of_odd_even_and_nothing() {
    assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
    assert_eq!(median([]), None);
}
