//! Volumes of the kind `fc` (`pkg/volume/fc`): disks that the adapter of the machine reaches, found
//! by the world wide names of their targets or by their own identifiers.

mod disk;
mod find;
#[cfg(test)]
mod tests;

pub(super) use disk::{FcDisk, PLUGIN};
pub(super) use find::{attach, detach, detach_unless_used};
