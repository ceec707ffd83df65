//! Randomness.

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::error::Failure;

/// Random bytes.
///
/// # Errors
///
/// The operating system gives none.
pub(crate) fn bytes(count: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; count];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Failure::new("the operating system gives no random bytes"))?;
    Ok(bytes)
}

/// A text of random characters out of ASCII `alphabet`, each as likely as another.
///
/// # Errors
///
/// The operating system gives no random bytes.
pub(crate) fn text(count: usize, alphabet: &[u8]) -> Result<String, Failure> {
    let size = alphabet.len();
    if size == 0 || size > 256 {
        return Ok(String::new());
    }
    let fair = 256 - 256 % size;
    let mut out = String::with_capacity(count);
    while out.len() < count {
        for byte in bytes((count - out.len()).max(16))? {
            let at = usize::from(byte);
            if at < fair && out.len() < count {
                out.extend(alphabet.get(at % size).copied().map(char::from));
            }
        }
    }
    Ok(out)
}
