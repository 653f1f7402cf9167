//! Sets of holders: few as a list, many as bits.
//!
//! Most edges are held by one or two, a shared system prompt by the whole fleet; both have to be small and quick to
//! intersect.

use smallvec::SmallVec;

/// Who holds something: a place in the owner's table of (instance, DP rank, tier).
pub type Holder = u16;

/// Bits by holder; grows to the largest one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(SmallVec<[u64; 16]>);

impl Bits {
    #[must_use]
    pub fn contains(&self, holder: Holder) -> bool {
        self.0.get(usize::from(holder) / 64).is_some_and(|word| word >> (holder % 64) & 1 == 1)
    }

    pub fn insert(&mut self, holder: Holder) {
        let word = usize::from(holder) / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (holder % 64);
    }

    pub fn remove(&mut self, holder: Holder) {
        if let Some(word) = self.0.get_mut(usize::from(holder) / 64) {
            *word &= !(1 << (holder % 64));
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = Holder> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    (at * 64) as Holder + bit as Holder
                })
            })
        })
    }

    /// Keeps those that `other` has too, and returns those it has not.
    pub(super) fn split(&mut self, other: &Holders) -> Bits {
        let mut gone = Bits::default();
        match other {
            Holders::Many(other) => {
                for (at, word) in self.0.iter_mut().enumerate() {
                    let both = *word & other.0.get(at).copied().unwrap_or(0);
                    if both != *word {
                        gone.0.resize(at + 1, 0);
                        gone.0[at] = *word & !both;
                        *word = both;
                    }
                }
            }
            Holders::Few(few) => {
                let kept: SmallVec<[Holder; 4]> = few.iter().copied().filter(|holder| self.contains(*holder)).collect();
                std::mem::swap(self, &mut gone);
                for holder in kept {
                    self.insert(holder);
                    gone.remove(holder);
                }
            }
        }
        gone
    }
}

/// The holders of one edge.
#[derive(Clone, Debug)]
pub(super) enum Holders {
    Few(SmallVec<[Holder; 4]>),
    Many(Box<Bits>),
}

/// A longer list becomes bits.
const FEW: usize = 8;

impl Default for Holders {
    fn default() -> Self {
        Holders::Few(SmallVec::new())
    }
}

impl Holders {
    pub(super) fn one(holder: Holder) -> Self {
        Holders::Few(SmallVec::from_slice(&[holder]))
    }

    pub(super) fn contains(&self, holder: Holder) -> bool {
        match self {
            Holders::Few(few) => few.contains(&holder),
            Holders::Many(bits) => bits.contains(holder),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Holders::Few(few) => few.is_empty(),
            Holders::Many(bits) => bits.is_empty(),
        }
    }

    /// Nobody else is in it.
    pub(super) fn is_only(&self, holder: Holder) -> bool {
        match self {
            Holders::Few(few) => few.as_slice() == [holder],
            Holders::Many(bits) => bits.len() == 1 && bits.contains(holder),
        }
    }

    pub(super) fn insert(&mut self, holder: Holder) {
        match self {
            Holders::Few(few) => {
                if few.contains(&holder) {
                    return;
                }
                if few.len() < FEW {
                    few.push(holder);
                    return;
                }
                let mut bits = self.bits();
                bits.insert(holder);
                *self = Holders::Many(Box::new(bits));
            }
            Holders::Many(bits) => bits.insert(holder),
        }
    }

    /// False when it was not in.
    pub(super) fn remove(&mut self, holder: Holder) -> bool {
        match self {
            Holders::Few(few) => {
                let at = few.iter().position(|held| *held == holder);
                at.map(|at| few.swap_remove(at)).is_some()
            }
            Holders::Many(bits) => {
                let was = bits.contains(holder);
                bits.remove(holder);
                if bits.len() <= FEW / 2 {
                    *self = Holders::Few(bits.iter().collect());
                }
                was
            }
        }
    }

    pub(super) fn bits(&self) -> Bits {
        match self {
            Holders::Few(few) => {
                let mut bits = Bits::default();
                for holder in few {
                    bits.insert(*holder);
                }
                bits
            }
            Holders::Many(bits) => (**bits).clone(),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Holders::Few(few) if few.spilled() => few.capacity() * size_of::<Holder>(),
            Holders::Few(_) => 0,
            Holders::Many(bits) => size_of::<Bits>() + if bits.0.spilled() { bits.0.capacity() * 8 } else { 0 },
        }
    }
}
