//! Every order of everything, on a small world of one source, one target, one driver and a network that loses, repeats
//! and reorders.

use super::source::{self, Proof, Source, When};
use super::target::{self, Target, Warrant};
use super::*;
use plimsoll_core::Nanos;
use std::collections::{HashSet, VecDeque};

/// Time does not pass: every deadline is always due, so that an expiry may come at any moment.
const NOW: Nanos = Nanos::ZERO;
const FENCE: Fence = Fence(7);
/// Tokens of the request.
const LENGTH: u8 = 3;

/// Messages between source and target. Once sent they may arrive at any time, any number of times, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Sent {
    linked: bool,
    delta: bool,
    direct: bool,
    source_aborts: bool,
    confirmed: bool,
    refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// `None`: crashed.
    source: Option<Source>,
    target: Option<Target>,
    sent: Sent,
    /// The last word waits for a buffer.
    pending: bool,
    /// The driver has been told the fence.
    knows_fence: bool,
    /// The driver has been told `aborted` by the target.
    knows_aborted: bool,
    /// The next token that the client waits for.
    next: u8,
    /// Tokens the source has emitted; its delta carries this number.
    source_at: u8,
    /// As the effects say: scheduled at the source, held or running at the target.
    scheduled: bool,
    source_alive: bool,
    held: bool,
    running: bool,
    target_at: u8,
    frees: u8,
}

fn world() -> World {
    let zero = Nanos::ZERO;
    World {
        source: Some(Source::new(
            NOW,
            source::Limits { ship: zero, freeze: zero, commit: zero, remember: zero },
            FENCE,
        )),
        target: Some(Target::new(NOW, target::Limits { reserve: zero, ready: zero, remember: zero })),
        sent: Sent::default(),
        pending: false,
        knows_fence: false,
        knows_aborted: false,
        next: 0,
        source_at: 0,
        scheduled: true,
        source_alive: true,
        held: true,
        running: false,
        target_at: 0,
        frees: 0,
    }
}

impl World {
    fn at_source(&self, act: impl FnOnce(&mut Source) -> Vec<source::Effect>) -> Option<World> {
        let mut next = self.clone();
        let effects = act(next.source.as_mut()?);
        for effect in effects {
            match effect {
                source::Effect::Ship => next.sent.linked = true,
                source::Effect::Freeze => {
                    assert!(next.scheduled, "frozen twice");
                    next.scheduled = false;
                }
                source::Effect::SendDelta => next.pending = true,
                source::Effect::Thaw => {
                    assert!(!next.scheduled && next.source_alive, "thawed what was not frozen");
                    next.scheduled = true;
                }
                source::Effect::TellAbort => next.sent.source_aborts = true,
                source::Effect::Release => {
                    assert!(next.source_alive, "released twice");
                    next.source_alive = false;
                }
            }
        }
        Some(next)
    }

    fn at_target(&self, act: impl FnOnce(&mut Target) -> Vec<target::Effect>) -> Option<World> {
        let mut next = self.clone();
        let effects = act(next.target.as_mut()?);
        for effect in effects {
            match effect {
                target::Effect::Confirm => next.sent.confirmed = true,
                target::Effect::Install => {
                    assert!(next.held && !next.running, "installed what was not held");
                    next.held = false;
                    next.running = true;
                    next.target_at = next.source_at;
                }
                target::Effect::Free => {
                    assert!(next.held, "freed what was not held");
                    next.held = false;
                    next.frees += 1;
                }
                target::Effect::TellRefused => next.sent.refused = true,
            }
        }
        Some(next)
    }

    /// A verb at the source. Whether its answer arrives is another matter.
    fn ask_source(&self, ask: source::Ask, into: &mut Vec<World>) {
        let Some(next) = self.at_source(|source| source.ask(NOW, ask).unwrap_or_default()) else { return };
        let told = next.source.as_ref().is_some_and(|source| source.given_fence().is_some());
        into.push(World { knows_fence: next.knows_fence || told, ..next.clone() });
        into.push(next);
    }

    fn ask_target(&self, ask: target::Ask, into: &mut Vec<World>) {
        let Some(next) = self.at_target(|target| target.ask(NOW, ask).unwrap_or_default()) else { return };
        let told = next.target.as_ref().is_some_and(|target| matches!(target.state(), target::State::Aborted(_)));
        into.push(World { knows_aborted: next.knows_aborted || told, ..next.clone() });
        into.push(next);
    }

    /// All worlds one event away.
    fn next(&self) -> Vec<World> {
        let mut into = Vec::new();
        for delta in [true, false] {
            for commit in [When::Asked, When::Confirmed, When::Sent] {
                self.ask_source(source::Ask::Freeze { delta, commit }, &mut into);
            }
        }
        for ask in [source::Ask::Start, source::Ask::Delta, source::Ask::Commit, source::Ask::Release] {
            self.ask_source(ask, &mut into);
        }
        self.ask_source(source::Ask::Resume(None), &mut into);
        self.ask_source(source::Ask::Resume(Some(Proof { fence: Fence(8) })), &mut into);
        // The driver keeps its word: a proof only when it was told, or when the process is gone.
        if self.knows_fence && (self.knows_aborted || self.target.is_none()) {
            self.ask_source(source::Ask::Resume(Some(Proof { fence: FENCE })), &mut into);
        }
        self.ask_target(target::Ask::Verify, &mut into);
        self.ask_target(target::Ask::Abort, &mut into);
        self.ask_target(target::Ask::TakeOver(Warrant::Fence(Fence(8))), &mut into);
        if self.knows_fence {
            self.ask_target(target::Ask::TakeOver(Warrant::Fence(FENCE)), &mut into);
        }
        if self.source.is_none() {
            self.ask_target(target::Ask::TakeOver(Warrant::SourceGone), &mut into);
        }
        let target_news = [
            (self.sent.linked, target::News::Linked),
            (self.sent.delta, target::News::Complete { fence: FENCE, direct: self.sent.direct }),
            (self.sent.delta, target::News::Bad),
            (self.sent.source_aborts, target::News::SourceAborted),
            (self.sent.linked, target::News::LinkLost),
            (true, target::News::Cancelled),
        ];
        into.extend(
            target_news
                .into_iter()
                .filter(|(possible, _)| *possible)
                .filter_map(|(_, news)| self.at_target(|target| target.learn(NOW, news))),
        );
        let source_news = [
            (self.sent.confirmed, source::News::Confirmed),
            (self.sent.refused, source::News::Refused),
            (self.sent.linked, source::News::LinkLost),
        ];
        into.extend(
            source_news
                .into_iter()
                .filter(|(possible, _)| *possible)
                .filter_map(|(_, news)| self.at_source(|source| source.learn(NOW, news))),
        );
        into.extend(self.at_source(|source| source.tick(NOW).unwrap_or_default()));
        into.extend(self.at_target(|target| target.tick(NOW).unwrap_or_default()));
        into.push(World { source: None, scheduled: false, source_alive: false, ..self.clone() });
        into.push(World { target: None, held: false, running: false, ..self.clone() });
        if self.source_alive && self.source.is_some() {
            // The request ends here: complete, aborted, or its reader leaves.
            into.extend(self.at_source(|source| source.learn(NOW, source::News::RequestEnded)).map(|next| World {
                source_alive: false,
                scheduled: false,
                ..next
            }));
        }
        if self.running {
            into.extend(
                self.at_target(|target| target.learn(NOW, target::News::RequestEnded))
                    .map(|next| World { running: false, ..next }),
            );
        }
        into.extend(self.ship_last());
        into.extend(self.emit());
        into
    }

    /// The last word leaves the source, and with it, perhaps, the baton.
    fn ship_last(&self) -> Option<World> {
        let source = self.source.as_ref().filter(|source| source.state() == source::State::Frozen)?;
        let sent = Sent { delta: true, direct: source.is_direct(), ..self.sent };
        let next = World { pending: false, sent, ..self.clone() };
        if self.pending { next.at_source(|source| source.learn(NOW, source::News::Sent)) } else { None }
    }

    /// Each side that is scheduled emits the token it believes to be next.
    fn emit(&self) -> Vec<World> {
        let mut into = Vec::new();
        if self.scheduled && self.source_alive && self.source_at < LENGTH {
            // What a target emitted before it crashed is computed again; the client's side drops it by its index.
            let repeats = self.target.is_none() && self.source_at < self.next;
            assert!(repeats || self.source_at == self.next, "the source's token is not the next: {self:?}");
            let next = self.next.max(self.source_at + 1);
            into.push(World { source_at: self.source_at + 1, next, ..self.clone() });
        }
        if self.running && self.target_at < LENGTH {
            assert_eq!(self.target_at, self.next, "the target's token is not the next: {self:?}");
            into.push(World { target_at: self.target_at + 1, next: self.next + 1, ..self.clone() });
        }
        into
    }

    fn check(&self) {
        assert!(!(self.scheduled && self.running), "two emit: {self:?}");
        if let Some(source) = &self.source {
            assert_eq!(self.scheduled && self.source_alive, source.emits() && self.source_alive, "{self:?}");
        }
        if let Some(target) = &self.target {
            assert_eq!(self.held, target.holds(), "{self:?}");
            assert_eq!(self.running, target.emits(), "{self:?}");
        }
        assert!(self.frees <= 1, "freed twice: {self:?}");
    }

    /// Left alone, with nothing but time passing, it comes to an end where nothing is held.
    fn ends(&self) {
        let mut rest = self.clone();
        for _ in 0..4 {
            rest = rest.at_source(|source| source.tick(NOW).unwrap_or_default()).unwrap_or(rest);
            rest = rest.at_target(|target| target.tick(NOW).unwrap_or_default()).unwrap_or(rest);
        }
        assert!(rest.source.as_ref().is_none_or(Source::is_over), "never over: {rest:?}");
        assert!(!rest.held, "still held: {rest:?}");
        if let Some(source::State::Resumed(_)) = rest.source.as_ref().map(Source::state) {
            assert!(rest.scheduled || !rest.source_alive, "resumed and not scheduled: {rest:?}");
        }
    }
}

#[test]
fn at_most_one_side_emits_and_every_migration_ends() {
    let mut seen = HashSet::from([world()]);
    let mut todo = VecDeque::from([world()]);
    let (mut moved, mut direct, mut back_after_commit) = (false, false, false);
    while let Some(here) = todo.pop_front() {
        here.check();
        here.ends();
        let complete = here.running && here.target_at == LENGTH && here.source_at > 0;
        moved |= complete && here.knows_fence && !here.sent.direct;
        direct |= complete && !here.knows_fence && here.source.is_some();
        back_after_commit |= here.knows_fence && here.scheduled && here.source_at == LENGTH;
        for next in here.next() {
            if seen.insert(next.clone()) {
                todo.push_back(next);
            }
        }
    }
    assert!(moved, "no run of the world completes a migration by its verbs");
    assert!(direct, "no run of the world completes one that commits with the last word");
    assert!(back_after_commit, "no run of the world comes back after a commit");
    assert!(seen.len() > 1000, "only {} worlds: the check looks at too little", seen.len());
}

fn source_in(path: &[source::Ask], confirmed: bool) -> Source {
    let second = Nanos::from_secs(1);
    let limits = source::Limits { ship: second, freeze: second, commit: second, remember: second };
    let mut source = Source::new(NOW, limits, FENCE);
    for ask in path {
        if source.ask(NOW, *ask).unwrap().contains(&source::Effect::SendDelta) {
            source.learn(NOW, source::News::Sent);
        }
        if confirmed {
            source.learn(NOW, source::News::Confirmed);
        }
    }
    source
}

const FREEZE: source::Ask = source::Ask::Freeze { delta: true, commit: When::Asked };

#[test]
fn a_repeated_verb_has_no_second_effect() {
    let path = [source::Ask::Start, FREEZE, source::Ask::Commit, source::Ask::Release];
    for upto in 1..=path.len() {
        let mut source = source_in(&path[..upto], true);
        let before = source.clone();
        for again in &path[..upto] {
            assert_eq!(source.ask(NOW, *again), Ok(Vec::new()), "{again:?} after {:?}", before.state());
        }
        assert_eq!(source, before);
        for early in &path[upto..] {
            if *early == path[upto] {
                continue;
            }
            assert_eq!(source.ask(NOW, *early), Err(Refusal::WrongState), "{early:?} in {:?}", before.state());
        }
        assert_eq!(source, before);
    }
}

#[test]
fn the_fence_is_given_out_with_the_commit_and_not_before() {
    assert_eq!(source_in(&[source::Ask::Start, FREEZE], false).given_fence(), None);
    let mut synced = source_in(&[source::Ask::Start, FREEZE], true);
    assert_eq!((synced.state(), synced.given_fence()), (source::State::Synced, None));
    synced.ask(NOW, source::Ask::Commit).unwrap();
    assert_eq!(synced.given_fence(), Some(FENCE));
    // In one go, for a driver that has no time for another round trip.
    let once = source_in(&[source::Ask::Start, source::Ask::Freeze { delta: true, commit: When::Confirmed }], true);
    assert_eq!((once.state(), once.given_fence()), (source::State::Committed, Some(FENCE)));
    // Or with the last word, before the target has said anything.
    let direct = source_in(&[source::Ask::Start, source::Ask::Freeze { delta: true, commit: When::Sent }], false);
    assert_eq!((direct.state(), direct.given_fence()), (source::State::Committed, Some(FENCE)));
    // Once the last word has gone without the baton, it cannot be made one.
    let later = [source::Ask::Start, FREEZE, source::Ask::Freeze { delta: true, commit: When::Sent }];
    assert_eq!(source_in(&later, false).state(), source::State::Frozen);
    assert_eq!(source_in(&later, true).state(), source::State::Committed);
}

#[test]
fn after_the_commit_the_source_resumes_only_with_proof() {
    let mut committed = source_in(&[source::Ask::Start, FREEZE, source::Ask::Commit], true);
    let back = vec![source::Effect::Thaw, source::Effect::TellAbort];
    for (proof, answer) in [
        (None, Err(Refusal::BadFence)),
        (Some(Proof { fence: Fence(8) }), Err(Refusal::BadFence)),
        (Some(Proof { fence: FENCE }), Ok(back)),
    ] {
        assert_eq!(committed.clone().ask(NOW, source::Ask::Resume(proof)), answer);
    }
    // The target's own refusal is one; a broken connection is not.
    assert_eq!(committed.clone().learn(NOW, source::News::Refused), [source::Effect::Thaw]);
    assert_eq!(committed.clone().learn(NOW, source::News::LinkLost), []);
    let late = Nanos::from_secs(2);
    assert_eq!(committed.tick(late), Some(vec![source::Effect::Release]));
    let mut frozen = source_in(&[source::Ask::Start, FREEZE], true);
    assert_eq!(frozen.clone().tick(late), Some(vec![source::Effect::Thaw, source::Effect::TellAbort]));
    assert_eq!(frozen.learn(NOW, source::News::LinkLost), [source::Effect::Thaw]);
}

#[test]
fn an_aborted_target_never_takes_over() {
    let second = Nanos::from_secs(1);
    let mut target = Target::new(NOW, target::Limits { reserve: second, ready: second, remember: second });
    assert_eq!(target.ask(NOW, target::Ask::Verify), Err(Refusal::WrongState));
    target.learn(NOW, target::News::Linked);
    target.learn(NOW, target::News::Complete { fence: FENCE, direct: false });
    let ready = target.clone();
    let take = target::Ask::TakeOver(Warrant::Fence(FENCE));
    assert_eq!(target.ask(NOW, target::Ask::TakeOver(Warrant::Fence(Fence(8)))), Err(Refusal::BadFence));
    let free = vec![target::Effect::Free, target::Effect::TellRefused];
    assert_eq!(target.ask(NOW, target::Ask::Abort), Ok(free.clone()));
    assert_eq!(target.ask(NOW, target::Ask::Abort), Ok(vec![]));
    assert_eq!(target.ask(NOW, take), Err(Refusal::Over));
    // A target that lost its source keeps what is complete, and expires.
    let mut target = ready;
    assert_eq!(target.learn(NOW, target::News::LinkLost), []);
    assert_eq!(target.ask(NOW, target::Ask::Abort), Err(Refusal::CutOff));
    assert_eq!(target.state(), target::State::Ready);
    assert_eq!(target.clone().tick(Nanos::from_secs(2)), Some(free));
    assert_eq!(target.ask(NOW, take), Ok(vec![target::Effect::Install]));
    assert_eq!(target.ask(NOW, take), Ok(vec![]));
    assert_eq!(target.ask(NOW, target::Ask::Abort), Err(Refusal::TakenOver));
    assert_eq!(target.tick(Nanos::from_secs(100)), Some(vec![]), "a running request does not expire");
}
