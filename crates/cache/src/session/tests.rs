use super::*;
use crate::chain::{NameFormat, Namespace, names};
use plimsoll_core::{InstanceId, Rank};
use proptest::prelude::*;

const BLOCK: u32 = 4;

fn target(instance: u32) -> Target {
    Target { instance: InstanceId(instance), rank: Rank(0) }
}

fn named(tokens: &[u32]) -> Vec<u64> {
    names(NameFormat::Own, BLOCK, Namespace::default(), tokens).unwrap()
}

fn find(sessions: &Sessions, now: u64, realm: u64, tokens: &[u32]) -> Turn {
    sessions.find(Nanos(now), realm, &named(tokens), BLOCK, tokens)
}

fn end(sessions: &mut Sessions, now: u64, realm: u64, tokens: &[u32], turn: &Turn, cached: Option<u64>) {
    end_before(sessions, now, realm, tokens, 0, turn, cached);
}

/// With so many tokens at its end that only open the answer.
fn end_before(
    sessions: &mut Sessions,
    now: u64,
    realm: u64,
    tokens: &[u32],
    opening: usize,
    turn: &Turn,
    cached: Option<u64>,
) {
    let Some(prompt) = PromptEnd::of(realm, &named(tokens), BLOCK, tokens, opening) else { return };
    let end = TurnEnd { cached_tokens: cached, output_tokens: Some(now), target: target(now as u32) };
    sessions.ended(Nanos(now), prompt, turn, end);
}

/// All that was ever answered, in full.
struct Plain {
    realm: u64,
    tokens: Vec<u32>,
    number: u32,
    rounds: u32,
    now: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_turn_before_is_the_longest_answered_prompt_that_this_one_begins_with(
        // Each request goes an earlier one on, or begins anew; tokens of two kinds, so that prompts meet by chance.
        steps in proptest::collection::vec(
            (0usize..40, proptest::collection::vec(0u32..2, 0..9), 0u64..2, proptest::option::of(0u64..40)),
            1..40,
        ),
    ) {
        let mut sessions = Sessions::new(SessionsConfig::default());
        let mut all: Vec<Plain> = Vec::new();
        for (now, (from, more, realm, cached)) in steps.into_iter().enumerate() {
            let mut tokens = all.get(from).map(|plain| plain.tokens.clone()).unwrap_or_default();
            tokens.extend(more);
            let found = find(&sessions, now as u64, realm, &tokens);
            // Tails kept per block are few: only prompts whose rivals are fewer are sure to be remembered.
            let crowded = |plain: &Plain| {
                let block = plain.tokens.len() / BLOCK as usize * BLOCK as usize;
                let rivals = all.iter().filter(|other| {
                    other.realm == plain.realm
                        && other.tokens.len() / BLOCK as usize * BLOCK as usize == block
                        && other.tokens[..block] == plain.tokens[..block]
                });
                rivals.count() > MOST_TAILS
            };
            let begins = |plain: &&Plain| {
                plain.realm == realm && plain.tokens.len() >= BLOCK as usize && tokens.starts_with(&plain.tokens)
            };
            let best = all.iter().filter(begins).max_by_key(|plain| (plain.tokens.len(), plain.now));
            prop_assume!(!all.iter().any(crowded));
            let expected = match best {
                None => Turn::FIRST,
                Some(plain) if plain.tokens == tokens => Turn { number: plain.number, hit_rounds: plain.rounds, previous: None },
                Some(plain) => Turn {
                    number: plain.number + 1,
                    hit_rounds: plain.rounds,
                    previous: Some(Previous {
                        prompt_tokens: plain.tokens.len() as u64,
                        whole: true,
                        output_tokens: Some(plain.now),
                        target: target(plain.now as u32),
                        ended: Nanos(plain.now),
                    }),
                },
            };
            prop_assert_eq!(found, expected);
            end(&mut sessions, now as u64, realm, &tokens, &found, cached);
            let hit = found.previous.zip(cached).is_some_and(|(previous, cached)| cached * 2 >= previous.prompt_tokens);
            let rounds = found.hit_rounds + u32::from(hit);
            all.push(Plain { realm, tokens, number: found.number, rounds, now: now as u64 });
        }
    }
}

#[test]
fn turns_and_hit_rounds_count() {
    let mut sessions = Sessions::new(SessionsConfig::default());
    let tokens: Vec<u32> = (0..400).collect();
    for turn in 1..=10u32 {
        let prompt = &tokens[..turn as usize * 37];
        let found = find(&sessions, u64::from(turn), 1, prompt);
        assert_eq!(found.number, turn);
        // The first round finds nothing; the fourth has lost its KV.
        assert_eq!(found.hit_rounds, [0, 0, 1, 2, 2, 3, 4, 5, 6, 7][turn as usize - 1]);
        let cached = if turn == 4 { 8 } else { prompt.len() as u64 - 37 };
        end(&mut sessions, u64::from(turn), 1, prompt, &found, Some(cached));
    }
}

#[test]
fn others_and_sleepers_begin_anew() {
    let mut sessions = Sessions::new(SessionsConfig { idle: Nanos(100), ..SessionsConfig::default() });
    let tokens: Vec<u32> = (0..20).collect();
    end(&mut sessions, 0, realm("m", "one"), &tokens[..10], &Turn::FIRST, None);
    assert_eq!(find(&sessions, 100, realm("m", "one"), &tokens).number, 2);
    assert_eq!(find(&sessions, 100, realm("m", "two"), &tokens), Turn::FIRST);
    assert_eq!(find(&sessions, 100, realm("n", "one"), &tokens), Turn::FIRST);
    assert_eq!(find(&sessions, 101, realm("m", "one"), &tokens), Turn::FIRST);
    assert_ne!(realm("ab", "c"), realm("a", "bc"));
}

#[test]
fn the_same_beginning_with_another_end_is_no_turn() {
    let mut sessions = Sessions::new(SessionsConfig::default());
    end(&mut sessions, 0, 1, &[1, 2, 3, 4, 5, 6], &Turn::FIRST, None);
    assert_eq!(find(&sessions, 1, 1, &[1, 2, 3, 4, 5, 7, 8, 9, 10]), Turn::FIRST);
    assert_eq!(find(&sessions, 1, 1, &[1, 2, 3, 4, 5]), Turn::FIRST);
    assert_eq!(find(&sessions, 1, 1, &[1, 2, 3, 4, 5, 6]).number, 1);
    assert_eq!(find(&sessions, 1, 1, &[1, 2, 3, 4, 5, 6, 7]).number, 2);
}

/// A template opens the answer with 9, 9 and takes it out of the history.
#[test]
fn a_turn_whose_opening_is_rendered_otherwise_later_is_known() {
    let mut sessions = Sessions::new(SessionsConfig::default());
    let mut tokens = vec![1, 2, 3, 4, 5];
    for number in 1..6u32 {
        let prompt = [&tokens[..], &[9, 9]].concat();
        let found = find(&sessions, u64::from(number), 1, &prompt);
        let previous = found.previous.map(|previous| (previous.whole, previous.prompt_tokens));
        assert_eq!((found.number, previous), (number, (number > 1).then_some((false, tokens.len() as u64))));
        end_before(&mut sessions, u64::from(number), 1, &prompt, 2, &found, None);
        // The same once more is the same turn.
        let again = find(&sessions, u64::from(number), 1, &prompt);
        assert_eq!((again.number, again.previous), (number, None));
        tokens.extend([20 + number, 7]);
    }
    // One whose answer keeps its opening begins with the whole.
    let kept = [&tokens[..tokens.len() - 2], &[9, 9, 30, 31]].concat();
    assert!(find(&sessions, 9, 1, &kept).previous.unwrap().whole);
    // An opening alone is nobody's end, nor is a prompt shorter than its opening.
    assert!(PromptEnd::of(1, &named(&[1, 2, 3, 4]), BLOCK, &[1, 2, 3, 4], 2).is_none());
    assert!(PromptEnd::of(1, &named(&[1, 2, 3, 4]), BLOCK, &[1, 2, 3, 4], 5).is_none());
}

#[test]
fn memory_is_bounded_and_the_newest_are_known() {
    let mut sessions = Sessions::new(SessionsConfig { max_ends: 1_000, ..SessionsConfig::default() });
    for session in 0..10_000u32 {
        end(&mut sessions, u64::from(session), 1, &[session, 1, 2, 3, 4], &Turn::FIRST, None);
        // One block with ever other tails.
        end(&mut sessions, u64::from(session), 1, &[7, 7, 7, 7, session], &Turn::FIRST, None);
        assert!(sessions.len() <= 1_000);
    }
    for session in 9_600..10_000 {
        assert_eq!(find(&sessions, 10_000, 1, &[session, 1, 2, 3, 4, 9]).number, 2, "{session}");
    }
    assert_eq!(find(&sessions, 10_000, 1, &[0, 1, 2, 3, 4, 9]), Turn::FIRST);
}
