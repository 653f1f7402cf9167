//! `/_ctl`: the tests' side door. `POST` changes behaviour, `GET` reads the counters.

use crate::behaviour::Control;
use crate::http1::Head;
use crate::outbound::Reply;
use crate::state::State;
use bytes::Bytes;
use serde_json::json;

pub(crate) const PATH: &str = "/_ctl";

pub(crate) fn reply(state: &State, request: &Head, body: &Bytes) -> Reply {
    if request.method == "GET" {
        return Reply::json(200, &json!(state.snapshot()));
    }
    match serde_json::from_slice::<Control>(body) {
        Ok(control) => {
            state.control(control);
            Reply::json(200, &json!({"ok": true}))
        }
        Err(error) => Reply::json(400, &json!({"error": {"message": error.to_string(), "code": 400}})),
    }
}
