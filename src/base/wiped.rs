//! Secrets that do not stay in memory once nobody needs them.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroize;

/// A secret: overwritten when it is dropped, and shown by no log.
///
/// What is moved into it must not have been copied before, and what is cloned out of it is somebody else's to wipe: a `String`
/// that grows leaves its former buffer behind, so it should be whole when it comes here.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Wiped<T: Zeroize>(T);

impl<T: Zeroize> Drop for Wiped<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<T: Zeroize> Deref for Wiped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Zeroize> From<T> for Wiped<T> {
    fn from(secret: T) -> Self {
        Self(secret)
    }
}

impl<T: Zeroize> fmt::Debug for Wiped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    const CANARY: &str = "canary-of-a-secret";

    /// How often the canary stands in this range of this process' memory, as the kernel shows it. A range that is gone has none.
    fn left(address: usize, length: usize) -> usize {
        let mut bytes = vec![0; length];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let read = memory.read_at(&mut bytes, address.try_into().unwrap()).unwrap_or(0);
        bytes[..read].windows(CANARY.len()).filter(|w| *w == CANARY.as_bytes()).count()
    }

    /// C3.22
    #[test]
    fn nothing_is_left_in_the_buffer_of_a_dropped_secret() {
        let secret = Wiped::from(CANARY.repeat(1000));
        let (address, length) = (secret.as_ptr() as usize, secret.len());
        assert_eq!(left(address, length), 1000);
        assert_eq!(format!("{secret:?}"), "***");
        let copy = secret.clone();
        drop(secret);
        assert_eq!(left(address, length), 0);
        assert_eq!(left(copy.as_ptr() as usize, length), 1000);
    }

    /// C3.22: also what lies in a value itself, here one that a box keeps.
    #[test]
    fn nothing_is_left_of_a_dropped_key() {
        let mut key = [0; 4 * CANARY.len()];
        key.copy_from_slice(CANARY.repeat(4).as_bytes());
        let kept = Box::new(std::cell::RefCell::new(Some(Wiped::from(key))));
        let address = kept.as_ptr() as usize;
        let length = size_of_val(&*kept);
        assert_eq!(left(address, length), 4);
        kept.replace(None);
        assert_eq!(left(address, length), 0);
    }
}
