//! What a client means by the name of a template: `[team/]name[:tag]`.

use std::sync::Arc;

use cache::PoolIndex;
use model::{
    Key, Name, Namespace, SandboxPool, SandboxTemplate, Spec as _, pool::PoolSpec,
    template::TemplateSpec,
};

use crate::{refusal::Refusal, service::E2b};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) struct Meant {
    /// The template.
    pub(crate) template: Name,
    /// It, where it is there.
    pub(crate) found: Option<Arc<SandboxTemplate>>,
    /// The pool of the caller's that was named.
    pub(crate) pool: Option<Arc<SandboxPool>>,
}

impl E2b {
    /// What a name means to a team. A template that another team keeps to itself, a pool of
    /// another team's and a tag that does not exist are not found.
    pub(crate) fn meant(&self, team: &Namespace, text: &str) -> Result<Meant, Refusal> {
        let unknown = || Refusal::no_template(text);
        let name = plain(team, text).ok_or_else(unknown)?;
        if let Some(pool) = self.pool(team, &name) {
            let template = pool.spec.template.clone();
            return Ok(Meant {
                found: self.template(team, &template),
                template,
                pool: Some(pool),
            });
        }
        let found = self.template(team, &name).ok_or_else(unknown)?;
        Ok(Meant {
            template: name,
            found: Some(found),
            pool: None,
        })
    }

    /// A template that a team may use.
    pub(crate) fn template(&self, team: &Namespace, name: &Name) -> Option<Arc<SandboxTemplate>> {
        let key = Key {
            kind: TemplateSpec::KIND,
            namespace: None,
            name: name.clone(),
        };
        let found = self.caches.templates.find(&key)?;
        (may_use(team, &found) && !found.metadata.is_deleting()).then_some(found)
    }

    fn pool(&self, team: &Namespace, name: &Name) -> Option<Arc<SandboxPool>> {
        let key = Key::namespaced(PoolSpec::KIND, team.clone(), name.clone());
        let found = self.caches.pools.find(&key)?;
        (!found.metadata.is_deleting()).then_some(found)
    }

    /// Pools of a team whose members are exactly what a template says.
    pub(crate) fn pools_of(&self, team: &Namespace, template: &Name) -> Vec<Arc<SandboxPool>> {
        let found = self
            .caches
            .pools
            .find_by(PoolIndex::Template, template.as_str());
        found
            .into_iter()
            .filter(|pool| {
                let spec = &pool.spec;
                pool.metadata.namespace.as_ref() == Some(team)
                    && !pool.metadata.is_deleting()
                    && spec.idle_images.is_empty()
                    && spec.resources.is_none()
            })
            .collect()
    }
}

/// Whether a team may use a template.
pub(crate) fn may_use(team: &Namespace, template: &SandboxTemplate) -> bool {
    template.spec.teams.is_empty() || template.spec.teams.contains(team)
}

/// The name without the team and the default tag; `None` if it can be nobody's here.
fn plain(team: &Namespace, text: &str) -> Option<Name> {
    let (name, tag) = text.split_once(':').unwrap_or((text, "default"));
    let name = match name.split_once('/') {
        Some((of, name)) => (of == team.as_str()).then_some(name)?,
        None => name,
    };
    (tag == "default").then(|| Name::new(name).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_own_team_and_the_default_tag() {
        let team = Namespace::new("a").unwrap();
        let plain = |text| plain(&team, text).map(|n| n.to_string());
        for good in ["base", "a/base", "base:default", "a/base:default"] {
            assert_eq!(plain(good).as_deref(), Some("base"), "{good}");
        }
        for bad in ["b/base", "base:v2", "", "a/", ":", "a/b/c", "Base", "base:"] {
            assert_eq!(plain(bad), None, "{bad}");
        }
    }
}
