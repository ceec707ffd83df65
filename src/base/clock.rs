//! Time and randomness, behind functions so that tests can pause and simulations can seed them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The monotonic time; follows tokio's paused clock in tests.
pub fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

thread_local! {
    /// In simulations: wall-clock time of this thread at an instant of tokio's clock.
    static SIMULATED_WALL_CLOCK: std::cell::Cell<Option<(tokio::time::Instant, Duration)>> =
        const { std::cell::Cell::new(None) };
}

/// For simulations only: sets the wall clock of this thread to `start`; it then advances with
/// tokio's clock, which may be paused. `None` restores the system's. Must be called inside a
/// runtime.
pub fn simulate_wall_clock(start: Option<Duration>) {
    SIMULATED_WALL_CLOCK.set(start.map(|start| (now(), start)));
}

/// Wall-clock time since the Unix epoch; zero if the clock is before 1970.
pub fn unix_time() -> Duration {
    if let Some((since, start)) = SIMULATED_WALL_CLOCK.get() {
        return start + since.elapsed();
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Waits for `duration`. For retries use [`crate::Backoff`]; for a state change, await its event.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

thread_local! {
    /// In simulations: state of the generator that replaces the operating system's on this thread.
    static SEEDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// For simulations only: derives the random numbers of this thread from `seed`, so that they are
/// predictable. `None` restores the system's.
pub fn seed_this_thread(seed: Option<u64>) {
    SEEDED.set(seed);
}

/// The next number after `state` (splitmix64).
fn next_seeded(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, mixed ^ (mixed >> 31))
}

/// Fills `buffer` with random bytes of the operating system.
pub fn random_bytes(buffer: &mut [u8]) {
    use ring::rand::SecureRandom;
    if let Some(mut state) = SEEDED.get() {
        for chunk in buffer.chunks_mut(8) {
            let (next, number) = next_seeded(state);
            state = next;
            chunk.copy_from_slice(&number.to_le_bytes()[..chunk.len()]);
        }
        SEEDED.set(Some(state));
        return;
    }
    ring::rand::SystemRandom::new()
        .fill(buffer)
        .expect("the operating system's random generator answers");
}

/// A random `u64`.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// A random number in `[0, 1)`.
pub fn random_f64() -> f64 {
    (random_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random UUID, version 4, in its usual lower-case form.
pub fn random_uuid() -> String {
    let mut b = [0_u8; 16];
    random_bytes(&mut b);
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex = crate::hex(&b);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The alphabet of generated name suffixes: no vowels and no look-alikes, as
/// `k8s.io/apimachinery/pkg/util/rand`.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A random suffix of `length` characters, as `generateName` appends it.
pub fn random_suffix(length: usize) -> String {
    let mut bytes = vec![0_u8; length];
    random_bytes(&mut bytes);
    bytes
        .iter()
        .map(|b| char::from(SUFFIX_ALPHABET[usize::from(*b) % SUFFIX_ALPHABET.len()]))
        .collect()
}
