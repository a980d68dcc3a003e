//! Image verbs, one file per CRI verb, and the cache that answers lists and statuses.

mod accounts;
pub mod convert;
pub mod fs_info;
mod layers_size;
pub mod list;
mod mount;
pub mod pause;
pub mod pull;
pub mod reference;
pub mod remove;
pub mod status;
mod store;

pub use accounts::{Accounts, AccountsByImage, PasswdEntry};
pub use layers_size::LayersSize;
pub use mount::ImageMounts;
pub use pull::Pulls;
pub use reference::Reference;
pub use remove::Removals;
pub use store::{CachedImage, Image, ImageSnapshot, Images};
