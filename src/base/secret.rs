//! Secrets whose memory is overwritten on drop.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroize;

/// A secret: overwritten on drop, and never printed by `Debug`.
///
/// Earlier copies and clones of the inner value are not overwritten: a growing `String` leaves its
/// former buffer behind, so the value should be complete when it is moved in.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValue<T: Zeroize>(T);

impl<T: Zeroize> Drop for SecretValue<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> Deref for SecretValue<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> From<T> for SecretValue<T> {
    fn from(secret: T) -> Self {
        Self(secret)
    }
}

impl<T: Zeroize> fmt::Debug for SecretValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    const CANARY: &str = "canary-of-a-secret";

    /// Counts the canary at this address of the process' memory, as the kernel shows it. `into` is
    /// allocated before anything is freed: a later buffer could get the same address and overwrite
    /// it.
    fn left(address: usize, into: &mut [u8]) -> usize {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        // An unmapped address contains none.
        let read = memory.read_at(into, address.try_into().unwrap()).unwrap_or(0);
        into[..read].windows(CANARY.len()).filter(|w| *w == CANARY.as_bytes()).count()
    }

    /// C3.22. A plain text would leave all thousand copies.
    #[test]
    fn the_buffer_of_a_dropped_secret_is_overwritten() {
        let secret = SecretValue::from(CANARY.repeat(1000));
        let (address, mut into) = (secret.as_ptr() as usize, vec![0; secret.len()]);
        assert_eq!(left(address, &mut into), 1000);
        assert_eq!(format!("{secret:?}"), "***");
        let copy = secret.clone();
        drop(secret);
        assert_eq!(left(address, &mut into), 0);
        assert_eq!(left(copy.as_ptr() as usize, &mut into), 1000);
    }

    /// C3.22: also the bytes of the value itself. A plain array would leave nine copies, behind
    /// what the allocator writes.
    #[test]
    fn a_dropped_key_is_overwritten() {
        let mut key = [0; 10 * CANARY.len()];
        key.copy_from_slice(CANARY.repeat(10).as_bytes());
        let key = Box::new(SecretValue::from(key));
        let (address, mut into) = (key.as_ptr() as usize, vec![0; key.len()]);
        assert_eq!(left(address, &mut into), 10);
        drop(key);
        assert_eq!(left(address, &mut into), 0);
    }
}
