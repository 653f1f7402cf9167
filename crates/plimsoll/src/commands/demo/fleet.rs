//! The processes of the demo: engines, and a gateway before them.

use super::DemoArgs;
use super::children::Children;
use super::client::Client;
use super::process::Process;
use crate::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const READY_LIMIT: Duration = Duration::from_secs(60);
const WATCH_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Fleet {
    children: Children,
    gateway_url: String,
    admin_url: String,
    /// Instance id as in `x-plimsoll-engine` and the engine's address.
    ids: BTreeMap<String, String>,
    model: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// What the demo needs of `GET /admin/engines`.
#[derive(Deserialize)]
struct Engines {
    engines: Vec<Engine>,
}

#[derive(Deserialize)]
struct Engine {
    id: u32,
    url: String,
    /// Set when the gateway has probed it.
    capability: Option<serde::de::IgnoredAny>,
}

impl Fleet {
    /// Starts nothing yet.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Fleet {
            children: Children::new("demo")?,
            gateway_url: String::new(),
            admin_url: String::new(),
            ids: BTreeMap::new(),
            model: String::new(),
        })
    }

    /// Starts the engines and the gateway, and waits until it is ready for requests.
    pub(super) async fn start(&mut self, args: &DemoArgs) -> Result<(), Failure> {
        let count = args.engines;
        let begun = Instant::now();
        let folder = self.children.folder.clone();
        let mut starting = JoinSet::new();
        for n in 0..count {
            let folder = folder.clone();
            // It tells what its KV cache holds, so that the gateway can send a session's next turn where the last one is.
            let own_port = "tcp://127.0.0.1:0";
            let mut engine_args: Vec<String> = ["engine", "--listen", "127.0.0.1:0", "--kv-events-endpoint", own_port]
                .into_iter()
                .chain(["--kv-events-replay-endpoint", own_port])
                .map(str::to_owned)
                .collect();
            if let Some(tokens) = args.kv_tokens {
                engine_args.extend(["--kv-tokens".to_owned(), tokens.to_string()]);
            }
            starting
                .spawn(async move { (n, Process::start(&format!("engine {n}"), &engine_args, &[], &folder).await) });
        }
        // In order, so that an engine has the number here that the gateway gives it as id.
        let mut started = BTreeMap::new();
        while let Some(engine) = starting.join_next().await {
            let (n, engine) = engine.map_err(Failure::failed)?;
            started.insert(n, engine?);
        }
        self.children.engines = started.into_values().collect();
        let mut serve_args: Vec<String> =
            ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"].map(str::to_owned).into();
        for engine in &self.children.engines {
            serve_args.extend(["--engine".to_owned(), engine.listening.clone()]);
        }
        // The engines' tokenizer, so that the gateway knows the token ids of a chat.
        plimsoll_engine::text::Text::default().export(None, &self.children.folder).map_err(|error| {
            Failure::failed(format!("{}: cannot be written: {error}", self.children.folder.display()))
        })?;
        let model = plimsoll_engine::EngineConfig::default().model_name;
        let tokenizer = self.children.folder.display();
        serve_args.extend(["--set".to_owned(), format!("models[0].name={model}")]);
        serve_args.extend(["--set".to_owned(), format!("models[0].tokenizer={tokenizer}")]);
        if let Some(policy) = &args.policy {
            serve_args.extend(["--policy".to_owned(), policy.clone()]);
        }
        let gateway =
            Process::start("gateway", &serve_args, &self.children.gateway_env(), &self.children.folder).await?;
        let (data, admin) = addresses(&gateway.listening).ok_or_else(|| {
            Failure::failed(format!("the gateway's first line was not understood: {}", gateway.listening))
        })?;
        (self.gateway_url, self.admin_url) = (data, admin);
        self.children.gateway = Some(gateway);
        self.until_ready().await?;
        crate::output::note(&format!(
            "plimsoll demo: gateway on {} (admin {}), {count} engines, ready in {:.1} s",
            self.gateway_url,
            self.admin_url,
            begun.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn until_ready(&mut self) -> Result<(), Failure> {
        let (data, admin) = (Client::new(&self.gateway_url)?, Client::new(&self.admin_url)?);
        let begun = Instant::now();
        let mut reason = String::new();
        while begun.elapsed() < READY_LIMIT {
            match data.get("/readyz", None).await {
                Ok((200, _)) => {
                    if let Ok((200, models)) = data.get("/v1/models", None).await
                        && let Ok(models) = serde_json::from_slice::<Models>(&models)
                        && let Some(model) = models.data.into_iter().next()
                    {
                        self.model = model.id;
                        reason = match self.instances(&admin).await {
                            // The gateway is ready with the first engine; shares are fair only with all of them.
                            Ok((ids, 0)) => {
                                self.ids = ids;
                                return Ok(());
                            }
                            Ok((_, waiting)) => format!("{waiting} engines have not been probed"),
                            Err(error) => format!("/admin/engines: {error}"),
                        };
                    } else {
                        reason = "/v1/models lists no model".to_owned();
                    }
                }
                Ok((status, body)) => reason = format!("{status} {}", String::from_utf8_lossy(&body)),
                Err(error) => reason = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(Failure::failed(format!("the gateway was not ready within {} s: {reason}", READY_LIMIT.as_secs())))
    }

    /// Asks the gateway which id it gave to which engine, and how many it has not got to know yet.
    async fn instances(&self, admin: &Client) -> Result<(BTreeMap<String, String>, usize), String> {
        let (status, body) =
            admin.get("/admin/engines", Some(&self.children.admin_token)).await.map_err(|error| error.to_string())?;
        if status != 200 {
            return Err(format!("{status} {}", String::from_utf8_lossy(&body)));
        }
        let list: Engines = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let waiting = list.engines.iter().filter(|engine| engine.capability.is_none()).count();
        let url = |engine: &Engine| engine.url.trim_end_matches('/').to_owned();
        Ok((list.engines.iter().map(|engine| (engine.id.to_string(), url(engine))).collect(), waiting))
    }

    pub(super) fn engines(&self) -> BTreeMap<String, String> {
        self.ids.clone()
    }

    pub(super) fn gateway_url(&self) -> &str {
        &self.gateway_url
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Watches the processes. An engine that ends is noted and no more than that: living without it is the gateway's
    /// job, and killing one is the first thing to try. Completes when the gateway ends, with what to tell the user.
    pub(super) async fn watch(&mut self) -> String {
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            for engine in &mut self.children.engines {
                if engine.has_just_ended() {
                    crate::output::note(&format!("plimsoll demo: {} on {} has ended", engine.name, engine.listening));
                }
            }
            if let Some(gateway) = self.children.gateway.as_mut()
                && gateway.has_just_ended()
            {
                return gateway.how_it_died().await;
            }
        }
    }

    /// What a person can do while the demo stays up.
    pub(super) fn invitation(&self) -> String {
        format!(
            "\nThe gateway stays up at {url} until Ctrl-C. Try it:\n\n  curl -N {url}/v1/chat/completions -H 'content-type: \
             application/json' \\\n    -d '{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":24,\"messages\":[{{\"role\":\"user\",\
             \"content\":\"hello\"}}]}}'\n\n  curl {admin}/admin/engines -H 'authorization: Bearer {token}'\n",
            url = self.gateway_url,
            model = self.model,
            admin = self.admin_url,
            token = self.children.admin_token,
        )
    }

    /// Ends the gateway, then the engines, and reaps them. Keeps the logs where there was `trouble`.
    pub(super) async fn stop(self, trouble: bool) {
        self.children.stop(trouble).await;
    }
}

/// `http://DATA (admin http://ADMIN)`.
pub(crate) fn addresses(listening: &str) -> Option<(String, String)> {
    let (data, rest) = listening.split_once(" (admin ")?;
    Some((data.trim().to_owned(), rest.trim_end().trim_end_matches(')').to_owned()))
}
