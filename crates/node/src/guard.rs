//! From a container's id to a container of ours.
//!
//! Whoever reaches containerd's socket is root of the node, so what is done there on somebody's word
//! is narrow: only the container `sandbox` of a Pod that carries our labels, and only if it is of the
//! Pod that was meant. A Pod's labels are on the container that holds its namespaces, which the
//! kubelet's containers of the same Pod are found with.

use std::{collections::HashMap, fmt, str::FromStr};

use crate::{
    containerd::{Container, Containerd, State},
    error::{NodeError, Result},
};

/// The container of a Pod that is the sandbox; all others are its helpers.
pub const CONTAINER: &str = "sandbox";

const KIND: &str = "io.cri-containerd.kind";
const NAME: &str = "io.kubernetes.container.name";
const POD: &str = "io.kubernetes.pod.uid";
/// On Pods of ours.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "dormouse");
/// The sandbox that a Pod of ours is.
const UID: &str = "dormouse.dev/uid";

/// The id of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerId(String);

/// A text that is no id of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id of a container has up to 128 letters, digits, dots, dashes and underscores")]
pub struct NoContainerId;

impl FromStr for ContainerId {
    type Err = NoContainerId;
    /// As containerd has it, or as a Pod's status does.
    fn from_str(text: &str) -> Result<Self, NoContainerId> {
        let id = text.strip_prefix("containerd://").unwrap_or(text);
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        match (1..=128).contains(&id.len()) && id.chars().all(fits) {
            true => Ok(Self(id.into())),
            false => Err(NoContainerId),
        }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The sandbox of a Pod of ours on this node.
#[derive(Clone, Debug)]
pub struct Sandbox {
    containerd: Containerd,
    container: Container,
}

impl Sandbox {
    /// Finds a sandbox by its container, of a certain Pod if one is named.
    ///
    /// # Errors
    /// If there is none, or what is there is not ours.
    pub async fn find(
        containerd: &Containerd,
        id: &ContainerId,
        pod: Option<&str>,
    ) -> Result<Self> {
        let container = containerd.container(&id.0).await?;
        let foreign = |why| NodeError::Foreign {
            id: id.0.clone(),
            why,
        };
        let its = is_sandbox(&container.labels, pod).map_err(foreign)?;
        let holders = containerd
            .labelled(&[(POD, its), (KIND, "sandbox")])
            .await?;
        let ours = |labels: &HashMap<String, String>| {
            labels.get(MANAGED.0).is_some_and(|by| by == MANAGED.1) && labels.contains_key(UID)
        };
        if !holders.iter().any(|holder| ours(&holder.labels)) {
            return Err(foreign("its Pod is not one of Dormouse's"));
        }
        Ok(Self {
            containerd: containerd.clone(),
            container,
        })
    }

    /// Its container.
    #[must_use]
    pub const fn container(&self) -> &Container {
        &self.container
    }

    /// What its processes do.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub async fn state(&self) -> Result<State> {
        self.containerd.state(&self.container.id).await
    }

    /// containerd, which keeps its files and its image.
    pub(crate) const fn containerd(&self) -> &Containerd {
        &self.containerd
    }
}

/// The Pod of a container, if the container is that Pod's sandbox.
fn is_sandbox<'a>(
    labels: &'a HashMap<String, String>,
    pod: Option<&str>,
) -> Result<&'a str, &'static str> {
    let label = |name| labels.get(name).map(String::as_str);
    if label(KIND) != Some("container") || label(NAME) != Some(CONTAINER) {
        return Err("it is not the container of a Pod that is called sandbox");
    }
    match label(POD) {
        None | Some("") => Err("it is of no Pod"),
        Some(its) if pod.is_some_and(|pod| pod != its) => Err("it is of another Pod"),
        Some(its) => Ok(its),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_container_called_sandbox_of_the_pod_that_is_meant_is_one() {
        let labels = |kind: &str, name: &str, pod: &str| {
            let labels = [(KIND, kind), (NAME, name), (POD, pod)];
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
            HashMap::from(labels)
        };
        let is = |labels: &HashMap<String, String>, pod| is_sandbox(labels, pod).is_ok();
        let good = labels("container", "sandbox", "u1");
        assert!(is(&good, Some("u1")));
        assert!(is(&good, None));
        assert!(!is(&good, Some("u2")));
        assert!(!is(&labels("container", "agent", "u1"), Some("u1")));
        assert!(!is(&labels("sandbox", "sandbox", "u1"), Some("u1")));
        assert!(!is(&labels("container", "sandbox", ""), None));
        assert!(!is(&HashMap::new(), None));
    }

    #[test]
    fn an_id_is_taken_as_a_pod_says_it_and_holds_nothing_else() {
        let id = |text: &str| text.parse::<ContainerId>();
        assert_eq!(id("containerd://ab12").unwrap().to_string(), "ab12");
        assert_eq!(id("ab12").unwrap().to_string(), "ab12");
        for bad in [
            "",
            "containerd://",
            "a/b",
            "../x",
            "a\"b",
            "docker://ab",
            &"a".repeat(129),
        ] {
            assert!(id(bad).is_err(), "{bad}");
        }
    }
}
