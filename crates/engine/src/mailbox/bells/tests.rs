use super::*;
use crate::mailbox::{Ticket, Update};
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

fn mailboxes(count: usize) -> Vec<Arc<Mailbox>> {
    std::iter::repeat_with(Arc::default).take(count).collect()
}

fn post(bells: &Bells, mailboxes: &[Arc<Mailbox>], token: u32) {
    let mut round = Round::default();
    for mailbox in mailboxes {
        mailbox.put(|update| update.ids.push(token));
        round.note(mailbox);
    }
    bells.ring(&mut round);
    assert!(round.0.is_empty());
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
fn a_step_wakes_one_task_and_that_wakes_every_reader() {
    let (bells, boxes) = (Bells::default(), mailboxes(40));
    let (ringer, reader) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let mut ringing = pin!(bells.ringing());
    assert!(ringer.poll(ringing.as_mut()).is_pending());
    let mut tickets: Vec<Ticket> = boxes.iter().cloned().map(Ticket::bare).collect();
    let waiting = wait(&reader, &mut tickets);
    post(&bells, &boxes, 7);
    assert_eq!((ringer.woken(), reader.woken()), (1, 0));
    assert!(ringer.poll(ringing.as_mut()).is_pending());
    assert_eq!((ringer.woken(), reader.woken()), (1, 40));
    for mut next in waiting {
        let Poll::Ready(Some(update)) = reader.poll(next.as_mut()) else { panic!("nothing was there") };
        assert_eq!(update.ids, [7]);
    }
}

#[test]
fn what_waits_for_the_task_is_bounded_by_the_mailboxes_and_loses_nothing() {
    let (bells, boxes) = (Bells::default(), mailboxes(3));
    let ringer = Arc::new(Counter::default());
    let mut ringing = pin!(bells.ringing());
    let mut tickets: Vec<Ticket> = boxes.iter().cloned().map(Ticket::bare).collect();
    let mut expected = Vec::new();
    for token in 0..1000 {
        post(&bells, &boxes, token);
        expected.push(token);
        assert_eq!(bells.due(), 3);
    }
    // One is read before its bell, as by a reader that looks for another reason: nothing twice.
    assert_eq!(read(&mut tickets[0]), expected);
    assert!(ringer.poll(ringing.as_mut()).is_pending());
    assert_eq!(bells.due(), 0);
    assert_eq!(tickets.iter_mut().map(read).collect::<Vec<_>>(), [Vec::new(), expected.clone(), expected]);
    post(&bells, &boxes, 1000);
    assert_eq!(bells.due(), 3, "rung once, noted again");
}

#[test]
fn without_a_task_or_after_it_the_step_loop_rings() {
    let (bells, boxes) = (Bells::default(), mailboxes(2));
    let reader = Arc::new(Counter::default());
    let mut tickets: Vec<Ticket> = boxes.iter().cloned().map(Ticket::bare).collect();
    let waiting = wait(&reader, &mut tickets);
    post(&bells, &boxes, 1);
    assert_eq!(reader.woken(), 2);
    drop(waiting);
    tickets.iter_mut().for_each(|ticket| assert_eq!(read(ticket), [1]));
    let ringing = bells.ringing();
    let _waiting = wait(&reader, &mut tickets);
    post(&bells, &boxes, 2);
    assert_eq!(reader.woken(), 2, "left to the task");
    drop(ringing);
    assert_eq!((reader.woken(), bells.due()), (4, 0), "the task ended before it had its turn");
    post(&bells, &boxes, 3);
    assert_eq!(bells.due(), 0);
}

#[test]
fn one_reader_alone_is_woken_without_a_detour() {
    let (bells, boxes) = (Bells::default(), mailboxes(1));
    let _ringing = bells.ringing();
    let reader = Arc::new(Counter::default());
    let mut tickets = [Ticket::bare(Arc::clone(&boxes[0]))];
    let _waiting = wait(&reader, &mut tickets);
    post(&bells, &boxes, 1);
    assert_eq!((reader.woken(), bells.due()), (1, 0));
}
