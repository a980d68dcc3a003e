//! The cgroups of the node: one per pod and QoS class, and the limits of all pods together.
//!
//! ```text
//! <cgroup root>/kubepods          all pods: what is allocatable; the guaranteed ones directly in it
//! ├── pod<uid>
//! ├── burstable/pod<uid>
//! └── besteffort/pod<uid>
//! ```
//!
//! A pod's cgroup exists before its sandbox, with the limits of its spec, until its volumes are
//! released: what its memory-backed volumes use stays charged to it. Cgroups outside `kubepods` are
//! never created or removed.

#![forbid(unsafe_code)]

pub mod cgroup;
