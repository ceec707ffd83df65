//! The flag that a misspelled name probably means.

/// The known flag nearest to `name`, when near enough.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let best = known.map(|k| (distance(name, k), k)).min()?;
    (best.0 <= name.len() / 3 + 1).then(|| best.1.to_owned())
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row.get(j + 1).copied().unwrap_or(usize::MAX);
            let here = if x == *y { diagonal } else { 1 + diagonal.min(above).min(left) };
            diagonal = above;
            if let Some(slot) = row.get_mut(j) {
                *slot = left;
            }
            left = here;
        }
        if let Some(slot) = row.last_mut() {
            *slot = left;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_levenshteins() {
        for (a, b, want) in [("kitten", "sitting", 3), ("", "abc", 3), ("same", "same", 0)] {
            assert_eq!(distance(a, b), want, "{a} {b}");
        }
    }
}
