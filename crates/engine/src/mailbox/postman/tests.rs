use super::*;
use crate::mailbox::{Ticket, Update};
use crate::request::Finish;
use crate::text::Text;
use futures_util::FutureExt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

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

/// An alarm whose clock stands where the test puts it.
#[derive(Clone)]
struct Hand(Arc<Mutex<(Instant, Option<Instant>)>>);

impl Hand {
    fn pass(&self, time: Duration) -> Instant {
        let mut clock = self.0.lock();
        clock.0 += time;
        clock.0
    }

    fn is_set_to(&self) -> Option<Instant> {
        self.0.lock().1
    }
}

impl Alarm for Hand {
    fn now(&self) -> Instant {
        self.0.lock().0
    }

    fn set(&mut self, at: Instant) -> bool {
        self.0.lock().1 = Some(at);
        true
    }

    async fn rings(&mut self) {
        std::future::poll_fn(|_| {
            let mut clock = self.0.lock();
            let rings = clock.1.is_some_and(|at| at <= clock.0);
            clock.1 = clock.1.filter(|_| !rings);
            if rings { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

const STEP: Duration = Duration::from_millis(8);
const TOKENS_BEFORE: u32 = 40;

/// Two readers, and a task that has seen so many even steps.
struct Even<F> {
    bag: Bag,
    boxes: Vec<Address>,
    tickets: Vec<Ticket>,
    task: Arc<Counter>,
    hand: Hand,
    delivering: Pin<Box<F>>,
}

impl Even<()> {
    fn new() -> Even<impl Future<Output = ()>> {
        let (bag, boxes) = (Bag::default(), addresses(2));
        let hand = Hand(Arc::new(Mutex::new((Instant::now(), None))));
        let alarm = hand.clone();
        let delivering = Box::pin(bag.postman().delivering_by(move || Some(alarm)));
        let tickets = boxes.iter().map(Address::ticket).collect();
        let mut even = Even { bag, boxes, tickets, task: Arc::default(), hand, delivering };
        for token in 0..TOKENS_BEFORE {
            even.next_step();
            even.post(token);
            // Woken or not, now it has looked.
            even.hand.pass(rhythm::LONGEST_WAIT);
            even.turn();
        }
        even.tickets.iter_mut().for_each(|ticket| assert_eq!(read(ticket).len(), TOKENS_BEFORE as usize));
        even
    }
}

impl<F: Future<Output = ()>> Even<F> {
    /// How often that woke the task.
    fn post(&mut self, token: u32) -> usize {
        let before = self.task.woken();
        for address in &mut self.boxes {
            self.bag.token(&mut address.slot, &address.mailbox, token);
        }
        self.bag.hand_over_at(self.hand.now());
        self.task.woken() - before
    }

    /// To the end of the step that is expected.
    fn next_step(&mut self) {
        self.hand.pass(STEP - rhythm::LONGEST_WAIT);
    }

    fn turn(&mut self) {
        assert!(self.task.poll(self.delivering.as_mut()).is_pending());
    }

    fn read(&mut self) -> Vec<Vec<u32>> {
        self.tickets.iter_mut().map(read).collect()
    }
}

#[test]
fn a_task_that_comes_by_itself_is_not_woken() {
    let mut even = Even::new();
    let look = even.hand.is_set_to().unwrap();
    even.next_step();
    assert_eq!(even.post(7), 0);
    assert!(look > even.hand.now() && look <= even.hand.now() + rhythm::LONGEST_WAIT);
    even.turn();
    assert_eq!(even.read(), [[0; 0]; 2], "not before");
    even.hand.pass(rhythm::LONGEST_WAIT);
    even.turn();
    assert_eq!(even.read(), [[7], [7]]);
    assert!(even.hand.is_set_to().is_some_and(|next| next > look), "and for the next one again");
}

#[test]
fn a_bag_that_comes_early_or_late_is_delivered_at_once() {
    let mut even = Even::new();
    even.hand.pass(STEP / 2);
    assert_eq!(even.post(7), 1);
    even.turn();
    assert_eq!(even.read(), [[7], [7]]);
    // It comes in vain, and then waits to be woken.
    let mut even = Even::new();
    let mut looks = 0;
    while let Some(look) = even.hand.is_set_to() {
        even.hand.pass(look - even.hand.now());
        even.turn();
        looks += 1;
        assert!(looks < 10);
    }
    assert!(looks > 0);
    even.turn();
    assert_eq!((even.hand.is_set_to(), even.post(8)), (None, 1));
    even.turn();
    assert_eq!(even.read(), [[8], [8]]);
}

#[test]
fn an_alarm_that_does_not_ring_is_not_relied_on() {
    let mut even = Even::new();
    // The task has no turn, and was not woken for the first of these.
    even.next_step();
    assert_eq!(even.post(7), 0);
    even.hand.pass(STEP);
    assert_eq!(even.post(8), 1);
    even.turn();
    assert_eq!(even.read(), [[7, 8], [7, 8]]);
}

#[test]
fn a_bag_that_comes_while_the_task_delivers_waits_for_no_alarm() {
    let mut even = Even::new();
    even.next_step();
    assert_eq!(even.post(7), 0);
    // Half of the task's turn: it has taken the bag and not yet said when it comes next.
    even.bag.postman.deliver();
    assert_eq!(even.post(8), 1);
    even.turn();
    assert_eq!(even.read(), [[7, 8], [7, 8]]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_timer_rings_once_when_it_was_last_set_to() {
    let mut timer = Timer::new().expect("a timer");
    let begun = timer.now();
    assert!(timer.set(begun + Duration::from_secs(3600)) && timer.set(begun + Duration::from_millis(20)));
    timer.rings().await;
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert!(timer.set(begun), "what has passed rings at once");
    timer.rings().await;
    assert!(timer.set(begun));
    // It has rung, and is set anew before anybody heard.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(timer.set(timer.now() + Duration::from_secs(3600)));
    assert!(tokio::time::timeout(Duration::from_millis(50), timer.rings()).await.is_err());
}
