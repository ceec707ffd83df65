//! Tokens of an issuer over TLS: claims to users, keys that change, a file that changes.
