//! `tcp://HOST:PORT`, as ZMQ writes addresses, and the ports of several ranks.

use std::fmt;
use std::io;
use std::net::TcpListener;

#[cfg(test)]
mod tests;

/// A TCP address, not resolved. `*` as host binds every interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Without brackets.
    pub host: String,
    /// 0 takes a free one when bound.
    pub port: u16,
}

/// Why an address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    #[error("{0:?} is not an address: use tcp://HOST:PORT, with an IPv6 host in brackets")]
    Syntax(String),
    #[error("{address} has no room for {ranks} ranks: port + rank must stay below 65536")]
    Ranks { address: String, ranks: u16 },
    #[error("cannot listen on {address}: {source}")]
    Bind { address: String, source: io::Error },
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError::Syntax(text.to_owned());
        let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if inner.is_none() && host.contains(':') {
            return Err(wrong());
        }
        let host = inner.unwrap_or(host);
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Endpoint { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.url_host(), self.port)
    }
}

impl Endpoint {
    /// The host as it stands in an address: IPv6 in brackets.
    #[must_use]
    pub fn url_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Every interface is meant.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        matches!(self.host.as_str(), "*" | "0.0.0.0" | "::")
    }

    /// The endpoint of a rank: so many ports further.
    #[must_use]
    pub fn of_rank(&self, rank: u16) -> Option<Endpoint> {
        Some(Endpoint { host: self.host.clone(), port: self.port.checked_add(rank)? })
    }

    /// Host and port as a name resolver takes them.
    pub(crate) fn authority(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Listens, and says where: port 0 is replaced by the one taken.
    ///
    /// # Errors
    /// When the port is taken or the host is not one of this machine's.
    pub fn bind(&self) -> Result<(TcpListener, Endpoint), EndpointError> {
        let host = if self.host == "*" { "0.0.0.0" } else { &self.host };
        let bound = TcpListener::bind((host, self.port)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            Ok((listener, Endpoint { host: self.host.clone(), port }))
        });
        bound.map_err(|source| EndpointError::Bind { address: self.to_string(), source })
    }

    /// Listens on `ranks` ports that follow each other. With port 0 it looks for a free row.
    ///
    /// # Errors
    /// When one of the ports cannot be had.
    pub fn bind_ranks(&self, ranks: u16) -> Result<Vec<(TcpListener, Endpoint)>, EndpointError> {
        const TRIES: usize = 50;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.bind_row(ranks) {
                Err(_) if self.port == 0 && tries < TRIES => {}
                done => return done,
            }
        }
    }

    fn bind_row(&self, ranks: u16) -> Result<Vec<(TcpListener, Endpoint)>, EndpointError> {
        let mut row = vec![self.bind()?];
        let base = row[0].1.clone();
        for rank in 1..ranks {
            let next = base.of_rank(rank).ok_or_else(|| EndpointError::Ranks { address: self.to_string(), ranks })?;
            row.push(next.bind()?);
        }
        Ok(row)
    }
}
