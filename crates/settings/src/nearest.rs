//! The valid key that a misspelt one was probably meant to be.

/// The candidates closest to `word`, or none where nothing is close enough to be a slip of the hand. More than one only
/// when they are equally close.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let bound = (word.chars().count() / 3).max(2);
    let mut best = bound + 1;
    let mut found = Vec::new();
    for candidate in candidates {
        let distance = distance(word, candidate);
        if distance > bound || distance > best {
            continue;
        }
        if distance < best {
            best = distance;
            found.clear();
        }
        found.push(candidate);
    }
    found
}

/// Edits between the two, where case and `-` for `_` cost nothing. A key that only lacks its unit (`probe_timeout` for
/// `probe_timeout_ms`) counts as one edit.
fn distance(word: &str, candidate: &str) -> usize {
    let word = word.to_lowercase().replace('-', "_");
    if candidate.strip_prefix(word.as_str()).is_some_and(|rest| rest.starts_with('_')) {
        return 1;
    }
    strsim::damerau_levenshtein(&word, candidate)
}
