//! What this process was given by whoever started it: in a Pod that is what the image says of its
//! processes, and nobody else tells the agent.

use std::collections::BTreeMap;

use crate::users::Names;

/// What is the agent's own, or is set for each process anyway.
const NOT_PASSED_ON: [&str; 4] = ["HOME", "USER", "LOGNAME", "PATH"];
/// Where the cluster is: no business of what runs in a sandbox.
const CLUSTER: &str = "KUBERNETES_";

/// What a process has from whoever started it.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) user: String,
    /// None where it is the root: then programs start at home.
    pub(crate) directory: Option<String>,
}

/// Those of this process.
pub(crate) fn own() -> Surroundings {
    // What is not text cannot be given on by /init either.
    let texts = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let uid = rustix::process::geteuid();
    let directory = std::env::current_dir().ok();
    let directory = directory.and_then(|path| path.into_os_string().into_string().ok());
    Surroundings {
        env: passed_on(texts),
        user: match uid.is_root() {
            true => "root".to_owned(),
            false => Names::read().user(uid.as_raw()),
        },
        directory: directory.filter(|path| path != "/"),
    }
}

fn passed_on(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let is_own = |name: &str| NOT_PASSED_ON.contains(&name) || name.starts_with(CLUSTER);
    all.filter(|(name, _)| !is_own(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_image_says_is_passed_on_and_where_the_cluster_is_is_not() {
        let all = ["LANG", "HOME", "KUBERNETES_SERVICE_HOST", "PATH"];
        let all = all.map(|name| (name.to_owned(), "x".to_owned()));
        let names: Vec<_> = passed_on(all.into_iter()).into_keys().collect();
        assert_eq!(names, ["LANG"]);
    }
}
