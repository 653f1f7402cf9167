//! The OpenAI Python SDK drives the gateway as its users' programs do.
//!
//! Python: `PLIMSOLL_PYTHON`, else `.venv/bin/python` of the repository. Skipped by name where it has no `openai`.

use crate::{paced, skipped, until};
use plimsoll_end_to_end::{Gateway, Plan, binaries};
use plimsoll_fakes::Dialect;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// A Python that can import `openai`.
pub(crate) fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PLIMSOLL_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from);
    let python = named.unwrap_or_else(|| binaries::workspace().join(".venv/bin/python"));
    let can = Command::new(&python).args(["-c", "import openai"]).output().is_ok_and(|output| output.status.success());
    can.then_some(python)
}

/// Runs the script against a gateway and checks each of its steps.
pub(crate) async fn drive(python: &std::path::Path, gateway: &Gateway, model: &str, keys: [&str; 2]) {
    let script = binaries::workspace().join("tests/end-to-end/python/openai_sdk.py");
    let mut command = tokio::process::Command::new(python);
    command.arg(script).arg(gateway.url()).arg(model).args(keys).kill_on_drop(true);
    let output = tokio::time::timeout(std::time::Duration::from_secs(150), command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let steps: Value = serde_json::from_str(said.trim())
        .unwrap_or_else(|error| panic!("{error}: {said}\n{}", String::from_utf8_lossy(&output.stderr)));
    let steps = steps.as_object().unwrap();
    assert!(steps.len() >= 12, "{steps:?}");
    let wrong: Vec<_> = steps.iter().filter(|(_, answer)| **answer != Value::Bool(true)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_sees_an_openai_server() {
    let Some(python) = python() else {
        return skipped("the_sdk_sees_an_openai_server", "no Python with `openai`; set PLIMSOLL_PYTHON");
    };
    let folder = tempfile::tempdir().unwrap();
    let hash = Sha256::digest(b"sk-good").iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let engine = paced(dialect, 5, 2).await;
        let file = folder.path().join("plimsoll.toml");
        let keys = format!("[[auth.keys]]\nsha256 = \"{hash}\"\ntenant = \"sdk\"\n");
        std::fs::write(&file, format!("{keys}[[engines]]\nurl = \"{}\"\n", engine.url())).unwrap();
        let gateway = Plan::default().config(&file, 1).start().await;
        drive(&python, &gateway, "tiny", ["sk-good", "sk-bad"]).await;
        let seen = until(&engine, "the cancelled stream to stop", |seen| seen.in_flight == 0).await;
        // SGLang is told by rid and then sees the connection close as well.
        assert_eq!(seen.clients_lost.max(seen.aborted_by_rid), 1, "{seen:?}");
        assert_eq!(gateway.record("sdk-cancel").await["outcome"], "cancelled");
        gateway.finish().await;
    }
}
