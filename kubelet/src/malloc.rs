//! Settings of the C library's memory allocator.

#![allow(
    unsafe_code,
    reason = "mallopt has no safe form, and its environment variable is read before main"
)]

/// Gives all threads one arena. By default each thread gets its own, up to eight per CPU, and an
/// arena keeps the most memory that its threads ever had. The kubelet allocates too seldom for
/// threads to wait for each other. Call before other threads exist.
pub(crate) fn share_arena() {
    // SAFETY: only sets a parameter of the allocator, under the allocator's own lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
