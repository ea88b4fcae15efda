//! The seccomp filter of commands: sockets, the kernel's key rings, `io_uring`, and the limits of other processes.
//!
//! Landlock restricts TCP only. This filter refuses to create any other socket too, so that a command reaches
//! neither a daemon's Unix socket, by path or by abstract name, nor UDP, nor the host of a virtual machine
//! (`AF_VSOCK`). `io_uring` is refused because it creates sockets without the system calls that are filtered here.
//!
//! Landlock confines signals, and not the calls that end or starve a process without one: a limit of zero seconds or bytes
//! ends any process of the user. A command changes the limits and priorities of the calling process only.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::NetworkAccess;

/// The bit of system calls of the x32 ABI, which some x86-64 kernels accept beside the native numbers.
const X32_SYSCALL_BIT: libc::c_long = 0x4000_0000;
/// `PRIO_PROCESS` of `setpriority`.
const PRIORITY_OF_PROCESS: u64 = 0;
/// `IOPRIO_WHO_PROCESS` of `ioprio_set`.
const IO_PRIORITY_OF_PROCESS: u64 = 1;
/// The bits of a socket type that are not flags.
const SOCKET_TYPE_MASK: u64 = 0xf;

/// Applies the filter to the current thread and its child processes.
///
/// # Errors
///
/// Returns the reason if the kernel or the processor architecture does not support it.
pub(super) fn apply_filter(network: NetworkAccess) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("system calls cannot be filtered: {error}");
    let arch: TargetArch =
        std::env::consts::ARCH.try_into().map_err(|error: seccompiler::BackendError| failed(&error))?;
    let filter = SeccompFilter::new(
        filter_rules(network).map_err(|error| failed(&error))?,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EACCES.cast_unsigned()),
        arch,
    );
    let program: BpfProgram =
        filter.and_then(TryInto::try_into).map_err(|error: seccompiler::BackendError| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}

/// Returns the refused system calls: unconditionally, or if one of the rules matches.
fn filter_rules(
    network: NetworkAccess,
) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let argument = |index, op, value| SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value);
    let family = |op, family: libc::c_int| argument(0, op, u64::from(family.cast_unsigned()));
    let socket_type = |kind: libc::c_int| {
        argument(1, SeccompCmpOp::MaskedEq(SOCKET_TYPE_MASK), u64::from(kind.cast_unsigned()))
    };
    let socket = match network {
        NetworkAccess::Denied => Vec::new(),
        NetworkAccess::Allowed => vec![SeccompRule::new(vec![
            family(SeccompCmpOp::Ne, libc::AF_INET)?,
            family(SeccompCmpOp::Ne, libc::AF_INET6)?,
            // Name resolution asks the kernel for its addresses.
            family(SeccompCmpOp::Ne, libc::AF_NETLINK)?,
        ])?],
    };
    // A pair of stream sockets is connected for good. A datagram socket of a pair could be connected elsewhere.
    let socket_pair = vec![
        SeccompRule::new(vec![family(SeccompCmpOp::Ne, libc::AF_UNIX)?])?,
        SeccompRule::new(vec![socket_type(libc::SOCK_DGRAM)?])?,
        SeccompRule::new(vec![socket_type(libc::SOCK_RAW)?])?,
    ];
    let of_another = |index| SeccompRule::new(vec![argument(index, SeccompCmpOp::Ne, 0)?]);
    // The first argument says whether the second names a process, a group or a user.
    let of_a_process = |kind: u64| {
        Ok::<_, seccompiler::BackendError>(vec![
            SeccompRule::new(vec![argument(0, SeccompCmpOp::Ne, kind)?])?,
            of_another(1)?,
        ])
    };
    let refused = [
        (libc::SYS_prlimit64, vec![of_another(0)?]),
        (libc::SYS_setpriority, of_a_process(PRIORITY_OF_PROCESS)?),
        (libc::SYS_ioprio_set, of_a_process(IO_PRIORITY_OF_PROCESS)?),
        (libc::SYS_sched_setaffinity, vec![of_another(0)?]),
        (libc::SYS_sched_setattr, vec![of_another(0)?]),
        (libc::SYS_sched_setparam, vec![of_another(0)?]),
        (libc::SYS_sched_setscheduler, vec![of_another(0)?]),
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, socket_pair),
        (libc::SYS_io_uring_setup, Vec::new()),
        (libc::SYS_io_uring_enter, Vec::new()),
        (libc::SYS_io_uring_register, Vec::new()),
        // The key rings of the user hold secrets that belong to no file.
        (libc::SYS_keyctl, Vec::new()),
        (libc::SYS_add_key, Vec::new()),
        (libc::SYS_request_key, Vec::new()),
    ];
    let mut rules = BTreeMap::new();
    for (number, when) in refused {
        if cfg!(target_arch = "x86_64") {
            rules.insert(number | X32_SYSCALL_BIT, when.clone());
        }
        rules.insert(number, when);
    }
    Ok(rules)
}
