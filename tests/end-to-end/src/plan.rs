//! How a test wants its gateway.

use crate::gateway::Gateway;
use std::ffi::OsString;
use std::path::Path;

/// Arguments of `plimsoll serve`, gathered.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(crate) engines: usize,
    pub(crate) args: Vec<OsString>,
    pub(crate) token: Option<String>,
    pub(crate) tls: bool,
    pub(crate) wait_for: Option<usize>,
}

impl Plan {
    /// A gateway in front of these engines.
    #[must_use]
    pub fn with<U: AsRef<str>>(engines: impl IntoIterator<Item = U>) -> Plan {
        let mut plan = Plan::default();
        for url in engines {
            plan.engines += 1;
            plan = plan.arg("--engine").arg(url.as_ref());
        }
        plan
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Plan {
        self.args.push(arg.into());
        self
    }

    /// `--set KEY=VALUE`
    #[must_use]
    pub fn set(self, key: &str, value: impl std::fmt::Display) -> Plan {
        self.arg("--set").arg(format!("{key}={value}"))
    }

    /// `--config FILE`; `engines` of it are waited for.
    #[must_use]
    pub fn config(mut self, file: &Path, engines: usize) -> Plan {
        self.engines += engines;
        self.arg("--config").arg(file)
    }

    /// An admin token, used by the harness too.
    #[must_use]
    pub fn token(mut self, token: &str) -> Plan {
        self.token = Some(token.to_owned());
        self.arg("--admin-token").arg(token)
    }

    /// The clients' listener speaks TLS.
    #[must_use]
    pub fn tls(mut self, cert: &Path, key: &Path) -> Plan {
        self.tls = true;
        let (cert, key) = (cert.display(), key.display());
        self.set("gateway.tls.cert_file", cert).set("gateway.tls.key_file", key)
    }

    /// Wait for so many healthy engines instead of all.
    #[must_use]
    pub fn wait_for(mut self, engines: usize) -> Plan {
        self.wait_for = Some(engines);
        self
    }

    /// Starts it and waits until its engines are healthy.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(self) -> Gateway {
        Gateway::start(self).await
    }
}
