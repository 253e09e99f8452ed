//! Where a container's files are: the directories of its overlay.

use std::path::PathBuf;

use crate::containerd::Mount;

/// The directories of an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlay {
    /// What was written.
    pub(super) upper: PathBuf,
    /// What it lies on, the uppermost first.
    pub(super) lowers: Vec<PathBuf>,
}

impl Overlay {
    /// Those of a container's mounts.
    pub(super) fn of(mounts: &[Mount]) -> Result<Self, &'static str> {
        let [mount] = mounts else {
            return Err("its root is not one mount");
        };
        if mount.r#type != "overlay" {
            return Err(
                "the node's snapshotter is not overlayfs, which is the only one that is read",
            );
        }
        let option = |name: &str| {
            let mut options = mount.options.iter();
            options.find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
        };
        let (Some(upper), Some(lowers)) = (option("upperdir"), option("lowerdir")) else {
            return Err("its root cannot be written");
        };
        // A colon in a path is escaped, and no snapshotter has one in its paths.
        if upper.contains('\\') || lowers.contains('\\') {
            return Err("the paths of its root are escaped");
        }
        Ok(Self {
            upper: upper.into(),
            lowers: lowers.split(':').map(PathBuf::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(kind: &str, options: &[&str]) -> Mount {
        Mount {
            r#type: kind.into(),
            source: kind.into(),
            options: options.iter().map(|&option| option.into()).collect(),
        }
    }

    #[test]
    fn an_overlay_says_where_its_directories_are() {
        let found = Overlay::of(&[mount(
            "overlay",
            &[
                "index=off",
                "workdir=/s/3/work",
                "upperdir=/s/3/fs",
                "lowerdir=/s/2/fs:/s/1/fs",
            ],
        )]);
        let expected = Overlay {
            upper: "/s/3/fs".into(),
            lowers: vec!["/s/2/fs".into(), "/s/1/fs".into()],
        };
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn whatever_is_no_overlay_that_can_be_written_is_refused() {
        for mounts in [
            vec![],
            vec![mount("bind", &["rw"])],
            vec![mount("overlay", &["lowerdir=/a:/b"])],
            vec![mount("overlay", &["upperdir=/a\\:b", "lowerdir=/b"])],
            vec![mount("overlay", &["upperdir=/a", "lowerdir=/b"]); 2],
        ] {
            assert!(Overlay::of(&mounts).is_err(), "{mounts:?}");
        }
    }
}
