use super::*;

#[test]
fn it_counts_from_the_moment_it_is_switched_on_and_again_when_it_changes() {
    let mut watch = CrashWatch::default();
    assert!(!watch.is_due(None, 1_000, 1_000));
    let tokens = Some(CrashAfter::Tokens(10));
    assert!(!watch.is_due(tokens, 1_000, 1_000));
    assert!(!watch.is_due(tokens, 1_009, 1_100));
    assert!(watch.is_due(tokens, 1_010, 1_101));
    let steps = Some(CrashAfter::Steps(3));
    assert!(!watch.is_due(steps, 1_010, 1_101));
    assert!(!watch.is_due(steps, 2_000, 1_103));
    assert!(watch.is_due(steps, 2_000, 1_104));
    // Taken back and switched on again: a new count.
    assert!(!watch.is_due(None, 2_000, 1_104));
    assert!(!watch.is_due(steps, 2_000, 1_106));
    assert!(!watch.is_due(Some(CrashAfter::Seconds(0)), 9_999, 9_999));
}
