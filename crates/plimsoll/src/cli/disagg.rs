//! Flags of a prefill or decode engine, under SGLang's names where it has them.

use clap::{Args, ValueEnum};
use plimsoll_engine::disagg::{DisaggConfig, Role};
use plimsoll_engine::transfer::Secret;
use std::net::SocketAddr;
use std::time::Duration;

/// [`Role`], with SGLang's name for doing everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    #[value(alias = "null")]
    Unified,
    Prefill,
    Decode,
}

#[derive(Clone, Debug, Args)]
pub struct DisaggArgs {
    /// Compute prompts only (`prefill`), or everything after the first token (`decode`), with another engine for the rest;
    /// also as SGLang's `--disaggregation-mode null|prefill|decode`
    #[arg(long, value_name = "ROLE", value_enum, alias = "disaggregation-mode", default_value = "unified")]
    pub role: RoleArg,
    /// Port on which a prefill engine waits for decode engines, on the host of `--listen`; 0 takes a free one. On a decode
    /// engine the port of prefill engines whose requests name none
    #[arg(long, value_name = "PORT", default_value_t = DisaggConfig::default().bootstrap_port)]
    pub disaggregation_bootstrap_port: u16,
    /// How long one leg of a request waits for the other to appear, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = DisaggConfig::default().handshake.as_millis() as u64)]
    pub handshake_timeout_ms: u64,
    /// Longest silence of an engine that sends or takes KV, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = DisaggConfig::default().deadline.as_millis() as u64)]
    pub transfer_timeout_ms: u64,
    /// What engines that exchange KV must have in common; without it the network decides who may
    #[arg(long, value_name = "SECRET", env = "PLIMSOLL_TRANSFER_SECRET", hide_env_values = true)]
    pub transfer_secret: Option<String>,
}

impl DisaggArgs {
    /// The configuration of an engine that serves at this address.
    #[must_use]
    pub fn config(self, listen: SocketAddr) -> DisaggConfig {
        DisaggConfig {
            role: match self.role {
                RoleArg::Unified => Role::Unified,
                RoleArg::Prefill => Role::Prefill,
                RoleArg::Decode => Role::Decode,
            },
            bootstrap_host: listen.ip(),
            bootstrap_port: self.disaggregation_bootstrap_port,
            handshake: Duration::from_millis(self.handshake_timeout_ms),
            deadline: Duration::from_millis(self.transfer_timeout_ms),
            secret: self.transfer_secret.as_deref().map(Secret::new),
            ..DisaggConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        disagg: DisaggArgs,
    }

    fn role(args: &[&str]) -> Option<&'static str> {
        let cli = Cli::try_parse_from(std::iter::once("engine").chain(args.iter().copied())).ok()?;
        Some(cli.disagg.config(([127, 0, 0, 1], 0).into()).role.mode())
    }

    #[test]
    fn the_role_is_named_in_our_words_or_in_sglangs() {
        assert_eq!(role(&[]), Some("null"));
        assert_eq!(role(&["--role", "unified"]), Some("null"));
        assert_eq!(role(&["--disaggregation-mode", "null"]), Some("null"));
        assert_eq!(role(&["--role", "prefill"]), Some("prefill"));
        assert_eq!(role(&["--disaggregation-mode=decode"]), Some("decode"));
        assert_eq!(role(&["--role", "both"]), None);
    }
}
