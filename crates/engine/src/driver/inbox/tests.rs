use super::*;

fn abort(prefix: &str) -> Option<String> {
    Some(prefix.to_owned())
}

/// `look`, or what is aborted.
fn names(commands: &[Command]) -> Vec<String> {
    let name = |command: &Command| match command {
        Command::Abort { prefix } => prefix.clone().unwrap_or_else(|| "all".to_owned()),
        _ => "look".to_owned(),
    };
    commands.iter().map(name).collect()
}

#[test]
fn an_abort_stands_behind_what_came_before_and_before_what_came_after() {
    let mut inbox = Inbox::default();
    inbox.abort(abort("a"), 9).unwrap();
    inbox.control(Command::Look, 9).unwrap();
    inbox.abort(abort("b"), 9).unwrap();
    inbox.parcel(Command::Look);
    inbox.abort(abort("c"), 9).unwrap();
    assert_eq!(names(&inbox.take()), ["a", "look", "b", "look", "c"]);
    assert!(inbox.is_empty());
}

#[test]
fn the_same_abort_lies_here_once_and_one_of_all_takes_the_place_of_every_other() {
    let mut inbox = Inbox::default();
    for _ in 0..100 {
        inbox.abort(abort("a"), 2).unwrap();
        inbox.control(Command::Look, 1000).unwrap();
    }
    inbox.abort(abort("b"), 2).unwrap();
    assert_eq!(inbox.abort(abort("c"), 2), Err(Full), "one more than the limit is said and not dropped");
    assert_eq!(inbox.abort(abort("a"), 2), Ok(()));
    let taken = names(&inbox.take());
    assert_eq!(taken[100..], ["a", "b"], "{taken:?}");
    inbox.abort(abort("a"), 2).unwrap();
    inbox.abort(abort("b"), 2).unwrap();
    inbox.abort(None, 2).unwrap();
    inbox.control(Command::Look, 1).unwrap();
    inbox.abort(abort("a"), 2).unwrap();
    assert_eq!(names(&inbox.take()), ["all", "look", "a"]);
}

#[test]
fn every_kind_has_its_own_bound() {
    let mut inbox = Inbox::default();
    (0..50).for_each(|_| inbox.parcel(Command::Look));
    assert_eq!((inbox.control(Command::Look, 1), inbox.control(Command::Look, 1)), (Ok(()), Err(Full)));
    assert_eq!((inbox.request(Command::Look, 1), inbox.request(Command::Look, 1)), (Ok(()), Err(Full)));
    assert_eq!(inbox.take().len(), 52);
    assert_eq!((inbox.control(Command::Look, 1), inbox.request(Command::Look, 1)), (Ok(()), Ok(())));
}
