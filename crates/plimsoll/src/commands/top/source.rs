//! Asks a gateway's operators' address.

use super::Sample;
use crate::Failure;
use http::Method;
use plimsoll_pools::http::{Endpoint, EndpointOptions, Key};
use std::time::{Duration, Instant};

/// Longest wait for one answer, and its largest size.
const PATIENCE: Duration = Duration::from_secs(3);
const MOST_BYTES: usize = 64 << 20;

pub(super) struct Source {
    endpoint: Endpoint,
}

impl Source {
    pub(super) fn new(admin: &str, token: Option<String>) -> Result<Source, Failure> {
        let options = EndpointOptions { connect_timeout: PATIENCE, api_key: token, ..EndpointOptions::default() };
        let endpoint = Endpoint::new(admin, options)
            .map_err(|error| Failure::usage(error).hint("`--admin` is a URL such as http://127.0.0.1:9090"))?;
        Ok(Source { endpoint })
    }

    pub(super) fn url(&self) -> &str {
        self.endpoint.url()
    }

    /// Everything as of now.
    pub(super) async fn look(&self) -> Result<Sample, Failure> {
        let metrics = self.get("/metrics").await?;
        let engines = self.get("/admin/engines").await?;
        let engines = serde_json::from_slice(&engines).map_err(|error| {
            Failure::failed(format!("{} answered something that is no JSON: {error}", self.endpoint.url()))
        })?;
        Ok(Sample::read(&String::from_utf8_lossy(&metrics), &engines, Instant::now()))
    }

    async fn get(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let url = self.endpoint.url();
        let answer = self.endpoint.call(Method::GET, path, None, Key::Inference, PATIENCE, MOST_BYTES).await.map_err(
            |error| {
                Failure::failed(format!("no answer from {url}: {error}"))
                    .hint("is the gateway running? `--admin` names its operators' address")
            },
        )?;
        match answer.status.as_u16() {
            200 => Ok(answer.body.to_vec()),
            401 => Err(Failure::failed(format!("{url} wants a token, or another one"))
                .hint("give `--admin-token`, or set PLIMSOLL_ADMIN__TOKEN")),
            status => Err(Failure::failed(format!("{url}{path} answered {status}"))
                .hint("`--admin` must be the operators' address, not the clients'")),
        }
    }
}
