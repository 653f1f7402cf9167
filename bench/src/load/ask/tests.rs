use super::*;
use crate::wire;

#[test]
fn the_body_has_the_size_asked_for_and_is_json_with_its_number() {
    for size in [1024, 300 * 1024] {
        let mut ask = Ask::new(([127, 0, 0, 1], 1).into(), size, true, 32);
        let bytes = ask.numbered(4_711);
        let end = wire::head_end(bytes).unwrap().unwrap();
        assert!(matches!(wire::framing(&bytes[..end]).unwrap(), Some(wire::Body::Length(n)) if n == size as u64));
        assert_eq!(bytes.len() - end, size);
        let body: serde_json::Value = serde_json::from_slice(&bytes[end..]).unwrap();
        assert_eq!(body["stream"], true);
        assert!(body["messages"][0]["content"].as_str().unwrap().starts_with("Request 000000004711 The"));
    }
}
