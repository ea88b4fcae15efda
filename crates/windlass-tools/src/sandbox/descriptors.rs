//! Inherited descriptors: the helper closes all of them except its standard streams.

/// Closes every open descriptor above standard error. Called first in the helper, before it opens anything.
///
/// # Errors
///
/// Returns the reason if the open descriptors cannot be listed.
#[cfg(target_os = "linux")]
pub(super) fn close_inherited() -> std::io::Result<()> {
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        inherited.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|fd| *fd > 2));
    }
    for descriptor in inherited {
        // The listing itself had a descriptor, which is closed already.
        nix::unistd::close(descriptor).ok();
    }
    Ok(())
}

/// Does nothing: the descriptors of a process cannot be listed on this platform.
#[cfg(not(target_os = "linux"))]
pub(super) fn close_inherited() -> std::io::Result<()> {
    Ok(())
}
