use super::*;

fn stops(list: &[&str]) -> Vec<String> {
    list.iter().map(|stop| (*stop).to_owned()).collect()
}

#[test]
fn stop_strings_are_found_across_tokens() {
    assert_eq!(find_stop(" ship load run", 10, &stops(&["p load r"])), Some((4, "p load r")));
    assert_eq!(find_stop(" ship load", 5, &stops(&["zzz", " load", "load"])), Some((5, " load")));
    assert_eq!(find_stop(" ship", 0, &stops(&["shipp"])), None);
    assert_eq!(find_stop("é漢", 2, &stops(&["漢"])), Some((2, "漢")));
}

#[test]
fn what_may_become_a_stop_string_is_held_back() {
    assert_eq!(held_back("abc E", &stops(&["END"])), 1);
    assert_eq!(held_back("abc EN", &stops(&["END", "N!"])), 2);
    assert_eq!(held_back("abc", &stops(&["END"])), 0);
    assert_eq!(held_back("E", &stops(&["END"])), 1);
    assert_eq!(held_back("x漢", &stops(&["漢字"])), 3);
    assert_eq!(held_back("", &stops(&["END"])), 0);
}
