use super::*;
use crate::mailbox::{Ticket, Update};
use crate::request::Finish;
use crate::text::Text;
use futures_util::FutureExt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Counts how often it was woken.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn poll<F: Future>(self: &Arc<Self>, future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    fn woken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a sequence has of its mailbox.
#[derive(Default)]
struct Address {
    slot: Option<Slot>,
    mailbox: Arc<Mailbox>,
}

impl Address {
    fn ticket(&self) -> Ticket {
        Ticket::bare(Arc::clone(&self.mailbox))
    }
}

fn addresses(count: usize) -> Vec<Address> {
    std::iter::repeat_with(Address::default).take(count).collect()
}

fn post(bag: &mut Bag, addresses: &mut [Address], token: u32) {
    for address in addresses {
        bag.token(&mut address.slot, &address.mailbox, token);
    }
    bag.hand_over();
    assert_eq!(bag.news, 0);
}

fn read(ticket: &mut Ticket) -> Vec<u32> {
    ticket.next().now_or_never().flatten().map(|Update { ids, .. }| ids).unwrap_or_default()
}

/// What readers do that have read everything.
fn wait<'a>(
    reader: &Arc<Counter>,
    tickets: &'a mut [Ticket],
) -> Vec<Pin<Box<impl Future<Output = Option<Update>> + use<'a>>>> {
    let mut waiting: Vec<_> = tickets.iter_mut().map(|ticket| Box::pin(ticket.next())).collect();
    waiting.iter_mut().for_each(|next| assert!(reader.poll(next.as_mut()).is_pending()));
    waiting
}

#[test]
fn a_step_wakes_one_task_and_that_serves_every_reader() {
    let (mut bag, mut boxes) = (Bag::default(), addresses(40));
    let (task, reader) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let mut delivering = pin!(bag.postman().delivering());
    assert!(task.poll(delivering.as_mut()).is_pending());
    let mut tickets: Vec<Ticket> = boxes.iter().map(Address::ticket).collect();
    let waiting = wait(&reader, &mut tickets);
    post(&mut bag, &mut boxes, 7);
    assert_eq!((task.woken(), reader.woken()), (1, 0));
    assert!(task.poll(delivering.as_mut()).is_pending());
    assert_eq!((task.woken(), reader.woken()), (1, 40));
    for mut next in waiting {
        let Poll::Ready(Some(update)) = reader.poll(next.as_mut()) else { panic!("nothing was there") };
        assert_eq!(update.ids, [7]);
    }
}

#[test]
fn a_task_that_does_not_run_costs_bounded_memory_and_loses_nothing() {
    let (mut bag, mut boxes) = (Bag::default(), addresses(3));
    let mut delivering = pin!(bag.postman().delivering());
    let task = Arc::new(Counter::default());
    assert!(task.poll(delivering.as_mut()).is_pending());
    let mut tickets: Vec<Ticket> = boxes.iter().map(Address::ticket).collect();
    let expected: Vec<u32> = (0..MOST_WAITING as u32).collect();
    for token in &expected {
        post(&mut bag, &mut boxes, *token);
        assert!(bag.postman.due() < MOST_WAITING);
    }
    assert!(bag.postman.due() > 0, "some wait for the task");
    // The step loop has delivered some by itself; what the task has comes behind them.
    let early: Vec<_> = tickets.iter_mut().map(read).collect();
    assert!(task.poll(delivering.as_mut()).is_pending());
    assert_eq!(bag.postman.due(), 0);
    for (early, ticket) in early.into_iter().zip(&mut tickets) {
        assert!(!early.is_empty());
        assert_eq!([early, read(ticket)].concat(), expected);
    }
}

#[test]
fn without_a_task_or_after_it_the_step_loop_delivers() {
    let (mut bag, mut boxes) = (Bag::default(), addresses(2));
    let reader = Arc::new(Counter::default());
    let mut tickets: Vec<Ticket> = boxes.iter().map(Address::ticket).collect();
    let waiting = wait(&reader, &mut tickets);
    post(&mut bag, &mut boxes, 1);
    assert_eq!(reader.woken(), 2);
    drop(waiting);
    tickets.iter_mut().for_each(|ticket| assert_eq!(read(ticket), [1]));
    let delivering = bag.postman().delivering();
    let _waiting = wait(&reader, &mut tickets);
    post(&mut bag, &mut boxes, 2);
    assert_eq!(reader.woken(), 2, "left to the task");
    drop(delivering);
    assert_eq!((reader.woken(), bag.postman.due()), (4, 0), "the task ended before it had its turn");
    post(&mut bag, &mut boxes, 3);
    assert_eq!(bag.postman.due(), 0);
}

#[test]
fn one_token_alone_makes_no_detour_but_overtakes_nobody() {
    let (mut bag, mut boxes) = (Bag::default(), addresses(2));
    let _delivering = bag.postman().delivering();
    let reader = Arc::new(Counter::default());
    let mut tickets = [boxes[0].ticket()];
    let waiting = wait(&reader, &mut tickets);
    post(&mut bag, &mut boxes[..1], 1);
    assert_eq!((reader.woken(), bag.postman.due()), (1, 0));
    drop(waiting);
    assert_eq!(read(&mut tickets[0]), [1]);
    post(&mut bag, &mut boxes, 2);
    post(&mut bag, &mut boxes[..1], 3);
    assert_eq!(read(&mut tickets[0]), [0; 0]);
    bag.postman.deliver();
    assert_eq!(read(&mut tickets[0]), [2, 3]);
}

#[test]
fn a_slot_that_is_used_again_mixes_nobodys_tokens() {
    let mut bag = Bag::default();
    let delivering = bag.postman().delivering();
    let (mut first, mut other) = (Address::default(), Address::default());
    let (mut one, mut two) = (first.ticket(), other.ticket());
    bag.token(&mut first.slot, &first.mailbox, 1);
    bag.token(&mut first.slot, &first.mailbox, 2);
    // It ends, and before anything of it is on the way another one begins.
    let weak = Arc::downgrade(&first.mailbox);
    drop(first.slot.take());
    bag.token(&mut other.slot, &other.mailbox, 3);
    bag.hand_over();
    let mut third = Address::default();
    let mut three = third.ticket();
    bag.token(&mut third.slot, &third.mailbox, 4);
    bag.token(&mut other.slot, &other.mailbox, 5);
    assert_eq!(third.slot.as_ref().map(|slot| slot.number), Some(0), "the first one's slot");
    bag.hand_over();
    bag.postman.deliver();
    assert_eq!([read(&mut one), read(&mut two), read(&mut three)], [vec![1, 2], vec![3, 5], vec![4]]);
    drop((first, one, delivering));
    assert!(weak.upgrade().is_none(), "nobody holds the mailbox of a request that is over");
}

#[test]
fn an_end_that_overtakes_its_tokens_waits_for_them() {
    let mut bag = Bag::default();
    let _delivering = bag.postman().delivering();
    let mut address = Address::default();
    let mut ticket = address.ticket();
    for token in 0..3 {
        bag.token(&mut address.slot, &address.mailbox, token);
    }
    let stop = Finish::Abort { message: "Aborted".to_owned(), status: None };
    address.mailbox.end(3, stop.clone(), None);
    address.mailbox.end(3, Finish::Length, None);
    assert!(ticket.next().now_or_never().is_none());
    // Even a bag that is only dropped.
    drop(bag);
    let update = ticket.next().now_or_never().flatten().unwrap();
    assert_eq!((update.ids, update.finish), (vec![0, 1, 2], Some(stop)));
}

#[test]
fn text_is_made_when_it_is_read_and_the_last_token_may_be_none() {
    let text = Text::default();
    let word = text.encode(" ship", false).unwrap();
    // Half a character: bytes of the tokenizer stand for themselves.
    let half = text.encode("é", false).unwrap()[0];
    for (finish, shown) in [
        (Finish::StopToken(half), " ship"),
        (Finish::Length, " ship\u{fffd}"),
        (Finish::Abort { message: String::new(), status: None }, " ship"),
    ] {
        let mut bag = Bag::default();
        let mut address = Address::default();
        let mut ticket = address.ticket();
        address.mailbox.read_by(text.stream(true));
        for token in word.iter().chain([&half]) {
            bag.token(&mut address.slot, &address.mailbox, *token);
        }
        address.mailbox.end(word.len() + 1, finish.clone(), None);
        bag.hand_over();
        let update = ticket.next().now_or_never().flatten().unwrap();
        assert_eq!((update.text.as_str(), update.finish), (shown, Some(finish)));
    }
}
