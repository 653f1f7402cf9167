//! The processes: engines in timing mode, and a gateway before them.

use super::{Control, OverloadArgs};
use crate::Failure;
use crate::commands::demo::children::Children;
use crate::commands::demo::client::Client;
use crate::commands::demo::fleet::addresses;
use crate::commands::demo::process::Process;
use plimsoll_pools::prometheus::samples;
use plimsoll_sim::overload::{self, PROFILE, Plan, SCALE, TENANTS, class_rules, promised};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const READY_LIMIT: Duration = Duration::from_secs(60);

/// How far the machine was behind the engines' schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    /// Share of late steps, mean of the engines.
    pub steps: f64,
    /// Seconds that were given up, all engines.
    pub lost_s: f64,
}

pub(super) fn tenant_key(tenant: usize) -> String {
    format!("bench-{tenant}")
}

pub(super) struct Fleet {
    children: Children,
    gateway_url: String,
    admin_url: String,
}

impl Fleet {
    /// Starts nothing yet.
    pub(super) fn new() -> Result<Self, Failure> {
        Ok(Fleet { children: Children::new("bench")?, gateway_url: String::new(), admin_url: String::new() })
    }

    pub(super) async fn start(&mut self, args: &OverloadArgs, plan: &Plan) -> Result<(), Failure> {
        let mut starting = JoinSet::new();
        for n in 0..args.engines {
            let (folder, engine) = (self.children.folder.clone(), engine_args(args)?);
            starting.spawn(async move { Process::start(&format!("engine {n}"), &engine, &[], &folder).await });
        }
        while let Some(engine) = starting.join_next().await {
            self.children.engines.push(engine.map_err(Failure::failed)??);
        }
        let config = self.children.folder.join("plimsoll.toml");
        let urls: Vec<&str> = self.children.engines.iter().map(|engine| engine.listening.as_str()).collect();
        std::fs::write(&config, settings(args, plan, &urls))
            .map_err(|error| Failure::failed(format!("{}: cannot be written: {error}", config.display())))?;
        let serve = ["serve", "--config", &config.display().to_string()].map(str::to_owned);
        let gateway = Process::start("gateway", &serve, &self.children.gateway_env(), &self.children.folder).await?;
        let (data, admin) = addresses(&gateway.listening).ok_or_else(|| {
            Failure::failed(format!("the gateway's first line was not understood: {}", gateway.listening))
        })?;
        self.gateway_url = data;
        self.children.gateway = Some(gateway);
        self.admin_url = admin;
        self.until_ready().await
    }

    async fn until_ready(&self) -> Result<(), Failure> {
        let (begun, operator) = (Instant::now(), self.operator()?);
        while begun.elapsed() < READY_LIMIT {
            let engines = operator.get("/admin/engines").await.unwrap_or_default();
            let engines = engines["engines"].as_array().cloned().unwrap_or_default();
            if engines.len() == self.children.engines.len() && engines.iter().all(|e| e["state"]["health"] == "healthy")
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Failure::failed(format!("the engines were not ready within {} s", READY_LIMIT.as_secs())))
    }

    pub(super) fn gateway_url(&self) -> &str {
        &self.gateway_url
    }

    /// Who may ask the gateway's admin API.
    pub(super) fn operator(&self) -> Result<Operator, Failure> {
        Ok(Operator { client: Client::new(&self.admin_url)?, token: self.children.admin_token.clone() })
    }

    /// From the engines' own counters. `None` where one does not say.
    pub(super) async fn lateness(&self) -> Option<Lateness> {
        let mut late = Lateness::default();
        for engine in &self.children.engines {
            let client = Client::new(engine.listening.trim_end_matches('/')).ok()?;
            let Ok((200, body)) = client.get("/metrics", None).await else { return None };
            let text = String::from_utf8_lossy(&body);
            let read = |name: &str| samples(&text).find(|sample| sample.name == name).map(|sample| sample.value);
            late.steps += read("plimsoll_engine_timing_late_ratio")? / self.children.engines.len() as f64;
            late.lost_s += read("plimsoll_engine_timing_lost_seconds_total")?;
        }
        Some(late)
    }

    /// Ends and reaps all. Keeps the logs where there was `trouble`.
    pub(super) async fn stop(self, trouble: bool) {
        self.children.stop(trouble).await;
    }
}

pub(super) struct Operator {
    client: Client,
    token: String,
}

impl Operator {
    /// A GET, as JSON. `None` where there is no good answer.
    pub(super) async fn get(&self, path: &str) -> Option<Value> {
        match self.client.get(path, Some(&self.token)).await {
            Ok((200, body)) => serde_json::from_slice(&body).ok(),
            _ => None,
        }
    }
}

fn engine_args(args: &OverloadArgs) -> Result<Vec<String>, Failure> {
    let shape = overload::engine_shape().map_err(Failure::failed)?;
    let mut all = vec!["engine".to_owned()];
    let mut flag = |name: &str, value: String| all.extend([format!("--{name}"), value]);
    flag("listen", "127.0.0.1:0".into());
    flag("kv-events-endpoint", "tcp://127.0.0.1:0".into());
    flag("kv-events-replay-endpoint", "tcp://127.0.0.1:0".into());
    flag("timing", PROFILE.into());
    flag("timing-speedup", (args.time_scale / SCALE as f64).to_string());
    flag("page-tokens", shape.page_tokens.to_string());
    flag("kv-tokens", shape.kv_tokens.to_string());
    flag("context-tokens", shape.context_tokens.to_string());
    flag("token-budget", shape.token_budget.to_string());
    flag("max-running", shape.max_running.to_string());
    // A stock engine takes whatever comes, in its order.
    flag("max-waiting", "1000000".into());
    flag("schedule-policy", "fcfs".into());
    Ok(all)
}

/// Times are the gateway's defaults in scenario time, tokens scaled.
fn settings(args: &OverloadArgs, plan: &Plan, engines: &[&str]) -> String {
    let ms = |ms: f64| ((ms / args.time_scale).round() as u64).max(1);
    let rules = class_rules();
    let mut text = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         # Idle connections of the client stay.\n\
         [limits]\nheader_timeout_ms = 600000\n\
         [policy]\nassumed_prefill_tokens_per_s = {:.1}\nassumed_output_tokens = 8\n\
         [classes]\nhigh_uncached_tokens = {}\nlow_uncached_tokens = {}\n\
         # The machine is shared: a late probe is no dead engine here.\n\
         [health]\nprobe_interval_ms = 1000\nprobe_timeout_ms = 5000\nprobe_failures = 10\nreport_stale_ms = 8000\n",
        plan.capacity_tokens_per_s / engines.len() as f64 * args.time_scale,
        rules.high_uncached_tokens,
        rules.low_uncached_tokens,
    );
    let on = args.control == Control::Plimsoll;
    let base: Vec<String> = promised()
        .map(|(tokens, seconds)| {
            let tokens = tokens.min(1 << 30);
            format!("{{ prompt_tokens = {tokens}, first_token_ms = {} }}", ms(seconds * 1e3))
        })
        .collect();
    let _ = write!(
        text,
        "[traffic]\nenabled = {on}\ntarget_wait_ms = {}\nlevel_rise_ms = {}\nlevel_fall_ms = {}\nburst_ms = {}\n\
         demand_memory_ms = {}\nengine_queue_ms = {}\nengine_queue_tokens = {}\nlong_prefill_ms = {}\naging_ms = {}\n\
         [traffic.slo]\nbase = [{}]\n",
        ms(2_000.0),
        ms(500.0),
        ms(5_000.0),
        ms(2_000.0),
        ms(30_000.0),
        ms(1_000.0),
        4_096 / SCALE,
        ms(1_000.0),
        ms(15_000.0),
        base.join(", "),
    );
    for tenant in 0..TENANTS {
        let hash = Sha256::digest(tenant_key(tenant)).iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        let _ = write!(text, "[[auth.keys]]\ntenant = \"tenant-{tenant}\"\nsha256 = \"{hash}\"\n");
    }
    for url in engines {
        let _ = write!(text, "[[engines]]\nurl = {}\n", json!(url));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_gateway::state;
    use plimsoll_gateway::traffic::rules;
    use plimsoll_settings::Settings;
    use plimsoll_sim::overload::{Control as Played, Shape, Simulation};

    /// What is played on the virtual clock is what the processes are told.
    #[test]
    fn the_simulated_gateway_is_set_as_the_real_one() {
        let args = OverloadArgs {
            scenario: crate::commands::bench::overload::Scenario::A,
            control: Control::Plimsoll,
            json: None,
            seconds: 8,
            time_scale: 1.0,
            engines: 4,
            trace: None,
            uniform_tokens_per_s: None,
            simulated: false,
            seed: 1,
        };
        let capacity = overload::capacity_tokens_per_s(args.engines).unwrap();
        let plan = Plan::new(args.scenario.into(), &Shape::fitted(), args.engines, capacity, args.seconds, args.seed);
        let text = settings(&args, &plan, &["http://127.0.0.1:1"; 4]);
        let real: Settings = toml::from_str(&text).unwrap();
        let played = Simulation::new(&plan, args.engines, Played::Plimsoll);
        assert_eq!(rules(&real), Some(played.rules));
        assert_eq!(state::class_rules(&real.classes), class_rules());
        let mut scheduler = state::scheduler_config(&real);
        scheduler.health = played.scheduler.health;
        scheduler.record_candidates = played.scheduler.record_candidates;
        let rounded = (scheduler.assumed_prefill_tokens_per_s - played.scheduler.assumed_prefill_tokens_per_s).abs();
        assert!(rounded < 0.1, "{rounded}");
        scheduler.assumed_prefill_tokens_per_s = played.scheduler.assumed_prefill_tokens_per_s;
        assert_eq!(scheduler, played.scheduler);
    }
}
