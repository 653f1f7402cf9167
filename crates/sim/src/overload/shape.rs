//! Lengths and rhythm of the usual load.
//!
//! From the Azure LLM inference trace of code completions (2023; Patel et al., "Splitwise", ISCA 2024; CC-BY-4.0): pairs of prompt and
//! answer length in their order, and how busy each ten seconds were. Its bursts, minutes of nothing and minutes of 600 requests,
//! would be scenarios of their own: the rhythm is kept within a half and one and a half of the mean.

use super::SCALE;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
use std::path::Path;

/// Scenario seconds of one beat.
const BEAT_S: f64 = 10.0;

/// Lengths and rhythm.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Prompt and answer, in scaled tokens.
    rows: Vec<(u64, u64)>,
    /// Load of each beat against the mean.
    rhythm: Vec<f64>,
    /// Where they come from, for people.
    pub source: &'static str,
}

/// Quantiles of prompt and answer lengths of the whole hour that the trace covers, in tokens.
const PROMPT: [(f64, f64); 6] =
    [(0.0, 20.0), (0.25, 600.0), (0.5, 1_469.0), (0.9, 5_188.0), (0.99, 7_436.0), (1.0, 7_440.0)];
const ANSWER: [(f64, f64); 5] = [(0.0, 1.0), (0.5, 13.0), (0.9, 55.0), (0.99, 251.0), (1.0, 1_000.0)];
const FITTED_ROWS: u64 = 2_048;

fn scaled(prompt: f64, answer: f64) -> (u64, u64) {
    let divided = |tokens: f64, least: u64| ((tokens / SCALE as f64).round() as u64).max(least);
    // Two at least, so that there is a time between tokens.
    (divided(prompt, 2), divided(answer, 2))
}

impl Shape {
    /// The published quantiles, for where the trace is not.
    #[must_use]
    pub fn fitted() -> Self {
        let at = |points: &[(f64, f64)], p: f64| {
            let above = points.partition_point(|(q, _)| *q < p).clamp(1, points.len() - 1);
            let ((q0, v0), (q1, v1)) = (points[above - 1], points[above]);
            (v0.ln() + (p - q0) / (q1 - q0) * (v1.ln() - v0.ln())).exp()
        };
        // Answers do not follow prompts in the trace: two sequences that do not follow each other.
        let golden = 0.618_033_988_749_895;
        let rows = (0..FITTED_ROWS).map(|i| {
            let (p, q) = ((i as f64 + 0.5) * golden % 1.0, (i as f64 + 0.5) / FITTED_ROWS as f64);
            scaled(at(&PROMPT, p), at(&ANSWER, q))
        });
        Shape { rows: rows.collect(), rhythm: vec![1.0], source: "lengths fitted to azure2023_code" }
    }

    /// The trace itself: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it, and where.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wrong = |what: &str| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(&error.to_string()))?;
        let (mut rows, mut counts, mut first) = (Vec::new(), Vec::new(), None);
        for (index, line) in text.lines().enumerate().skip(1) {
            let line_number = index + 1;
            let parsed = (|| {
                let mut fields = line.split(',');
                let second = seconds_of_day(fields.next()?)?;
                Some((second, fields.next()?.trim().parse::<f64>().ok()?, fields.next()?.trim().parse::<f64>().ok()?))
            })();
            let Some((second, prompt, answer)) = parsed else {
                return Err(wrong(&format!("line {line_number}: expected TIMESTAMP,ContextTokens,GeneratedTokens")));
            };
            rows.push(scaled(prompt, answer));
            let beat = ((second - *first.get_or_insert(second)) / BEAT_S).max(0.0) as usize;
            if beat < 100_000 {
                counts.resize(counts.len().max(beat + 1), 0u64);
                counts[beat] += 1;
            }
        }
        if rows.is_empty() {
            return Err(wrong("has no requests"));
        }
        let mean = rows.len() as f64 / counts.len() as f64;
        let rhythm: Vec<f64> = counts.iter().map(|count| (*count as f64 / mean).clamp(0.5, 1.5)).collect();
        let again = rhythm.iter().sum::<f64>() / rhythm.len() as f64;
        let rhythm = rhythm.into_iter().map(|beat| beat / again).collect();
        Ok(Shape { rows, rhythm, source: "lengths and rhythm of azure2023_code" })
    }

    /// Scaled lengths of one request.
    pub(super) fn draw(&self, random: &mut ChaCha8Rng) -> (u64, u64) {
        self.rows[random.random_range(0..self.rows.len())]
    }

    #[cfg(test)]
    pub(super) fn set_rhythm(&mut self, rhythm: Vec<f64>) {
        self.rhythm = rhythm;
    }

    /// Mean of prompt and answer together.
    pub(super) fn mean_tokens(&self) -> f64 {
        self.rows.iter().map(|(prompt, answer)| (prompt + answer) as f64).sum::<f64>() / self.rows.len() as f64
    }

    /// Mean of [`Shape::beat`] over this time.
    pub(super) fn mean_beat(&self, within: &Range<f64>) -> f64 {
        let seconds = ((within.end - within.start).ceil() as u64).max(1);
        (0..seconds).map(|second| self.beat(within.start + second as f64)).sum::<f64>() / seconds as f64
    }

    /// Load at this second of the scenario against the mean.
    pub(super) fn beat(&self, second: f64) -> f64 {
        self.rhythm[(second / BEAT_S) as usize % self.rhythm.len()]
    }
}

/// Of `2023-11-16 18:17:03.9799600`.
fn seconds_of_day(stamp: &str) -> Option<f64> {
    let mut parts = stamp.trim().split_once(' ')?.1.split(':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    Some(next()? * 3_600.0 + next()? * 60.0 + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    #[test]
    fn the_fit_has_the_published_means() {
        // 2,048 and 27.9 tokens in the whole hour; scaled, and answers rounded up to two.
        let shape = Shape::fitted();
        let prompts = shape.rows.iter().map(|(prompt, _)| *prompt as f64).sum::<f64>() / shape.rows.len() as f64;
        assert!((prompts * SCALE as f64 / 2_048.0 - 1.0).abs() < 0.1, "{prompts}");
        let (prompt, answer) = shape.draw(&mut ChaCha8Rng::seed_from_u64(1));
        assert!(prompt >= 2 && answer >= 2);
    }

    #[test]
    fn a_trace_is_read_and_its_bursts_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let mut text = "TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned();
        for i in 0..100 {
            text += &format!("2023-11-16 18:17:{:09.6},1600,32\n", if i < 80 { 1.0 } else { f64::from(i) / 2.0 });
        }
        std::fs::write(&path, &text).unwrap();
        let shape = Shape::read(&path).unwrap();
        assert_eq!(shape.rows[0], (100, 2));
        assert!(shape.beat(0.0) <= 3.0 * shape.beat(15.0) + 1e-9);
        std::fs::write(&path, text + "nonsense\n").unwrap();
        assert!(Shape::read(&path).unwrap_err().contains("line 102"));
    }
}
