//! Ending a command and all that came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often the processes are looked through before one gives up. Each time ends all that are there; what is
/// left was born meanwhile.
const ROUNDS: u32 = 500;

/// Ends the group and every descendant of this process, wherever it went, and waits until they are gone.
pub(super) fn all(group: Option<Pid>) {
    for _ in 0..ROUNDS {
        if let Some(group) = group {
            // It is gone already, or cannot be: both are seen below.
            kill_process_group(group, Signal::KILL).ok();
        }
        let alive = descendants();
        if alive.is_empty() {
            return;
        }
        for pid in alive {
            kill_process(pid, Signal::KILL).ok();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// All processes that came from this one and have not ended. Those whose parent has ended are children of this
/// one, which has asked for them.
fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name stands in brackets, and may hold anything.
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
