//! Under the policy `priority`: an important request does not wait for unimportant ones that run.
//!
//! SGLang's rule: the difference must be strictly above a threshold, the least important go first, and no more of them
//! than needed. They wait again and are recomputed. Nobody is pushed aside in vain: when even all who may be would not
//! make room, all stay.

use super::Scheduler;

impl Scheduler {
    /// Preempts running sequences until the first of the queue has a place and, as far as can be told before, `pages` more
    /// than there are now. False, and nothing done, when that cannot be had.
    pub(super) fn displace(&mut self, pages: usize) -> bool {
        let Some(next) = self.waiting.first() else { return false };
        let (mut victims, mut freed) = (0, 0);
        let places = |victims: usize| self.running.len() + self.reserved_places - victims < self.limits.max_running;
        for running in self.running.iter().rev() {
            if places(victims) && freed >= pages && victims > 0 {
                break;
            }
            if !self.order.may_displace(next, running) {
                break;
            }
            victims += 1;
            // Its pages, and the one that was kept free for its growth.
            freed += running.pages.len() + 1;
        }
        if victims == 0 || !places(victims) || freed < pages {
            return false;
        }
        for _ in 0..victims {
            self.preempt_last();
        }
        true
    }
}
