//! The memory of tests that copy images by the thousand.

/// Tells the allocator to keep what is freed: by default every image is given back to the kernel and zeroed again
/// page by page, which takes longer than the test itself.
pub(crate) fn keep() {
    #[cfg(target_env = "gnu")]
    {
        const KEEP_BYTES: i32 = 1 << 30;
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            for option in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
                // SAFETY: sets a number of the allocator, which takes its own lock.
                unsafe { libc::mallopt(option, KEEP_BYTES) };
            }
        });
    }
}
