//! From objects of the API to routes. Pure: the caller reads the objects.

pub mod annotations;
mod compiler;
pub mod ingress;
pub mod services;
