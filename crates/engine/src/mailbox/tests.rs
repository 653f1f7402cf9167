use super::*;
use futures_util::FutureExt;

fn ticket(mailbox: &Arc<Mailbox>, tokens: usize) -> (Ticket, Update) {
    let (place, had) = mailbox.attach(tokens).unwrap();
    let mut ticket = Ticket::bare(Arc::clone(mailbox));
    ticket.place = Some(place);
    (ticket, had)
}

fn now(ticket: &mut Ticket) -> Option<(Vec<u32>, String)> {
    ticket.next().now_or_never().flatten().map(|update| (update.ids, update.text))
}

fn post(mailbox: &Mailbox, id: u32, text: &str) {
    mailbox.post(|update| {
        update.ids.push(id);
        update.text.push_str(text);
    });
}

#[test]
fn what_is_kept_is_read_from_any_token_on() {
    let mailbox = Arc::new(Mailbox::keeping(Instant::now(), Duration::ZERO));
    // The text of token 11 is held back until token 12.
    for (id, text) in [(10, " a"), (11, ""), (12, " b c")] {
        post(&mailbox, id, text);
    }
    let all = ["", " a", " a", " a b c"];
    for (from, text) in all.into_iter().enumerate() {
        let (mut reader, had) = ticket(&mailbox, from);
        assert_eq!((had.ids.len(), had.text.as_str()), (from, text));
        let rest = now(&mut reader).unwrap_or_default();
        assert_eq!((rest.0.len(), had.text + &rest.1), (3 - from, " a b c".to_owned()));
    }
    // More than there is: what comes next.
    let (mut reader, _) = ticket(&mailbox, 9);
    assert_eq!(now(&mut reader), None);
    post(&mailbox, 13, "!");
    assert_eq!(now(&mut reader), Some((vec![13], "!".to_owned())));
}

#[test]
fn the_last_reader_counts_and_may_come_again() {
    let mailbox = Arc::new(Mailbox::keeping(Instant::now(), Duration::from_secs(3600)));
    assert!(!mailbox.is_closed(), "nobody has come yet");
    post(&mailbox, 1, "x");
    let (mut first, _) = ticket(&mailbox, 0);
    let waiting = first.next().now_or_never();
    assert!(waiting.is_some());
    let mut waiting = Box::pin(first.next());
    assert!(waiting.as_mut().now_or_never().is_none());
    let (mut second, _) = ticket(&mailbox, 0);
    let end = waiting.as_mut().now_or_never().flatten().and_then(|update| update.finish);
    assert_eq!(end, Some(replaced()), "the first reader is told");
    drop(waiting);
    drop(first);
    assert_eq!(now(&mut second), Some((vec![1], "x".to_owned())));
    mailbox.post(|update| update.finish = Some(Finish::Length));
    drop(second);
    // The end is not lost with the reader that was to get it.
    let (mut third, _) = ticket(&mailbox, 1);
    assert_eq!(third.next().now_or_never().flatten().and_then(|update| update.finish), Some(Finish::Length));
    assert!(!mailbox.is_closed());
    drop(third);
    let gone = Arc::new(Mailbox::keeping(Instant::now(), Duration::ZERO));
    assert!(gone.is_closed(), "nobody has read and nobody is waited for");
}

#[test]
fn a_reader_spells_what_it_took_without_the_lock() {
    let text = crate::text::Text::default();
    let words = text.encode(" ship load", false).unwrap();
    let (mut news, mut spelling) = (News::default(), Spelling::default());
    news.read_by(text.stream(true));
    words.iter().for_each(|word| news.deposit(*word));
    let mut update = news.take(&mut spelling).unwrap();
    assert_eq!((update.ids.as_slice(), update.text.as_str()), (words.as_slice(), ""));
    spelling.spell(&mut update);
    assert_eq!(update.text, " ship load");
    // Each token is spelt once.
    news.deposit(words[0]);
    let mut update = news.take(&mut spelling).unwrap();
    spelling.spell(&mut update);
    assert_eq!(update.text, " ship");
}
