//! The request: a chat completion whose body has exactly the size asked for. Each carries its own number near the
//! start of the prompt, so that no router can answer from, or be slowed by, a body it has seen before.

use std::net::SocketAddr;

/// Digits of the number in the prompt.
const DIGITS: usize = 12;

pub struct Ask {
    bytes: Vec<u8>,
    /// Where the number stands.
    number_at: usize,
}

impl Ask {
    /// `body_bytes` below what the fixed parts need gives the smallest body.
    pub fn new(to: SocketAddr, body_bytes: usize, stream: bool, tokens: u32) -> Ask {
        let front = "{\"model\":\"bench\",\"messages\":[{\"role\":\"user\",\"content\":\"Request ";
        let back = format!("\"}}],\"max_tokens\":{tokens},\"stream\":{stream},\"temperature\":0.7}}");
        let fixed = front.len() + DIGITS + back.len();
        let text: String = " The quick brown fox jumps over the lazy dog near the river bank."
            .chars()
            .cycle()
            .take(body_bytes.saturating_sub(fixed))
            .collect();
        let number = "0".repeat(DIGITS);
        let length = fixed + text.len();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\n\
             accept: */*\r\ncontent-length: {length}\r\n\r\n"
        );
        let number_at = head.len() + front.len();
        Ask { bytes: [head, front.into(), number, text, back].concat().into_bytes(), number_at }
    }

    /// Bytes of the request with this number.
    pub fn numbered(&mut self, number: u64) -> &[u8] {
        let mut rest = number;
        for digit in self.bytes[self.number_at..self.number_at + DIGITS].iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
