use super::*;

fn model(id: &str) -> ModelInfo {
    ModelInfo { id: id.into(), parent: None, context_tokens: None }
}

fn known() -> Capability {
    Capability {
        version: Some("0.5.23".into()),
        models: vec![model("a")],
        kv_capacity_tokens: Some(1000),
        dp_ranks: 4,
        loads: LoadsForm::V1Loads,
        health_path: "/model_info".into(),
        ..Capability::unknown(EngineKind::Sglang, Product::Sglang)
    }
}

#[test]
fn silence_takes_nothing_away() {
    let silent = Capability { complete: false, ..Capability::unknown(EngineKind::Sglang, Product::Sglang) };
    assert_eq!(silent.clone().after(&known()), Capability { complete: false, ..known() });
    // Not even which engine it is could be seen.
    let blank = Capability { complete: false, ..Capability::unknown(EngineKind::Openai, Product::Other) };
    assert_eq!(blank.after(&known()).kind, EngineKind::Sglang);
    let said = Capability { kv_capacity_tokens: Some(900), models: vec![model("a")], ..silent };
    let merged = said.after(&known());
    assert_eq!((merged.kv_capacity_tokens, merged.dp_ranks, merged.loads), (Some(900), 4, LoadsForm::V1Loads));
}

#[test]
fn another_engine_and_a_full_answer_stand_as_they_are() {
    let silent = Capability { complete: false, ..Capability::unknown(EngineKind::Sglang, Product::Sglang) };
    for other in [
        Capability { version: Some("0.5.24".into()), ..silent.clone() },
        Capability { models: vec![model("b")], ..silent.clone() },
        Capability { complete: false, ..Capability::unknown(EngineKind::Vllm, Product::Vllm) },
        Capability { complete: true, ..silent },
    ] {
        assert_eq!(other.clone().after(&known()), other);
    }
}
