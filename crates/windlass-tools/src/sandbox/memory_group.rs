//! A control group (cgroup) of the kernel that bounds the memory of a whole command, shared mappings included.

use std::io;
use std::path::{Path, PathBuf};

/// The mount point of the control groups.
const GROUP_ROOT: &str = "/sys/fs/cgroup";

/// A control group of one command; removed on drop, when its processes have ended.
pub(super) struct MemoryGroup {
    folder: PathBuf,
    /// The group that the helper was in before.
    previous: PathBuf,
}

/// A place in which a group can be made, and its file with the limit.
struct GroupPlace {
    parent: PathBuf,
    previous: PathBuf,
    limit_file: &'static str,
    /// The file that bounds memory and swap together (version 1) or swap alone (version 2).
    swap_file: &'static str,
    swap_limit: String,
}

impl MemoryGroup {
    /// Makes a group with this limit and moves the current process into it. Children that it starts from then on
    /// are in the group.
    ///
    /// # Errors
    ///
    /// Returns an error if this machine has no control groups, or none in which this user may make one.
    pub(super) fn enter(max_bytes: u64) -> io::Result<Self> {
        let membership = std::fs::read_to_string("/proc/self/cgroup")?;
        let mut failure = io::Error::new(io::ErrorKind::Unsupported, "there is no memory control group");
        for place in group_places(&membership, max_bytes) {
            match Self::make(&place, max_bytes) {
                Ok(group) => return Ok(group),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn make(place: &GroupPlace, max_bytes: u64) -> io::Result<Self> {
        let folder = place.parent.join(super::scratch::random_name("windlass-")?);
        std::fs::create_dir(&folder)?;
        let group = Self { folder, previous: place.previous.clone() };
        // The file is missing if the parent does not hand this controller on. It is opened, not created.
        write_existing(&group.folder.join(place.limit_file), &max_bytes.to_string())?;
        // A kernel without accounting of swap lacks the file; then the limit of memory stands alone.
        write_existing(&group.folder.join(place.swap_file), &place.swap_limit).ok();
        write_existing(&group.folder.join("cgroup.procs"), &std::process::id().to_string())?;
        Ok(group)
    }

    /// Moves the current process back; its children stay in the group.
    pub(super) fn leave(&self) {
        write_existing(&self.previous.join("cgroup.procs"), &std::process::id().to_string()).ok();
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        self.leave();
        // The kernel refuses while a killed process is not yet reaped.
        for _ in 0..50 {
            match std::fs::remove_dir(&self.folder) {
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                Ok(()) | Err(_) => return,
            }
        }
    }
}

/// Returns the places to try, from the process's own groups (`/proc/self/cgroup`).
fn group_places(membership: &str, max_bytes: u64) -> Vec<GroupPlace> {
    let mut places = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "memory") {
            let own = Path::new(GROUP_ROOT).join("memory").join(path);
            places.push(GroupPlace {
                parent: own.clone(),
                previous: own,
                limit_file: "memory.limit_in_bytes",
                swap_file: "memory.memsw.limit_in_bytes",
                swap_limit: max_bytes.to_string(),
            });
        } else if controllers.is_empty() {
            let own = Path::new(GROUP_ROOT).join(path);
            // A group with processes hands no controller on, so a sibling is tried before a child.
            let above = own.parent().filter(|above| above.starts_with(GROUP_ROOT)).map(Path::to_owned);
            for parent in above.into_iter().chain([own.clone()]) {
                places.push(GroupPlace {
                    parent,
                    previous: own.clone(),
                    limit_file: "memory.max",
                    swap_file: "memory.swap.max",
                    swap_limit: "0".to_owned(),
                });
            }
        }
    }
    places
}

fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}
