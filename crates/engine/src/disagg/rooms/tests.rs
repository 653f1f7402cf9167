//! Who meets whom, without sockets: what is handed over is only ever a seat.

use super::*;
use futures_util::FutureExt;

fn seated(knock: &mut Knock) -> bool {
    matches!(knock.seat().now_or_never(), Some(Ok(_)))
}

#[test]
fn whoever_comes_first_waits_for_the_other() {
    let rooms = Rooms::default();
    let guest = rooms.enter(7).unwrap();
    let mut knock = rooms.knock(7).unwrap();
    assert!(seated(&mut knock));
    drop((guest, knock));
    let mut knock = rooms.knock(7).unwrap();
    assert!(knock.seat().now_or_never().is_none());
    let guest = rooms.enter(7).unwrap();
    assert!(seated(&mut knock));
    drop((guest, knock));
    assert_eq!(rooms.len(), 0);
}

#[test]
fn a_room_takes_one_of_each() {
    let rooms = Rooms::default();
    let guest = rooms.enter(7).unwrap();
    assert!(rooms.enter(7).is_none());
    assert!(rooms.enter(8).is_some());
    let knock = rooms.knock(7).unwrap();
    assert!(rooms.knock(7).is_none(), "its caller has come");
    drop(knock);
    assert!(rooms.knock(7).is_none(), "a caller that went does not come back");
    drop(guest);
    assert_eq!(rooms.len(), 0);
    let first = rooms.knock(7).unwrap();
    assert!(rooms.knock(7).is_none());
    drop(first);
    assert!(rooms.knock(7).is_some());
}

#[test]
fn a_caller_that_went_before_is_not_met() {
    let rooms = Rooms::default();
    drop(rooms.knock(7).unwrap());
    let mut guest = rooms.enter(7).unwrap();
    assert!(guest.partner().now_or_never().is_none(), "it waits for the next");
    let mut knock = rooms.knock(7).unwrap();
    assert!(seated(&mut knock));
}

/// It was met and left before it said who it is: the request fails at once and does not wait.
#[test]
fn a_caller_that_goes_with_its_seat_ends_the_wait() {
    let rooms = Rooms::default();
    let mut guest = rooms.enter(7).unwrap();
    drop(rooms.knock(7).unwrap());
    assert!(matches!(guest.partner().now_or_never(), Some(Err(TransferError::Closed))));
}
