//! URLs and header values.

use crate::problem::Problem;
use http::Uri;

/// What makes two base URLs the same server.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Server {
    pub(super) https: bool,
    host: String,
    port: u16,
    base_path: String,
}

/// Reads a base URL; adds a problem and gives none where it cannot be one.
pub(super) fn base(path: &str, text: &str, found: &mut Vec<Problem>) -> Option<Server> {
    let uri = parse(path, text, found)?;
    let base_path = uri.path().trim_end_matches('/');
    if base_path.ends_with("/v1") || uri.query().is_some() {
        found.push(Problem::at(path, "must be a base url, without `/v1` and without a query"));
        return None;
    }
    let https = uri.scheme_str() == Some("https");
    Some(Server {
        https,
        host: uri.host()?.to_ascii_lowercase(),
        port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }),
        base_path: base_path.to_owned(),
    })
}

/// A URL that may have a path.
pub(super) fn endpoint(path: &str, text: &str, found: &mut Vec<Problem>) {
    parse(path, text, found);
}

/// A NATS server, without a path.
pub(super) fn nats(path: &str, text: &str, found: &mut Vec<Problem>) {
    let form = Form {
        schemes: &["nats", "tls"],
        such_as: "nats://127.0.0.1:4222",
        instead: "`cluster.token`, or `cluster.user` and `cluster.password`",
    };
    if parse_as(&form, path, text, found).is_some_and(|uri| uri.path().len() > 1 || uri.query().is_some()) {
        found.push(Problem::at(path, "must have no path and no query"));
    }
}

/// What a URL must look like.
struct Form {
    schemes: &'static [&'static str],
    such_as: &'static str,
    /// Where its user and password belong.
    instead: &'static str,
}

fn parse(path: &str, text: &str, found: &mut Vec<Problem>) -> Option<Uri> {
    let form = Form { schemes: &["http", "https"], such_as: "http://127.0.0.1:30000", instead: "`api_key`" };
    parse_as(&form, path, text, found)
}

/// The url is not repeated in the message: it may hold a password, which is refused for that reason.
fn parse_as(form: &Form, path: &str, text: &str, found: &mut Vec<Problem>) -> Option<Uri> {
    let uri: Uri = match text.parse() {
        Ok(uri) => uri,
        Err(error) => {
            found.push(Problem::at(path, format!("is not a url: {error}")));
            return None;
        }
    };
    let fits = uri.scheme_str().is_some_and(|scheme| form.schemes.contains(&scheme));
    if !fits || uri.host().is_none_or(str::is_empty) {
        found.push(Problem::at(path, format!("must be a url such as {}", form.such_as)));
        return None;
    }
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        found.push(Problem::at(path, format!("must not hold a user or password; use {}", form.instead)));
        return None;
    }
    // `Uri` reads a port that is out of range as none, so look at the text after the host.
    let authority = uri.authority().map_or("", http::uri::Authority::as_str);
    let port = authority.strip_prefix(uri.host().unwrap_or_default()).and_then(|rest| rest.strip_prefix(':'));
    if port.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
        found.push(Problem::at(path, "must have a port from 1 to 65535"));
        return None;
    }
    Some(uri)
}

/// A token that can stand in an `Authorization` header.
pub(super) fn bearer(path: &str, token: &str, found: &mut Vec<Problem>) {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        found.push(Problem::at(path, "must be visible ASCII without spaces, and not empty"));
    }
}
