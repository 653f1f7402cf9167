//! Settings of the KV event stream: SGLang's `--kv-events-config`, so that a configuration carries over.

use super::encode::Form;
use super::names::Scheme;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The JSON of SGLang's `--kv-events-config`, field by field, with its defaults. Unknown fields are refused, as there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvEventsConfig {
    pub publisher: Publisher,
    /// Where rank 0 publishes; rank *r* uses the port + *r*. Port 0 takes free ones.
    pub endpoint: String,
    /// Bind or connect the PUB socket. Unset: bind a wildcard, connect to anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<bool>,
    /// Where missed batches can be asked for; the port counts as in `endpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_endpoint: Option<String>,
    /// Batches kept for replay.
    pub buffer_steps: usize,
    /// Batches that may wait for one subscriber; further ones are dropped for it, and counted.
    pub hwm: usize,
    /// Batches that may wait for the sender; further ones are dropped for everybody, and counted.
    pub max_queue_size: usize,
    pub topic: String,
    pub format: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Publisher {
    #[default]
    Null,
    Zmq,
}

/// Names and bytes of the events. SGLang knows the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// SGLang 0.5.20 and later: tagged maps.
    #[default]
    #[serde(alias = "sglang")]
    Default,
    /// As SGLang's, with the namespace in every name.
    Dynamo,
    /// SGLang up to 0.5.18: arrays.
    SglangArray,
    /// vLLM's names and fields.
    Vllm,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        KvEventsConfig {
            publisher: Publisher::Null,
            endpoint: "tcp://*:5557".to_owned(),
            bind: None,
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
            format: Format::Default,
        }
    }
}

/// Most batches that any of the three bounds may name.
const MOST_BATCHES: usize = 10_000_000;
const MOST_TOPIC_BYTES: usize = 256;

impl KvEventsConfig {
    /// Reads the JSON. `None` for the publisher `null`.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn from_json(text: &str) -> Result<Option<Self>, String> {
        let config: KvEventsConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok((config.publisher == Publisher::Zmq).then_some(config))
    }

    /// # Errors
    /// Names the first setting that cannot work. Endpoints are judged when they are used.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in
            [("buffer_steps", self.buffer_steps), ("hwm", self.hwm), ("max_queue_size", self.max_queue_size)]
        {
            if !(1..=MOST_BATCHES).contains(&value) {
                return Err(format!("{name} is {value}: use 1 to {MOST_BATCHES}"));
            }
        }
        if self.topic.len() > MOST_TOPIC_BYTES {
            return Err(format!("topic has {} bytes: use at most {MOST_TOPIC_BYTES}", self.topic.len()));
        }
        Ok(())
    }

    /// How pages are named.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        match self.format {
            Format::Default | Format::SglangArray => Scheme::Sglang,
            Format::Dynamo => Scheme::Dynamo,
            Format::Vllm => Scheme::Vllm,
        }
    }

    /// How events are written.
    #[must_use]
    pub fn form(&self) -> Form {
        match self.format {
            Format::Default | Format::Dynamo => Form::SglangMap,
            Format::SglangArray => Form::SglangArray,
            Format::Vllm => Form::Vllm,
        }
    }
}
