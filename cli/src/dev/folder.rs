//! The folder in which `dev` keeps everything.

use std::path::Path;

use bellwether_sandbox::{Error, Folder};

use crate::exit::{Failure, Result};

/// The file by which a demo knows its own folder.
const DEMO_MARK: &str = "demo";

/// Creates the folder if needed and locks it; a folder in use is refused at once.
pub(crate) fn open(path: &Path) -> Result<Folder> {
    Folder::open(path).map_err(|error| match error {
        Error::FolderInUse { path, owner } => Failure::usage(format!(
            "another `bellwether dev` or an embedded system (pid {owner}) uses {}; stop it or \
             choose another folder with --folder",
            path.display()
        )),
        other => other.into(),
    })
}

/// Removes what an earlier demo left. A folder that holds anything else is refused: it is
/// somebody's.
pub(crate) fn clear(folder: &Folder) -> Result<()> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder.path())? {
        names.push(entry?.file_name());
    }
    let unused = names.iter().all(|name| name == "lock");
    if !unused && !names.iter().any(|name| name == DEMO_MARK) {
        return Err(Failure::usage(format!(
            "{} holds what no demo made, and the demo would remove it; name another --folder",
            folder.path().display()
        )));
    }
    // First, so that a demo that is cut off here can be cleared by the next one.
    std::fs::write(
        folder.join(DEMO_MARK),
        "`bellwether dev --demo` made this folder and removes it\n",
    )?;
    for entry in std::fs::read_dir(folder.path())? {
        let entry = entry?;
        if entry.file_name() == "lock" || entry.file_name() == DEMO_MARK {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::USAGE;

    #[test]
    fn one_dev_holds_a_folder() {
        let home = tempfile::tempdir().unwrap();
        let first = open(home.path()).unwrap();
        clear(&first).unwrap();
        std::fs::write(first.join("old"), "x").unwrap();
        clear(&first).unwrap();
        assert!(!first.join("old").exists());
        let refused = open(home.path()).unwrap_err();
        assert_eq!(refused.code, USAGE);
        let ours = format!("pid {}", std::process::id());
        assert!(refused.message.contains(&ours), "{}", refused.message);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_wrong_setting() {
        let refused = open(Path::new("/proc/none")).unwrap_err();
        assert_eq!(refused.code, USAGE);
        assert!(
            refused.message.contains("/proc/none"),
            "{}",
            refused.message
        );
    }

    #[test]
    fn a_demo_removes_nothing_that_is_not_its_own() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("thesis.txt"), "x").unwrap();
        let opened = open(home.path()).unwrap();
        let refused = clear(&opened).unwrap_err();
        assert_eq!(refused.code, USAGE);
        assert!(home.path().join("thesis.txt").exists());
    }
}
