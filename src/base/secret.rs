//! Secrets that are overwritten in memory when they are dropped.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroize;

/// A secret: overwritten when it is dropped, and never printed by `Debug`.
///
/// Copies made before the move or cloned out of it are not overwritten: a `String` that grows
/// leaves its former buffer behind, so the value should be complete when it is moved in.
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

    /// How often the canary stands at this place of this process' memory, as the kernel shows it.
    /// `into` is made before anything is freed: a buffer that is made afterwards may get the very
    /// place, and be what overwrites it.
    fn left(address: usize, into: &mut [u8]) -> usize {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        // A place that is gone has none.
        let read = memory.read_at(into, address.try_into().unwrap()).unwrap_or(0);
        into[..read].windows(CANARY.len()).filter(|w| *w == CANARY.as_bytes()).count()
    }

    /// C3.22. Of a plain text all thousand are left.
    #[test]
    fn nothing_is_left_in_the_buffer_of_a_dropped_secret() {
        let secret = SecretValue::from(CANARY.repeat(1000));
        let (address, mut into) = (secret.as_ptr() as usize, vec![0; secret.len()]);
        assert_eq!(left(address, &mut into), 1000);
        assert_eq!(format!("{secret:?}"), "***");
        let copy = secret.clone();
        drop(secret);
        assert_eq!(left(address, &mut into), 0);
        assert_eq!(left(copy.as_ptr() as usize, &mut into), 1000);
    }

    /// C3.22: also what lies in the value itself. Of a plain array nine are left, behind what the
    /// allocator writes.
    #[test]
    fn nothing_is_left_of_a_dropped_key() {
        let mut key = [0; 10 * CANARY.len()];
        key.copy_from_slice(CANARY.repeat(10).as_bytes());
        let key = Box::new(SecretValue::from(key));
        let (address, mut into) = (key.as_ptr() as usize, vec![0; key.len()]);
        assert_eq!(left(address, &mut into), 10);
        drop(key);
        assert_eq!(left(address, &mut into), 0);
    }
}
