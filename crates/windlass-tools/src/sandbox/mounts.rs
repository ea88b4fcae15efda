//! Read-only mounts over protected files, in a mount namespace of the command's own.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::StatVfsMountFlags;

/// Moves this process to its own mount and IPC namespaces, and mounts the paths `read_only` read-only and the paths
/// `pinned` onto themselves. Called while this process has one thread.
///
/// # Errors
///
/// Returns the reason if this machine permits no mount namespaces, or if a path cannot be mounted.
pub(super) fn protect_paths(read_only: &[PathBuf], pinned: &[PathBuf]) -> Result<(), String> {
    enter_namespace()?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|error| format!("mounts cannot be made private: {error}"))?;
    for path in pinned {
        bind(path)?;
    }
    for path in read_only {
        bind(path)?;
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | locked_flags(path);
        mount(none, path.as_path(), none, flags, none)
            .map_err(|error| format!("`{}` cannot be made read-only: {error}", path.display()))?;
    }
    Ok(())
}

fn bind(path: &Path) -> Result<(), String> {
    let none: Option<&str> = None;
    mount(Some(path), path, none, MsFlags::MS_BIND, none)
        .map_err(|error| format!("`{}` cannot be mounted: {error}", path.display()))
}

/// Enters the namespaces by right, or else by a user namespace in which the user is the same.
fn enter_namespace() -> Result<(), String> {
    let wanted = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    if unshare(wanted).is_ok() {
        return Ok(());
    }
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare(wanted | CloneFlags::CLONE_NEWUSER)
        .map_err(|error| format!("mount namespaces are not permitted: {error}"))?;
    let write = |file: &str, text: String| {
        std::fs::write(file, text).map_err(|error| format!("the user namespace has no users: {error}"))
    };
    write("/proc/self/setgroups", "deny".into())?;
    write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Returns the flags of a mount that the kernel does not let a user namespace remove.
fn locked_flags(path: &Path) -> MsFlags {
    let Ok(found) = rustix::fs::statvfs(path) else { return MsFlags::empty() };
    [
        (StatVfsMountFlags::NOSUID, MsFlags::MS_NOSUID),
        (StatVfsMountFlags::NODEV, MsFlags::MS_NODEV),
        (StatVfsMountFlags::NOEXEC, MsFlags::MS_NOEXEC),
        (StatVfsMountFlags::NOATIME, MsFlags::MS_NOATIME),
        (StatVfsMountFlags::NODIRATIME, MsFlags::MS_NODIRATIME),
        (StatVfsMountFlags::RELATIME, MsFlags::MS_RELATIME),
    ]
    .into_iter()
    .filter(|(flag, _)| found.f_flag.contains(*flag))
    .fold(MsFlags::empty(), |all, (_, flag)| all | flag)
}
