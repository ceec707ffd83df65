//! Limits of Kubernetes for expressions; callers choose among them.

/// Runtime cost of one evaluation (`PerCallLimit`).
pub const PER_CALL: u64 = 1_000_000;
/// Runtime cost of all expressions for one object, or of one policy's binding
/// (`RuntimeCELCostBudget`).
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// Runtime cost of all match conditions of a webhook or binding
/// (`RuntimeCELCostBudgetMatchConditions`).
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// Static cost of one rule of a CustomResourceDefinition (`StaticEstimatedCostLimit`).
pub const STATIC_PER_EXPRESSION: u64 = 10_000_000;
/// Static cost of all rules of a CustomResourceDefinition (`StaticEstimatedCRDCostLimit`).
pub const STATIC_PER_DEFINITION: u64 = 100_000_000;
/// Maximum size in bytes of an evaluated message (`MaxEvaluatedMessageExpressionSizeBytes`).
pub const MESSAGE_BYTES_MAX: usize = 5 * 1024;
/// Maximum size in bytes of a request, from which unbounded sizes are estimated
/// (`MaxRequestSizeBytes`).
pub const REQUEST_BYTES_MAX: u64 = 3 * 1024 * 1024;
