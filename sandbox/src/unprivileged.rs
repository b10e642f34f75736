//! Whom to run as: Postgres refuses to run as root.

use std::path::Path;

use crate::Error;

/// A user to run a child as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Numeric user id.
    pub uid: u32,
    /// Numeric id of the primary group.
    pub gid: u32,
}

impl User {
    /// For root: the user `postgres` if there is one, else `nobody`. For anybody else: `None`,
    /// which means to stay who one is.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if root cannot read `/etc/passwd`, or it names neither user.
    pub fn unprivileged() -> Result<Option<Self>, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let doing = "find the user postgres or nobody in /etc/passwd";
        let passwd = std::fs::read_to_string("/etc/passwd").map_err(Error::io(doing))?;
        ["postgres", "nobody"]
            .iter()
            .find_map(|name| named(&passwd, name))
            .map(Some)
            .ok_or_else(|| Error::io(doing)(std::io::ErrorKind::NotFound.into()))
    }

    /// Makes this user the owner of a file or folder.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the owner cannot be changed.
    pub fn own(self, path: &Path) -> Result<(), Error> {
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid)).map_err(Error::io(format!(
            "give {} to user {}",
            path.display(),
            self.uid
        )))
    }
}

fn named(passwd: &str, name: &str) -> Option<User> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _, uid, gid, ..] = fields.as_slice() else {
            return None;
        };
        (*found == name).then_some(User {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres2:x:7:7::/:\npostgres:x:101:104::/:\n";
        assert_eq!(named(passwd, "postgres"), Some(User { uid: 101, gid: 104 }));
        assert_eq!(named(passwd, "nobody"), None);
    }
}
