use super::*;

fn chain(names: &[u8]) -> Vec<Digest> {
    names.iter().map(|name| [*name; 32]).collect()
}

#[test]
fn a_shared_prefix_is_counted_once_and_leaves_nothing_behind() {
    let claims = Claims::default();
    let cached = |digest: &Digest| digest[0] < 2;
    let (known, first) = claims.claim(&chain(&[0, 1, 2, 3]), cached);
    assert_eq!(known, 2);
    let (known, second) = claims.claim(&chain(&[0, 1, 2, 3, 4]), cached);
    assert_eq!(known, 4);
    let (known, third) = claims.claim(&chain(&[0, 9, 3]), cached);
    assert_eq!((known, claims.len()), (1, 4));
    // While one that claims a page is there, it is claimed.
    drop(first);
    assert_eq!(claims.claim(&chain(&[0, 1, 2]), cached).0, 2);
    assert_eq!(claims.claim(&chain(&[0, 1, 9]), cached).0, 3);
    drop((second, third));
    assert_eq!(claims.len(), 0);
}
