//! What upstream says about configurations.
