//! What the recommender has observed: distributions of usage per container of each autoscaler
//! (upstream's `recommender/model` and `recommender/util`). Pure; times are seconds since the
//! epoch.

pub mod aggregate;
pub mod checkpoint;
pub mod container;
pub mod histogram;
pub mod state;
