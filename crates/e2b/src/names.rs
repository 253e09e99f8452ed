//! What a client means by the name of a template: `[team/]name[:tag]`.

use std::sync::Arc;

use cache::PoolIndex;
use model::{
    Key, Name, Namespace, SandboxPool, SandboxTemplate, Spec as _, pool::PoolSpec,
    snapshot::DEFAULT_TAG, template::TemplateSpec,
};

use crate::{refusal::Refusal, service::E2b, snapshots::Start};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(crate) struct Meant {
    /// The template.
    pub(crate) template: Name,
    /// It, where it is there.
    pub(crate) found: Option<Arc<SandboxTemplate>>,
    /// The pool of the caller's that was named.
    pub(crate) pool: Option<Arc<SandboxPool>>,
    /// The snapshot of the caller's that was named.
    pub(crate) start: Option<Start>,
}

impl E2b {
    /// What a name means to a team. A template that another team keeps to itself, a pool of
    /// another team's and a tag that does not exist are not found.
    pub(crate) fn meant(&self, team: &Namespace, text: &str) -> Result<Meant, Refusal> {
        let is_default = text == self.options.default_template.as_str();
        let unknown = || match is_default {
            true => Refusal::no_default_template(text),
            false => Refusal::no_template(text),
        };
        let (name, tag) = plain(team, text).ok_or_else(unknown)?;
        let own_name = Name::new(name).ok().filter(|_| tag == DEFAULT_TAG);
        if let Some(pool) = own_name.as_ref().and_then(|name| self.pool(team, name)) {
            let template = pool.spec.template.clone();
            return Ok(Meant {
                found: self.template(team, &template),
                template,
                pool: Some(pool),
                start: None,
            });
        }
        let found = own_name
            .and_then(|name| self.template(team, &name))
            .or_else(|| self.template_by_alias(team, name, tag));
        let Some(found) = found else {
            return self.start_meant(team, text).ok_or_else(unknown);
        };
        Ok(Meant {
            template: found.metadata.name.clone(),
            found: Some(found),
            pool: None,
            start: None,
        })
    }

    /// Of those templates with an alias that a team may use: its own before others', then the build
    /// that was given it last, or else the first by name.
    fn template_by_alias(
        &self,
        team: &Namespace,
        name: &str,
        tag: &str,
    ) -> Option<Arc<SandboxTemplate>> {
        self.caches
            .templates
            .find_all()
            .into_iter()
            .filter(|t| t.spec.aliases().any(|alias| alias == (name, tag)))
            .filter(|t| may_use(team, t) && !t.metadata.is_deleting())
            .min_by_key(|t| {
                let tagged = t.spec.build.as_ref().and_then(|build| build.tagged_at(tag));
                let foreign = t.spec.built_by(team).is_none();
                (foreign, std::cmp::Reverse(tagged), t.metadata.name.clone())
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

/// The name without the team, and the tag; `None` if it is another team's.
fn plain<'a>(team: &Namespace, text: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, tag) = text.split_once(':').unwrap_or((text, DEFAULT_TAG));
    match name.split_once('/') {
        Some((of, name)) => (of == team.as_str()).then_some((name, tag)),
        None => Some((name, tag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_own_team_and_have_a_tag() {
        let team = Namespace::new("a").unwrap();
        for good in ["base", "a/base", "base:default", "a/base:default"] {
            assert_eq!(plain(&team, good), Some(("base", "default")), "{good}");
        }
        assert_eq!(plain(&team, "a/base:v2"), Some(("base", "v2")));
        assert_eq!(plain(&team, "b/base"), None);
        // What is left is nobody's name or alias, and is found nowhere.
        assert_eq!(plain(&team, "a/b/c"), Some(("b/c", "default")));
    }
}
