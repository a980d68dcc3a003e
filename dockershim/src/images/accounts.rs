//! The users and groups in an image's `passwd(5)` and `group(5)` files.

use std::{collections::HashMap, path::Path, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{Error, checkpoint::Checkpoints, engine::Engine, images::Images};

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";

/// Users and groups by name and number.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    users: Vec<PasswdEntry>,
    groups: Vec<Group>,
}

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PasswdEntry {
    /// The user name.
    pub name: String,
    /// The uid.
    pub uid: i64,
    /// The gid of the primary group.
    pub gid: i64,
}

/// A line of `/etc/group`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    name: String,
    gid: i64,
    members: Vec<String>,
}

/// The accounts of images. Read once per image and kept on disk while the engine has the image,
/// because the content of an image id never changes.
#[derive(Debug)]
pub struct AccountsByImage {
    kept: Arc<Checkpoints<Accounts>>,
    /// Reads in progress, by image; concurrent requests for the same image wait.
    reading: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Accounts {
    /// Parses both files; invalid lines are skipped, as is common practice.
    pub fn parse(passwd: &str, group: &str) -> Self {
        let user = |line: &str| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            Some(PasswdEntry { name, uid, gid })
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

    /// The user with this name.
    pub fn by_name(&self, name: &str) -> Option<&PasswdEntry> {
        self.users.iter().find(|user| user.name == name)
    }

    /// The user with this uid.
    pub fn by_uid(&self, uid: i64) -> Option<&PasswdEntry> {
        self.users.iter().find(|user| user.uid == uid)
    }

    /// The gid of the group with this name.
    pub fn gid(&self, group: &str) -> Option<i64> {
        let found = self.groups.iter().find(|g| g.name == group);
        found.map(|group| group.gid)
    }

    /// The gids of the groups that list `user` as a member.
    pub fn groups_of(&self, user: &str) -> impl Iterator<Item = i64> {
        self.groups
            .iter()
            .filter(move |group| group.members.iter().any(|member| member == user))
            .map(|group| group.gid)
    }
}

impl AccountsByImage {
    /// Creates the store below `root_directory`.
    pub fn new(root_directory: &Path) -> Self {
        Self {
            kept: Arc::new(Checkpoints::new(root_directory.join("accounts"))),
            reading: Mutex::default(),
        }
    }

    /// The accounts of the image with this full id, one of `images`; empty if it has no such files.
    ///
    /// # Errors
    /// The engine's.
    pub async fn of(
        &self,
        engine: &Engine,
        images: &Images,
        image: &str,
    ) -> Result<Accounts, Error> {
        let turn = Arc::clone(self.reading.lock().entry(image.to_owned()).or_default());
        let found = {
            let _mine = turn.lock().await;
            self.find(engine, images, image).await
        };
        // Two references, the map's and this one, mean that no other request waits.
        let mut reading = self.reading.lock();
        if Arc::strong_count(&turn) == 2 {
            reading.remove(image);
        }
        found
    }

    async fn find(&self, engine: &Engine, images: &Images, image: &str) -> Result<Accounts, Error> {
        let key = file_name(image).to_owned();
        let (kept, of_image) = (Arc::clone(&self.kept), key.clone());
        let known = tokio::task::spawn_blocking(move || kept.load(&of_image)).await;
        if let Ok(Some(known)) = known {
            return Ok(known);
        }
        let [passwd, group] = engine.read_image_files(image, [PASSWD, GROUP]).await?;
        let accounts = Accounts::parse(
            &String::from_utf8_lossy(&passwd),
            &String::from_utf8_lossy(&group),
        );
        // Before the first list, it is unknown which images are gone.
        let images = images.require_list().ok().map(|()| images.snapshot());
        let (kept, saved) = (Arc::clone(&self.kept), accounts.clone());
        let save = move || {
            if let Err(error) = kept.save(&key, &saved) {
                tracing::warn!(
                    %error,
                    "cannot save the accounts of an image; it will be read again"
                );
            }
            if let Some(images) = images {
                kept.retain(|kept| images.iter().any(|image| file_name(&image.id) == kept));
            }
        };
        // If saving fails, the image is read again next time.
        let _ = tokio::task::spawn_blocking(save).await;
        Ok(accounts)
    }
}

/// The part of an image id that is a valid file name; ids are `<algorithm>:<hexadecimal digits>`.
fn file_name(image: &str) -> &str {
    image.rsplit([':', '/']).next().unwrap_or_default()
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
