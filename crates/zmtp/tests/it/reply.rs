//! ROUTER and DEALER.

use crate::{PATIENCE, local};
use bytes::Bytes;
use plimsoll_zmtp::{Client, Frames, Limits, Replier, Replies, Role};
use tokio::time::timeout;

/// As many answers as the question says.
fn count(question: &[Bytes]) -> Replies {
    let asked = question.get(1).and_then(|frame| frame.first()).map_or(0, |count| u64::from(*count));
    let big = Bytes::from(vec![7; 100_000]);
    Box::new((0..asked).map(move |n| vec![Bytes::new(), Bytes::copy_from_slice(&n.to_be_bytes()), big.clone()]))
}

async fn answers(client: &mut Client, count: u64) -> Vec<Frames> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(timeout(PATIENCE, client.recv()).await.unwrap().unwrap());
    }
    all
}

#[tokio::test]
async fn questions_are_answered_in_a_row_and_a_slow_reader_keeps_nobody_waiting() {
    let (listener, endpoint) = local().bind().unwrap();
    let _replier = Replier::bind(listener, Limits::default(), count).unwrap();
    let limits = Limits { incoming_bytes: 1 << 20, ..Limits::default() };
    // Asks for 20 MB and does not read.
    let mut slow = Client::connect(&endpoint, Role::Dealer, &limits).await.unwrap();
    slow.send(&[&b""[..], &[200]]).await.unwrap();
    let mut quick = Client::connect(&endpoint, Role::Dealer, &limits).await.unwrap();
    for _ in 0..3 {
        quick.send(&[&b""[..], &[5]]).await.unwrap();
        let numbers: Vec<u8> = answers(&mut quick, 5).await.iter().map(|frames| frames[1][7]).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }
    let all = answers(&mut slow, 200).await;
    assert_eq!((all[199][1][7], all[199][2].len(), all[199][0].len()), (199, 100_000, 0));
    // No answer to nonsense, and the connection lives.
    quick.send(&[b"x"]).await.unwrap();
    quick.send(&[&b""[..], &[1]]).await.unwrap();
    assert_eq!(answers(&mut quick, 1).await.len(), 1);
}
