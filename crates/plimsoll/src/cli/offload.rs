//! Flags of the built-in engine's offload tier.

use clap::Args;
use plimsoll_engine::offload::OffloadConfig;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub struct OffloadArgs {
    /// Memory in which evicted KV is kept and from where it is loaded back, per rank; with KiB, MiB, GiB or TiB, 0 for none
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "0")]
    pub kv_offload_bytes: usize,
    /// How long a request waits for KV from there before it computes the rest, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = OffloadConfig::default().deadline.as_millis() as u64)]
    pub kv_offload_deadline_ms: u64,
}

fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err("use bytes, KiB, MiB, GiB or TiB".to_owned()),
    };
    let number: usize = digits.trim_end().parse().map_err(|_| "use a whole number, such as 512MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than there can be".to_owned())
}

impl OffloadArgs {
    #[must_use]
    pub fn config(&self) -> OffloadConfig {
        OffloadConfig {
            bytes: self.kv_offload_bytes,
            deadline: Duration::from_millis(self.kv_offload_deadline_ms),
            ..OffloadConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_units() {
        let good =
            [("0", 0), ("4096", 4096), ("1KiB", 1024), ("512MiB", 512 << 20), ("3 GiB", 3 << 30), ("2TiB", 2 << 40)];
        for (text, size) in good {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "GiB", "1GB", "-1", "1.5GiB", "99999999999TiB", "1mib", "1\u{e9}"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
