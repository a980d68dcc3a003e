//! How far measuring is.

/// The numbers of rounds. One has ended once nothing is being measured any more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}
