//! The bounds of one rendering.

use crate::error::Failure;

/// Bytes of results that count as one step.
const BYTES_PER_STEP: usize = 256;

/// How deep values may be nested that are printed, compared or copied.
pub(crate) const MAX_NESTING: usize = 500;

/// What one rendering may still use.
pub(crate) struct Budget {
    steps: u64,
    max_steps: u64,
    max_bytes: usize,
    max_depth: usize,
    depth: usize,
    exhausted: bool,
}

impl Budget {
    pub(crate) fn new(max_steps: u64, max_bytes: usize, max_depth: usize) -> Self {
        Self { steps: 0, max_steps, max_bytes, max_depth, depth: 0, exhausted: false }
    }

    /// Whether a bound was exceeded; then no function may turn the error into a value.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    fn refuse<T>(&mut self, what: String) -> Result<T, Failure> {
        self.exhausted = true;
        Err(Failure::new(what))
    }

    /// Counts `steps` of work.
    ///
    /// # Errors
    ///
    /// The rendering has used its steps.
    pub(crate) fn step(&mut self, steps: u64) -> Result<(), Failure> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > self.max_steps {
            let max = self.max_steps;
            return self
                .refuse(format!("rendering takes more than {max} steps: simplify the chart"));
        }
        Ok(())
    }

    /// Counts `bytes` of a result, before it is built.
    ///
    /// # Errors
    ///
    /// The result alone, or all together, would be larger than the bound.
    pub(crate) fn bytes(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.max_bytes {
            let max = self.max_bytes;
            return self.refuse(format!("a value would be larger than {max} bytes"));
        }
        self.step(u64::try_from(bytes / BYTES_PER_STEP).unwrap_or(u64::MAX))
    }

    /// Enters a nested template or block of one; [`Budget::leave`] is due on success.
    ///
    /// # Errors
    ///
    /// The nesting is deeper than the bound.
    pub(crate) fn enter(&mut self) -> Result<(), Failure> {
        if self.depth >= self.max_depth {
            let max = self.max_depth;
            return self.refuse(format!("templates are nested deeper than {max} levels"));
        }
        self.depth += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
