//! Namespaces of the command's own: read-only mounts over protected files, and a list of processes with its own only.

use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::StatVfsMountFlags;

/// The namespaces that a process has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamespaceKind {
    /// Mounts, and objects of inter-process communication.
    Mounts,
    /// These, and the children of the process are in a process namespace.
    MountsAndProcesses,
}

/// Mounts the paths `read_only` read-only and the paths `pinned` onto themselves, in this process's mount namespace.
///
/// # Errors
///
/// Returns the reason if a path cannot be mounted.
pub(super) fn protect_paths(read_only: &[PathBuf], pinned: &[PathBuf]) -> Result<(), String> {
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

/// Moves this process to its own mount and IPC namespaces, and its children to a process namespace: by right, or else by a
/// user namespace in which the user is the same. Called while this process has one thread, and no other is started later.
///
/// # Errors
///
/// Returns the reason if this machine permits no mount namespaces.
pub(super) fn enter_namespaces() -> Result<NamespaceKind, String> {
    let mounts = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    let all = mounts | CloneFlags::CLONE_NEWPID;
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    for (wanted, kind) in [(all, NamespaceKind::MountsAndProcesses), (mounts, NamespaceKind::Mounts)] {
        if unshare(wanted).is_ok() {
            return Ok(kind);
        }
        if unshare(wanted | CloneFlags::CLONE_NEWUSER).is_ok() {
            let write = |file: &str, text: String| {
                std::fs::write(file, text)
                    .map_err(|error| format!("the user namespace has no users: {error}"))
            };
            write("/proc/self/setgroups", "deny".into())?;
            write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            write("/proc/self/gid_map", format!("{group} {group} 1"))?;
            return Ok(kind);
        }
    }
    Err("mount namespaces are not permitted".to_owned())
}

/// Lets the supervisor, which this process starts, mount the list of its processes: a user other than root would lose that
/// right when it is started. The supervisor gives it up before it starts the command.
pub(super) fn pass_mount_right_on() -> rustix::io::Result<()> {
    use rustix::thread::{
        CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities,
    };
    let mut rights = capabilities(None)?;
    rights.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, rights)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

/// Mounts the list of the processes of this process's own namespace.
///
/// # Errors
///
/// Returns the reason if this process is not the first of a namespace, or if the machine does not permit it. The list then
/// has all processes.
pub(super) fn mount_own_processes() -> Result<(), String> {
    if std::process::id() != 1 {
        return Err("there is no process namespace".to_owned());
    }
    let none: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    unshare(CloneFlags::CLONE_NEWNS)
        // Otherwise the rest of the machine would get the mount, too.
        .and_then(|()| mount(none, "/", none, private, none))
        .and_then(|()| mount(Some("proc"), "/proc", Some("proc"), flags, none))
        .map_err(|error| format!("the list of processes cannot be mounted: {error}"))
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
