//! Confinement of a thread by Landlock, a seccomp filter and dropped capabilities, on kernels that support them.

use super::protocol::{ConfinementLevel, ConfinementReport, SandboxGap, SandboxedCommand};

/// System paths that every command may read and execute, but not write.
#[cfg(target_os = "linux")]
const READABLE_SYSTEM_PATHS: [&str; 33] = [
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr",
    "/opt",
    "/nix/store",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/dev/random",
    "/dev/urandom",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/debian_version",
    "/etc/gai.conf",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
];

/// Devices that every command may read and write.
#[cfg(target_os = "linux")]
const WRITABLE_DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// Returns the confinement by Landlock and seccomp that this machine supports, by trying it on a separate thread.
/// Read-only mounts and control groups are tried for each command; its output reports all that was applied.
pub fn confinement_support() -> ConfinementLevel {
    let order = SandboxedCommand {
        program: String::new(),
        args: Vec::new(),
        environment: Vec::new(),
        root: "/".into(),
        folder: String::new(),
        readable: Vec::new(),
        writable: Vec::new(),
        protected: Vec::new(),
        git_access: super::protected_files::GitAccess::default(),
        network: super::NetworkAccess::Denied,
        needs_confinement: false,
        resource_limits: super::ResourceLimits::default(),
    };
    let tried = std::thread::spawn(move || confine_thread(&order, &[])).join();
    tried
        .ok()
        .and_then(Result::ok)
        .map_or(ConfinementLevel::None, |gaps| ConfinementReport::of_gaps(gaps).level)
}

/// Confines the current thread and its child processes, and returns the restrictions that were not applied. `own`
/// are additional writable folders.
///
/// # Errors
///
/// Returns the reason if capabilities cannot be dropped or the Landlock ruleset cannot be applied.
#[cfg(target_os = "linux")]
pub(super) fn confine_thread(
    order: &SandboxedCommand,
    own: &[&std::path::Path],
) -> Result<Vec<SandboxGap>, String> {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
        path_beneath_rules,
    };

    // The newest Landlock ABI in use; older kernels enforce the subset that they support.
    let abi = ABI::V6;
    let all = AccessFs::from_all(abi);
    let read = AccessFs::from_read(abi);
    drop_capabilities().map_err(|error| format!("rights could not be given up: {error}"))?;
    let apply = || {
        let ruleset = Ruleset::default().handle_access(all)?.scope(Scope::from_all(abi))?;
        let ruleset = match order.network {
            super::NetworkAccess::Denied => ruleset.handle_access(AccessNet::from_all(abi))?,
            super::NetworkAccess::Allowed => ruleset,
        };
        let path = order.environment.iter().find(|(name, _)| name == "PATH");
        let programs =
            path.map_or("", |(_, value)| value).split(':').filter(|folder| folder.starts_with('/'));
        let readable = READABLE_SYSTEM_PATHS.iter().copied().chain(programs);
        let writable = order.writable.iter().map(std::path::PathBuf::as_path).chain(own.iter().copied());
        let status = ruleset
            .create()?
            .add_rules(path_beneath_rules(readable, read))?
            .add_rules(path_beneath_rules(&order.readable, read))?
            .add_rules(path_beneath_rules(WRITABLE_DEVICES, all))?
            .add_rules(path_beneath_rules([order.root.as_path()], all))?
            .add_rules(path_beneath_rules(writable, all))?
            .restrict_self()?;
        // Newer kernels also restrict connections to Unix sockets in the file system, such as those of
        // daemons. This is a separate ruleset, so that a kernel without it still counts as fully enforcing.
        Ruleset::default().handle_access(AccessFs::ResolveUnix)?.create()?.restrict_self()?;
        Ok::<_, landlock::RulesetError>(match status.ruleset {
            RulesetStatus::FullyEnforced => None,
            RulesetStatus::PartiallyEnforced => Some(SandboxGap::OlderLandlock),
            RulesetStatus::NotEnforced => Some(SandboxGap::Files),
        })
    };
    let files = apply().map_err(|error| format!("the restrictions could not be made: {error}"))?;
    let sockets = super::syscall_filter::apply_filter(order.network).err().map(|_| SandboxGap::Sockets);
    Ok(files.into_iter().chain(sockets).collect())
}

/// Drops all capabilities except those over files, which Landlock bounds, and sets `no_new_privs`. With the other
/// capabilities, a command of the superuser could read the memory of any process despite Landlock.
#[cfg(target_os = "linux")]
fn drop_capabilities() -> rustix::io::Result<()> {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_no_new_privs};

    let kept =
        CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER | CapabilitySet::FSETID;
    set_no_new_privs(true)?;
    let mut rights = capabilities(None)?;
    rights.permitted &= kept;
    rights.effective &= kept;
    rights.inheritable &= kept;
    set_capabilities(None, rights)
}

/// Applies nothing: no confinement is implemented for this platform.
#[cfg(not(target_os = "linux"))]
pub(super) fn confine_thread(
    _: &SandboxedCommand,
    _: &[&std::path::Path],
) -> Result<Vec<SandboxGap>, String> {
    Ok(vec![SandboxGap::Files, SandboxGap::Sockets])
}
