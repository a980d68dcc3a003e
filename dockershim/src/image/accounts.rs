//! The users and groups that an image's own files name, as `passwd(5)` and `group(5)`
//! have them.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::engine::{Engine, EngineError};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Images whose files are remembered. What an id stands for never changes.
const REMEMBERED: usize = 64;

/// Users and groups by name and number.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Accounts {
    users: Vec<User>,
    groups: Vec<Group>,
}

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: i64,
    /// The number of its primary group.
    pub gid: i64,
}

/// A line of `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    name: String,
    gid: i64,
    members: Vec<String>,
}

/// The accounts of images that were asked for.
#[derive(Debug, Default)]
pub struct AccountsByImage(Mutex<HashMap<String, Arc<Accounts>>>);

impl Accounts {
    /// Reads both files; a line that is none is passed over, as everyone does.
    pub fn parse(passwd: &str, group: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(User { name, uid, gid })
        };
        let group_of = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let gid = fields.nth(1)?.parse().ok()?;
            let members = fields.next().unwrap_or_default().trim().split(',');
            Some(Group {
                name,
                gid,
                members: members
                    .filter(|member| !member.is_empty())
                    .map(str::to_owned)
                    .collect(),
            })
        };
        Self {
            users: passwd.lines().filter_map(user).collect(),
            groups: group.lines().filter_map(group_of).collect(),
        }
    }

    /// The user of this name.
    pub fn by_name(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// The user of this number.
    pub fn by_uid(&self, uid: i64) -> Option<&User> {
        self.users.iter().find(|user| user.uid == uid)
    }

    /// The number of the group of this name.
    pub fn gid(&self, group: &str) -> Option<i64> {
        let found = self.groups.iter().find(|g| g.name == group);
        found.map(|group| group.gid)
    }

    /// The numbers of the groups that name `user` as a member.
    pub fn groups_of(&self, user: &str) -> impl Iterator<Item = i64> {
        self.groups
            .iter()
            .filter(move |group| group.members.iter().any(|member| member == user))
            .map(|group| group.gid)
    }
}

impl AccountsByImage {
    /// The accounts of the image with this full id; empty where it has no such files.
    ///
    /// # Errors
    /// The engine's.
    pub async fn of(&self, engine: &Engine, image: &str) -> Result<Arc<Accounts>, EngineError> {
        if let Some(known) = self.0.lock().get(image) {
            return Ok(Arc::clone(known));
        }
        let [passwd, group] = engine.read_image_files(image, [PASSWD, GROUP]).await?;
        let accounts = Arc::new(Accounts::parse(
            &String::from_utf8_lossy(&passwd),
            &String::from_utf8_lossy(&group),
        ));
        let mut known = self.0.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(image.to_owned(), Arc::clone(&accounts));
        Ok(accounts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_files_of_an_image() {
        let accounts = Accounts::parse(
            "root:x:0:0:root:/root:/bin/sh\n\n# no user\nweb:x:1000:1001::/:/bin/sh\nbad:x:y:0\n",
            "root:x:0:\nstaff:x:50:root,web\nweb:x:1001:\nlast:x:60:web",
        );
        assert_eq!(accounts.by_name("web").unwrap().gid, 1001);
        assert_eq!(accounts.by_uid(0).unwrap().name, "root");
        assert_eq!(accounts.by_name("bad"), None);
        assert_eq!(accounts.gid("staff"), Some(50));
        assert_eq!(accounts.groups_of("web").collect::<Vec<_>>(), [50, 60]);
        assert_eq!(accounts.groups_of("nobody").count(), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_read(passwd in ".{0,100}", group in ".{0,100}") {
            Accounts::parse(&passwd, &group);
        }
    }
}
