//! What gateways before the same engines tell each other, over NATS. An adapter: it carries reports and decides nothing.
//!
//! **Why a plain subject and no stream or key-value bucket.** A report says what is true now and is said again a second later; an old one
//! is worth nothing. So nothing has to be stored, and a message that is lost is made good by the next. What a bucket with a time to live
//! would give beyond that, a list of who is alive, each gateway has by its own clock from what it hears, without trusting another machine's.
//! It needs no JetStream, no disk and no rights but to publish and subscribe to one subject. What it does not give: in a NATS cluster that has split in
//! two, gateways on either side hear themselves and not those on the other, take them for gone, and the fleet admits up to twice its
//! budget until the cluster is whole; a replicated bucket would have refused the smaller side. The water level shows such an overload, and the
//! quotas answer it.
//!
//! **What is promised to the caller.** A gateway hears its own reports (that is how it knows that the way works). Nothing waits without an end, nothing
//! grows without a bound: [`MOST_BYTES`] a report, `HELD` reports not yet read, `SENDING` not yet sent. Whatever comes on the subject that is no
//! report of sound numbers is told as [`Ignored`] and does nothing. Passwords are in no log line and no `Debug`. Where the connection ends it is made
//! again, at first at once and then at most a second apart, for as long as the link lives.
//!
//! Subject: `plimsoll.FLEET.demand`, so fleets that share a NATS do not hear each other.

mod link;
mod wire;

pub use link::{Config, Link, LinkError, Login};
pub use wire::{Ignored, MOST_BYTES, MOST_MODELS, MOST_NAME_BYTES};
