//! The owner of a lease: the identity of a driver, and the proof that a driver of this machine has died.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The owner of a lease, as Windlass's drivers name themselves. To a store the name is a text without meaning.
///
/// The name has the machine, its boot, the process and a unique id. So another process of the same machine can prove that
/// the owner has died, and needs not wait for its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOwner {
    process: ProcessIdentity,
    host: String,
    unique_id: String,
}

/// The identity of a process. No other process has it, before or after, on this machine or another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessIdentity {
    pid: u32,
    /// Start of the process in clock ticks since the boot, in `/proc`.
    start_ticks: u64,
    /// Namespaces of process ids and times: another container counts otherwise.
    namespaces: String,
    /// Id of the boot. It differs from machine to machine; empty if it is not known.
    boot: String,
}

/// The state of a process id on this machine.
#[derive(Debug, PartialEq, Eq)]
enum ProcessState {
    /// No process has the id, or only the exit status is left of it.
    Ended,
    /// A process has the id, which started at this tick.
    Alive { start_ticks: u64 },
    /// The state cannot be found out.
    Unknown,
}

impl LeaseOwner {
    /// Creates the owner for a new driver of this process.
    pub fn for_new_driver() -> Self {
        let (process, host) = current_process();
        Self { process, host, unique_id: uuid::Uuid::now_v7().to_string() }
    }

    /// Parses the name of an owner. Returns `None` if another program chose the name.
    pub fn parse(name: &str) -> Option<Self> {
        let (process, rest) = name.split_once('@')?;
        let (host, unique_id) = rest.split_once('/')?;
        let mut parts = process.splitn(4, '-');
        let pid = parts.next()?.parse().ok()?;
        let start_ticks = parts.next()?.parse().ok()?;
        let (namespaces, boot) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(Self {
            process: ProcessIdentity { pid, start_ticks, namespaces, boot },
            host: host.to_owned(),
            unique_id: unique_id.to_owned(),
        })
    }

    /// Returns the process id of the driver.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Returns the name of the driver's machine; empty if it is not known.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns true if the process has provably ended: it belongs to this boot of this machine, and its process id has no
    /// process or a later one. False proves nothing.
    pub fn has_died(&self) -> bool {
        let (here, _) = current_process();
        let is_comparable = !self.process.boot.is_empty()
            && self.process.boot == here.boot
            && self.process.namespaces == here.namespaces;
        is_comparable
            && self.process != here
            && match state_of_process(self.process.pid) {
                ProcessState::Ended => true,
                ProcessState::Alive { start_ticks } => start_ticks != self.process.start_ticks,
                ProcessState::Unknown => false,
            }
    }
}

impl fmt::Display for LeaseOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process: ProcessIdentity { pid, start_ticks, namespaces, boot }, host, unique_id } = self;
        write!(f, "{pid}-{start_ticks}-{namespaces}-{boot}@{host}/{unique_id}")
    }
}

/// Returns true if this name belongs to a driver that has provably died.
pub(crate) fn is_dead_owner(name: &str) -> bool {
    LeaseOwner::parse(name).is_some_and(|owner| owner.has_died())
}

/// Returns the identity of this process and the name of its machine.
fn current_process() -> (ProcessIdentity, String) {
    static CURRENT: Mutex<Option<(ProcessIdentity, String)>> = Mutex::new(None);
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    match &*current {
        // A forked process is another one.
        Some(known) if known.0.pid == std::process::id() => known.clone(),
        _ => current.insert(read_current_process()).clone(),
    }
}

fn read_current_process() -> (ProcessIdentity, String) {
    let pid = std::process::id();
    let unknown = ProcessIdentity { pid, start_ticks: 0, namespaces: "0".to_owned(), boot: String::new() };
    (read_identity(pid).unwrap_or(unknown), read_word("/proc/sys/kernel/hostname"))
}

fn read_identity(pid: u32) -> Option<ProcessIdentity> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Another process id means that `/proc` belongs to other namespaces than this process.
    let is_ours = stat.split(' ').next()?.parse() == Ok(pid);
    let (_, start_ticks) = parse_stat(&stat)?;
    let namespaces = format!("{}.{}", namespace_number("pid")?, namespace_number("time").unwrap_or_default());
    let boot: String = read_word("/proc/sys/kernel/random/boot_id").replace('-', "");
    (is_ours && !boot.is_empty()).then_some(ProcessIdentity { pid, start_ticks, namespaces, boot })
}

/// Returns the number of a namespace from its link, such as `pid:[4026531836]`.
fn namespace_number(kind: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
    let digits: String = link.to_str()?.chars().filter(char::is_ascii_digit).collect();
    (!digits.is_empty()).then_some(digits)
}

/// Reads a file of one word, without the characters that separate the parts of a name.
fn read_word(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).take(64).collect()
}

/// Returns the state and the start of a process from the text of its `stat` file. The name in brackets may have any text.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(target_os = "linux")]
fn state_of_process(pid: u32) -> ProcessState {
    // `/proc` may hide the processes of other users, so that a missing file proves nothing.
    let Some(id) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else {
        return ProcessState::Unknown;
    };
    if rustix::process::test_kill_process(id) == Err(rustix::io::Errno::SRCH) {
        return ProcessState::Ended;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    match stat.ok().as_deref().and_then(parse_stat) {
        // A process whose first thread has ended may have others.
        Some(('Z' | 'X', _)) if thread_count(pid) <= 1 => ProcessState::Ended,
        Some((_, start_ticks)) => ProcessState::Alive { start_ticks },
        None => ProcessState::Unknown,
    }
}

#[cfg(target_os = "linux")]
fn thread_count(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).map_or(usize::MAX, Iterator::count)
}

#[cfg(not(target_os = "linux"))]
fn state_of_process(_: u32) -> ProcessState {
    ProcessState::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_parsed_as_it_was_written() {
        let owner = LeaseOwner::for_new_driver();
        assert_eq!(LeaseOwner::parse(&owner.to_string()), Some(owner.clone()));
        let of_call = LeaseOwner::parse(&format!("{owner}/call-1#3")).unwrap();
        assert_eq!((of_call.pid(), of_call.host()), (owner.pid(), owner.host()));
        for foreign in ["ann", "12-uuid", "a-1-2-b@c/d", "1-2-3@host/x", ""] {
            assert_eq!(LeaseOwner::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_name_in_a_stat_file_may_have_brackets_and_blanks() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_stat(&format!("42 (a) b) c) {rest}")), Some(('S', 777)));
        assert_eq!(parse_stat("42 (short) S 1 2"), None);
    }

    #[test]
    fn this_process_is_alive() {
        assert!(!LeaseOwner::for_new_driver().has_died());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_ended_process_and_an_earlier_one_of_the_same_id_have_died() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let here = LeaseOwner::for_new_driver();
        let ProcessState::Alive { start_ticks } = state_of_process(child.id()) else { panic!("it runs") };
        let with = |start_ticks, boot: &str| {
            let process = ProcessIdentity {
                pid: child.id(),
                start_ticks,
                boot: boot.to_owned(),
                ..here.process.clone()
            };
            LeaseOwner { process, ..here.clone() }
        };
        let (owner, earlier) = (with(start_ticks, &here.process.boot), with(1, &here.process.boot));
        let (elsewhere, unknown) = (with(1, "another-boot"), with(1, ""));
        assert_eq!((owner.has_died(), earlier.has_died()), (false, true));
        child.kill().unwrap();
        // Its parent has not asked for its exit status yet.
        while !owner.has_died() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(owner.has_died());
        assert_eq!((elsewhere.has_died(), unknown.has_died()), (false, false));
    }
}
