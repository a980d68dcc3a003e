//! The engine's images: the cache that answers lists and statuses, and what the shim keeps for each
//! image.

mod accounts;
pub mod convert;
mod layers_size;
mod mount;
pub(crate) mod pulls;
pub mod reference;
mod removals;
mod store;

pub use accounts::{Accounts, AccountsByImage, PasswdEntry};
pub use layers_size::LayersSize;
pub use mount::ImageMounts;
pub use pulls::Pulls;
pub use reference::Reference;
pub use removals::Removals;
pub use store::{CachedImage, Image, ImageSnapshot, Images};

/// The name of the built-in pause image. Its tag is incremented when its content changes, so that an
/// older shim's image is not used instead.
pub const BUILT_IN_PAUSE: &str = "dockershim.local/pause:1";
