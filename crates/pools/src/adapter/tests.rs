use super::*;
use crate::capability::Product;

#[test]
fn routes_follow_the_family_and_the_listed_paths() {
    let sglang = adapter(EngineKind::Sglang);
    assert!(Route::ALL.iter().all(|r| sglang.serves(*r, None)));
    assert!(!adapter(EngineKind::Vllm).serves(Route::Generate, None));
    let mut capability = Capability::unknown(EngineKind::Sglang, Product::Sglang);
    capability.routes = Some(vec!["/generate".into(), "/v1/completions".into()]);
    let served: Vec<_> = Route::ALL.into_iter().filter(|r| sglang.serves(*r, Some(&capability))).collect();
    assert_eq!(served, [Route::Completions, Route::Generate]);
}

#[test]
fn only_sglang_needs_an_id_in_the_body() {
    assert_eq!(adapter(EngineKind::Sglang).id_key, Some("rid"));
    for kind in [EngineKind::Vllm, EngineKind::Openai] {
        assert_eq!((adapter(kind).id_key, adapter(kind).kind), (None, kind));
    }
}

#[test]
fn children_of_a_batch_have_rids_of_their_own() {
    assert_eq!(child_rids("ab", 1), ["ab"]);
    assert_eq!(child_rids("ab", 0), ["ab"]);
    assert_eq!(child_rids("ab", 3), ["ab_0", "ab_1", "ab_2"]);
}
