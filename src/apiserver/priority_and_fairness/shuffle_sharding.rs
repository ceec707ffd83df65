//! Shuffle sharding: derives a hand of queues from a hash (upstream's `util/shufflesharding`).

/// The maximum hand size; larger ones need more entropy than a hash has.
pub(crate) const HAND_MAX: usize = 15;
/// The maximum deck size.
const DECK_MAX: u64 = 1 << 26;
/// The maximum number of used bits of a hash (upstream's `MaxHashBits`).
const HASH_BITS_MAX: f64 = 60.0;

/// The sizes of deck and hand are invalid, with upstream's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandError {
    /// A size is not positive.
    #[error("deckSize {deck} or handSize {hand} is not positive")]
    NotPositive { deck: i64, hand: i64 },
    /// The hand is larger than the deck.
    #[error("handSize {hand} is greater than deckSize {deck}")]
    LargerThanDeck { deck: i64, hand: i64 },
    /// The deck is too large.
    #[error("deckSize {0} is impractically large")]
    DeckTooLarge(i64),
    /// A hash does not have enough bits.
    #[error("required entropy bits of deckSize {deck} and handSize {hand} is greater than 60")]
    Entropy { deck: i64, hand: i64 },
}

/// Checks the sizes of deck and hand.
///
/// # Errors
/// If a hand of this size cannot be dealt from the deck.
pub(crate) fn check(deck: i64, hand: i64) -> Result<(), HandError> {
    if deck <= 0 || hand <= 0 {
        return Err(HandError::NotPositive { deck, hand });
    }
    if hand > deck {
        return Err(HandError::LargerThanDeck { deck, hand });
    }
    if deck.unsigned_abs() > DECK_MAX {
        return Err(HandError::DeckTooLarge(deck));
    }
    if ((deck as f64).log2() * hand as f64).ceil() > HASH_BITS_MAX {
        return Err(HandError::Entropy { deck, hand });
    }
    Ok(())
}

/// A hand of distinct cards from `0..deck`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hand {
    cards: [u32; HAND_MAX],
    len: usize,
}

impl Hand {
    /// The cards in the order of dealing.
    pub(crate) fn cards(&self) -> &[u32] {
        self.cards.get(..self.len).unwrap_or_default()
    }
}

/// Deals `hand` cards of `deck`; [`check`] must accept the sizes.
pub(crate) fn deal(deck: u32, hand: u32, mut hash: u64) -> Hand {
    let len = (hand as usize).min(HAND_MAX);
    let mut cards = [0_u32; HAND_MAX];
    for (at, card) in cards.iter_mut().enumerate().take(len) {
        // A deck has at least as many cards as a hand.
        let left = u64::from(deck).saturating_sub(at as u64).max(1);
        *card = (hash % left) as u32;
        hash /= left;
    }
    let remainders = cards;
    for (at, card) in cards.iter_mut().enumerate().take(len) {
        for before in remainders.iter().take(at).rev() {
            if *card >= *before {
                *card += 1;
            }
        }
    }
    Hand { cards, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calculated manually: remainders 14 of 128, 73 of 127, 119 of 126, 26 of 125.
    #[test]
    fn a_hand_is_dealt_without_repetition() {
        let hash = 14 + 128 * (73 + 127 * (119 + 126 * 26));
        assert_eq!(deal(128, 4, hash).cards(), [14, 74, 121, 27]);
        assert_eq!(deal(6, 6, 0).cards(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(deal(3, 3, u64::MAX).cards().len(), 3);
    }

    #[test]
    fn invalid_sizes_are_rejected_with_upstreams_messages() {
        let error = |deck, hand| check(deck, hand).unwrap_err().to_string();
        assert_eq!(check(128, 8), Ok(()));
        assert_eq!(error(0, 1), "deckSize 0 or handSize 1 is not positive");
        assert_eq!(error(100, 101), "handSize 101 is greater than deckSize 100");
        assert_eq!(error((1 << 26) + 1, 2), "deckSize 67108865 is impractically large");
        assert_eq!(
            error(512, 8),
            "required entropy bits of deckSize 512 and handSize 8 is greater than 60"
        );
    }

    /// Every card of a deck is dealt about as often (upstream's `TestUniformDistribution`).
    #[test]
    fn hands_are_spread_evenly() {
        let mut counts = [0_u32; 64];
        let mut hash = 1_u64;
        for _ in 0..20_000 {
            hash = hash
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let mixed = (hash ^ (hash >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let hand = deal(64, 6, mixed ^ (mixed >> 29));
            let mut cards = hand.cards().to_vec();
            cards.sort_unstable();
            cards.dedup();
            assert_eq!(cards.len(), 6);
            for card in cards {
                counts[card as usize] += 1;
            }
        }
        // 1875 each; five standard deviations are 206.
        assert!(counts.iter().all(|count| (1669..2081).contains(count)), "{counts:?}");
    }
}
