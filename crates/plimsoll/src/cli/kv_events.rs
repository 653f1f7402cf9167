//! Flags of the built-in engine's KV event stream: SGLang's one JSON argument, or flags for its usual parts.

use clap::Args;
use plimsoll_engine::kv_events::KvEventsConfig;
use plimsoll_engine::kv_events::config::{Format, Publisher};

#[cfg(test)]
mod tests;

#[derive(Clone, Debug, Default, Args)]
pub struct KvEventsArgs {
    /// Publish KV events, configured by the JSON of SGLang's flag of this name
    #[arg(long, value_name = "JSON")]
    pub kv_events_config: Option<String>,
    /// Publish KV events on this address: rank r on the port + r, port 0 takes free ones
    #[arg(long, value_name = "tcp://HOST:PORT")]
    pub kv_events_endpoint: Option<String>,
    /// Answer requests for missed batches of KV events here
    #[arg(long, value_name = "tcp://HOST:PORT")]
    pub kv_events_replay_endpoint: Option<String>,
    /// Topic of KV events
    #[arg(long, value_name = "TEXT")]
    pub kv_events_topic: Option<String>,
    /// Batches kept for the replay [default: 10000]
    #[arg(long, value_name = "N")]
    pub kv_events_buffer_steps: Option<usize>,
    /// How KV events are named and written: `default` (SGLang 0.5.20 and later), `dynamo`, `sglang-array` (SGLang up
    /// to 0.5.18) or `vllm`
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub kv_events_format: Option<Format>,
}

fn format(text: &str) -> Result<Format, String> {
    serde_json::from_value(text.into()).map_err(|_| "use default, dynamo, sglang-array or vllm".to_owned())
}

impl KvEventsArgs {
    /// The configuration; the single flags stand over the JSON. `None`: nothing is published.
    ///
    /// # Errors
    /// When the JSON is wrong, or flags are given and nothing says where to publish.
    pub fn config(self) -> Result<Option<KvEventsConfig>, String> {
        let json = match &self.kv_events_config {
            Some(text) => KvEventsConfig::from_json(text).map_err(|error| format!("--kv-events-config: {error}"))?,
            None => None,
        };
        let others = self.kv_events_replay_endpoint.is_some()
            || self.kv_events_topic.is_some()
            || self.kv_events_buffer_steps.is_some()
            || self.kv_events_format.is_some();
        let mut config = match (json, &self.kv_events_endpoint) {
            (Some(config), _) => config,
            (None, Some(_)) => KvEventsConfig { publisher: Publisher::Zmq, ..KvEventsConfig::default() },
            (None, None) if others => {
                return Err("KV events have no --kv-events-endpoint to be published on".to_owned());
            }
            (None, None) => return Ok(None),
        };
        if let Some(endpoint) = self.kv_events_endpoint {
            config.endpoint = endpoint;
            // Whoever names an address here means to listen on it.
            config.bind = Some(true);
        }
        config.replay_endpoint = self.kv_events_replay_endpoint.or(config.replay_endpoint);
        config.topic = self.kv_events_topic.unwrap_or(config.topic);
        config.buffer_steps = self.kv_events_buffer_steps.unwrap_or(config.buffer_steps);
        config.format = self.kv_events_format.unwrap_or(config.format);
        config.check()?;
        Ok(Some(config))
    }
}
