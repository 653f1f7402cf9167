use super::*;
use plimsoll_workload::{Scale, SessionGenerator, Shape};

const SCALE: Scale = Scale { prompt_divisor: 32, output_divisor: 16, ..Scale::NONE };

fn synth() -> Synth<'static> {
    Synth::new(&plimsoll_engine::words::WORDS, SCALE).unwrap()
}

fn sessions() -> Vec<Session> {
    let shape = Shape { turn_limit: 60, ..Shape::default() };
    SessionGenerator::new(4, shape).take(5).collect()
}

/// The texts of a chat body, with their roles.
fn messages(body: &[u8]) -> Vec<(String, String)> {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let text = |message: &serde_json::Value, key: &str| message[key].as_str().unwrap().to_owned();
    body["messages"].as_array().unwrap().iter().map(|m| (text(m, "role"), text(m, "content"))).collect()
}

#[test]
fn a_turn_keeps_what_was_said_and_adds_the_real_answer() {
    let synth = synth();
    let (mut continued, mut rewritten) = (0, 0);
    for session in sessions() {
        let mut conversation = Conversation::new(&session);
        let mut before: Vec<(String, String)> = Vec::new();
        for (n, call) in session.calls.iter().enumerate() {
            let (path, body) = conversation.next("tiny", &synth, call);
            assert_eq!(path, "/v1/chat/completions");
            let now = messages(&body);
            assert_eq!(now[0].0, "system");
            assert!(now.iter().all(|(_, content)| !content.is_empty()));
            if now.len() > 2 {
                continued += 1;
                assert_eq!(now[..before.len()], before);
                assert_eq!(now[before.len()], ("assistant".into(), format!(" answer{}", n - 1)));
            } else {
                rewritten += usize::from(n > 0);
                before.first().inspect(|system| assert_eq!(**system, now[0]));
            }
            before = now;
            conversation.answered(format!(" answer{n}"));
        }
    }
    assert!(continued > 100 && rewritten > 0, "{continued} turns continued, {rewritten} rewritten");
}

#[test]
fn a_chat_has_as_many_words_as_its_prompt() {
    let synth = synth();
    for session in sessions() {
        let mut conversation = Conversation::new(&session);
        for call in &session.calls {
            let (_, body) = conversation.next("tiny", &synth, call);
            let words: usize = messages(&body).iter().map(|(_, content)| content.split_whitespace().count()).sum();
            let answers = messages(&body).iter().filter(|(role, _)| role == "assistant").count();
            let wanted = synth.prompt_words(&call.prompt) as usize;
            // Turns shorter than the answer before them have one word of their own.
            assert!(words >= wanted && words <= wanted + answers * 20, "{words} words for {wanted}");
            conversation.answered(" w".repeat(synth.scale().output(call.output_tokens).min(20) as usize));
        }
    }
}
