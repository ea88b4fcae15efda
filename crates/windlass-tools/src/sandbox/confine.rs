//! Landlock, where the kernel has it.

use super::order::{Confinement, Order};

/// What programs need of the system: read and run, but not change.
#[cfg(target_os = "linux")]
const SYSTEM: [&str; 33] = [
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

/// Devices that can be written.
#[cfg(target_os = "linux")]
const DEVICES: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// How far this machine can restrict commands, tried on a thread of its own.
pub fn support() -> Confinement {
    let order = Order {
        program: String::new(),
        args: Vec::new(),
        environment: Vec::new(),
        root: "/".into(),
        folder: String::new(),
        read: Vec::new(),
        write: Vec::new(),
        network: super::Network::Closed,
        need: super::Need::WherePossible,
        uses: super::Uses::default(),
    };
    let tried = std::thread::spawn(move || this_thread(&order, &[])).join();
    tried.ok().and_then(Result::ok).unwrap_or(Confinement::None)
}

/// Restricts this thread and all that it starts. `own` are folders that may be written beside those of the order.
#[cfg(target_os = "linux")]
pub(super) fn this_thread(order: &Order, own: &[&std::path::Path]) -> Result<Confinement, String> {
    use landlock::{
        ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
        path_beneath_rules,
    };

    // The newest that a kernel in use has; older ones restrict what they can.
    let abi = ABI::V6;
    let all = AccessFs::from_all(abi);
    let read = AccessFs::from_read(abi);
    give_up_rights().map_err(|error| format!("rights could not be given up: {error}"))?;
    let apply = || {
        let ruleset = Ruleset::default().handle_access(all)?.scope(Scope::from_all(abi))?;
        let ruleset = match order.network {
            super::Network::Closed => ruleset.handle_access(AccessNet::from_all(abi))?,
            super::Network::Open => ruleset,
        };
        let path = order.environment.iter().find(|(name, _)| name == "PATH");
        let programs =
            path.map_or("", |(_, value)| value).split(':').filter(|folder| folder.starts_with('/'));
        let readable = SYSTEM.iter().copied().chain(programs);
        let writable = order.write.iter().map(std::path::PathBuf::as_path).chain(own.iter().copied());
        let status = ruleset
            .create()?
            .add_rules(path_beneath_rules(readable, read))?
            .add_rules(path_beneath_rules(&order.read, read))?
            .add_rules(path_beneath_rules(DEVICES, all))?
            .add_rules(path_beneath_rules([order.root.as_path()], all))?
            .add_rules(path_beneath_rules(writable, all))?
            .restrict_self()?;
        // Newer kernels also keep commands from sockets that stand among files, such as those of daemons. It is a
        // layer of its own, so that older ones do not count as restricting less than they can.
        Ruleset::default().handle_access(AccessFs::ResolveUnix)?.create()?.restrict_self()?;
        Ok::<_, landlock::RulesetError>(match status.ruleset {
            RulesetStatus::FullyEnforced => Confinement::Full,
            RulesetStatus::PartiallyEnforced => Confinement::Partial,
            RulesetStatus::NotEnforced => Confinement::None,
        })
    };
    apply().map_err(|error| format!("the restrictions could not be made: {error}"))
}

/// The superuser's rights beyond those over files, which Landlock bounds: with the others a command could look
/// into the memory of any process, and so at its secrets, past Landlock. No program that it runs gets them back.
#[cfg(target_os = "linux")]
fn give_up_rights() -> rustix::io::Result<()> {
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

/// Nothing like it is known here.
#[cfg(not(target_os = "linux"))]
pub(super) fn this_thread(_: &Order, _: &[&std::path::Path]) -> Result<Confinement, String> {
    Ok(Confinement::None)
}
