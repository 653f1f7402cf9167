//! The funnel's figures: layers, what is lost between them and by what, and who they are about.

use plimsoll_core::Class;
use std::ops::{AddAssign, Index};
use std::sync::Arc;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$each])* $variant),+ }

        impl $name {
            pub const ALL: [$name; [$($name::$variant),+].len()] = [$($name::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// Prompt tokens, and how many of them each layer has cached.
    Layer {
        /// All of the prompt: the denominator.
        Prompt = "prompt",
        /// Seen before in the window.
        Ceiling = "ceiling",
        /// Held by one LRU cache as large as all ranks' together.
        Entrance = "entrance",
        /// Held by the chosen rank, were it an LRU cache of its size.
        Placed = "placed",
        /// Reported by the engine.
        Actual = "actual",
    }
}

words! {
    /// Why a layer has less than the one above it.
    Loss {
        /// Ceiling to entrance: it was seen, and there is no room for it.
        Capacity = "capacity",
        /// Entrance to placed: another rank had more.
        CrossInstance = "cross_instance",
        /// Entrance to placed: no rank had it; one pool of their size would have. Many small caches, and copies in them.
        Partition = "partition",
        /// Entrance to placed, of a second attempt: the first choice had failed.
        Retry = "retry",
        /// Placed to actual: the engine's events had said that it was gone.
        Evicted = "evicted",
        /// Placed to actual: the events said it was there, the answer said it was not.
        StaleView = "stale_view",
        /// Placed to actual: a request with the same prefix was still on its way there.
        InFlight = "in_flight",
        /// Placed to actual: the engine tells nothing, or is not believed.
        Unknown = "unknown",
    }
}

words! {
    /// Why a layer has more than the one above it.
    Gain {
        /// Placed above entrance: ranks of their own kept what one LRU would have given up.
        Partition = "partition",
        /// Actual above placed: the engine holds more than the model of it.
        AboveModel = "above_model",
    }
}

words! {
    /// Why a request is in none of the layers.
    Unmeasured {
        /// Its token ids are not known, or blocks of its kind have no names here.
        NoTokenIds = "no_token_ids",
        /// Nobody says how much the chosen rank can hold.
        NoCapacity = "no_capacity",
        /// It did not end well.
        NotCompleted = "not_completed",
        /// The answer did not say how many tokens were cached.
        NotReported = "not_reported",
        /// The funnel could not keep up or remember it.
        Overflow = "overflow",
    }
}

/// Who a figure is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CellKey {
    pub class: Class,
    pub tenant: Arc<str>,
}

/// Figures of one kind of request, in tokens. All layers are of the same requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub requests: u64,
    /// Requests of which the engine had at least a block more than the model.
    pub above_model: u64,
    pub(super) layers: [u64; Layer::ALL.len()],
    pub(super) losses: [u64; Loss::ALL.len()],
    pub(super) gains: [u64; Gain::ALL.len()],
    /// Reported tokens by tier: device, host, storage; of those answers that say so.
    pub tiers: [u64; 3],
}

impl Sums {
    pub(super) fn count(&mut self, layer: Layer, tokens: u64) {
        self.layers[layer as usize] += tokens;
    }

    pub(super) fn lose(&mut self, loss: Loss, tokens: u64) {
        self.losses[loss as usize] += tokens;
    }

    pub(super) fn gain(&mut self, gain: Gain, tokens: u64) {
        self.gains[gain as usize] += tokens;
    }

    /// Share of the prompts' tokens. `None` before there were any.
    #[must_use]
    pub fn rate(&self, layer: Layer) -> Option<f64> {
        let prompt = self[Layer::Prompt];
        (prompt > 0).then(|| self[layer] as f64 / prompt as f64)
    }

    /// Every layer's difference to the next one is what its causes sum up to.
    ///
    /// # Errors
    /// Says where that is not so.
    pub fn check(&self) -> Result<(), String> {
        let step = |from: Layer, to: Layer, losses: &[Loss], gain: Option<Gain>| {
            let lost: u64 = losses.iter().map(|loss| self[*loss]).sum();
            let gained = gain.map_or(0, |gain| self[gain]);
            if self[from] + gained == self[to] + lost {
                Ok(())
            } else {
                Err(format!("{from:?} {} + {gained} is not {to:?} {} + {lost}", self[from], self[to]))
            }
        };
        step(Layer::Ceiling, Layer::Entrance, &[Loss::Capacity], None)?;
        let choice = [Loss::CrossInstance, Loss::Partition, Loss::Retry];
        step(Layer::Entrance, Layer::Placed, &choice, Some(Gain::Partition))?;
        let engine = [Loss::Evicted, Loss::StaleView, Loss::InFlight, Loss::Unknown];
        step(Layer::Placed, Layer::Actual, &engine, Some(Gain::AboveModel))?;
        if self[Layer::Ceiling] < self[Layer::Placed] || self[Layer::Prompt] < self[Layer::Ceiling] {
            return Err("the ceiling is not above all layers".to_owned());
        }
        Ok(())
    }
}

impl Index<Layer> for Sums {
    type Output = u64;
    fn index(&self, layer: Layer) -> &u64 {
        &self.layers[layer as usize]
    }
}

impl Index<Loss> for Sums {
    type Output = u64;
    fn index(&self, loss: Loss) -> &u64 {
        &self.losses[loss as usize]
    }
}

impl Index<Gain> for Sums {
    type Output = u64;
    fn index(&self, gain: Gain) -> &u64 {
        &self.gains[gain as usize]
    }
}

impl AddAssign<&Sums> for Sums {
    fn add_assign(&mut self, more: &Sums) {
        self.requests += more.requests;
        self.above_model += more.above_model;
        let pairs = self.layers.iter_mut().zip(&more.layers);
        let pairs = pairs.chain(self.losses.iter_mut().zip(&more.losses));
        let pairs = pairs.chain(self.gains.iter_mut().zip(&more.gains)).chain(self.tiers.iter_mut().zip(&more.tiers));
        for (sum, more) in pairs {
            *sum += more;
        }
    }
}
