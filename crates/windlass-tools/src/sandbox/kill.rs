//! Termination of a command and all its descendants.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Maximum number of passes over the process list. Each pass kills every descendant found; later passes kill those
/// that were forked meanwhile.
const MAX_ROUNDS: u32 = 500;

/// Kills the process group and every descendant of this process, in any session, and waits until they are gone.
pub(super) fn kill_all(group: Option<Pid>) {
    for _ in 0..MAX_ROUNDS {
        if let Some(group) = group {
            // An error is ignored here: remaining processes are found below.
            kill_process_group(group, Signal::KILL).ok();
        }
        let alive = live_descendants();
        if alive.is_empty() {
            return;
        }
        for pid in alive {
            kill_process(pid, Signal::KILL).ok();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns all live descendants of this process. Orphans are included, because this process is a subreaper.
fn live_descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The process name is in parentheses and may itself contain any character.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let (state, parent) = (fields.next(), fields.next().and_then(|parent| parent.parse().ok()));
        if let (Some(state), Some(parent)) = (state, parent)
            && !matches!(state, "Z" | "X")
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = children.remove(&std::process::id().cast_signed()).unwrap_or_default();
    while let Some(pid) = next.pop() {
        next.extend(children.remove(&pid).unwrap_or_default());
        found.extend(Pid::from_raw(pid));
    }
    found
}
