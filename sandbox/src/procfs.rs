//! What `/proc` says about a process: what it used, and whether it is still the same one.

use std::path::Path;
use std::time::Duration;

use crate::Error;

/// What a process has used so far, without its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user and kernel mode, in steps of the kernel's tick (usually 10 ms).
    pub cpu: Duration,
    /// The most memory that was resident at any time, in bytes (`VmHWM`).
    pub peak_rss: u64,
}

/// What the process has used so far.
///
/// # Errors
///
/// [`Error::Io`] if there is no such process, or it has ended.
pub fn usage(pid: u32) -> Result<Usage, Error> {
    let stat = stat(pid)?;
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let peak_rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .ok_or_else(|| malformed(&path))?;
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let millis = stat.cpu_ticks.saturating_mul(1000) / ticks_per_second;
    Ok(Usage {
        cpu: Duration::from_millis(millis),
        peak_rss: peak_rss * 1024,
    })
}

/// The processes that `pid` has started and not collected yet.
pub(crate) fn children(pid: u32) -> Result<Vec<u32>, Error> {
    let entries = std::fs::read_dir("/proc").map_err(Error::io("read /proc"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // One that has ended meanwhile is nobody's child any more.
    let of_it = numbers.filter(|one| stat(*one).is_ok_and(|stat| stat.parent == u64::from(pid)));
    Ok(of_it.collect())
}

/// A process that cannot be mistaken for a later one with the same number.
///
/// Process ids are used again; the moment of the start, in ticks since the boot, tells two holders
/// of one id apart, and the id of the boot tells two boots apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pid: u32,
    start_ticks: u64,
    boot_id: String,
}

impl Identity {
    /// The identity of a process that runs now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if there is no such process.
    pub fn of(pid: u32) -> Result<Self, Error> {
        Ok(Self {
            pid,
            start_ticks: stat(pid)?.start_ticks,
            boot_id: boot_id()?,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Does this very process still run? One that has ended and only waits to be collected by its
    /// parent does not.
    pub fn is_running(&self) -> bool {
        let same_boot = boot_id().is_ok_and(|id| id == self.boot_id);
        same_boot
            && stat(self.pid).is_ok_and(|now| {
                now.start_ticks == self.start_ticks && !matches!(now.state, 'Z' | 'X')
            })
    }

    /// Is this very process stopped, as by SIGSTOP?
    pub fn is_paused(&self) -> bool {
        self.is_running() && stat(self.pid).is_ok_and(|now| now.state == 'T')
    }

    /// Writes the identity into a file, for a later process to [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let text = format!("{} {} {}\n", self.pid, self.start_ticks, self.boot_id);
        std::fs::write(path, text).map_err(Error::io(format!("write {}", path.display())))
    }

    /// Reads back what [`write`](Self::write) wrote. `None` if there is no such file, or if it
    /// holds something else, such as the half of a line that a crash left.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file is there and cannot be read.
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let pid = words.next()?.parse().ok()?;
        let start_ticks = words.next()?.parse().ok()?;
        let boot_id = words.next()?.to_owned();
        words.next().is_none().then_some(Self {
            pid,
            start_ticks,
            boot_id,
        })
    }
}

/// The fields of `/proc/<pid>/stat` that matter here.
struct Stat {
    state: char,
    parent: u64,
    cpu_ticks: u64,
    start_ticks: u64,
}

fn stat(pid: u32) -> Result<Stat, Error> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    parse_stat(&text).ok_or_else(|| malformed(&path))
}

/// The second field is the program's name in brackets and may hold blanks and brackets itself, so
/// the fields are counted from behind its last bracket; the first there is number 3, the state.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: number(4)?,
        cpu_ticks: number(14)? + number(15)?,
        start_ticks: number(22)?,
    })
}

fn boot_id() -> Result<String, Error> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(Error::io(format!("read {path}")))?;
    Ok(text.trim().to_owned())
}

fn malformed(path: &str) -> Error {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "unexpected contents");
    Error::Io {
        doing: format!("understand {path}"),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 12 30 0 0 20 0 1 0 4711 1 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!(
            (stat.state, stat.parent, stat.cpu_ticks, stat.start_ticks),
            ('S', 1, 42, 4711)
        );
    }

    #[test]
    fn an_identity_survives_a_file_and_a_torn_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        assert_eq!(Identity::read(&path).unwrap(), None);
        let own = Identity::of(std::process::id()).unwrap();
        own.write(&path).unwrap();
        assert_eq!(Identity::read(&path).unwrap(), Some(own.clone()));
        assert!(own.is_running() && !own.is_paused());
        std::fs::write(&path, "12 3").unwrap();
        assert_eq!(Identity::read(&path).unwrap(), None);
    }

    #[test]
    fn another_start_time_is_another_process() {
        let mut other = Identity::of(std::process::id()).unwrap();
        other.start_ticks += 1;
        assert!(!other.is_running());
    }
}
