//! Tags: which build of a template a name means.

use std::{collections::BTreeSet, sync::Arc};

use http::StatusCode;
use model::snapshot::DEFAULT_TAG;

use crate::{
    body,
    builds::wire::{AssignTags, AssignedTags, RemoveTags, TagCount, TagExists},
    refusal::Refusal,
    route::{Answer, Call, Param, json, nothing},
    wire::TemplateTag,
};

pub(crate) const EXISTS_QUERY: &[Param] = &[Param::new("tag", "The tag")];

/// `GET /templates/{id}/tags`.
pub(crate) async fn list(call: Call) -> Answer {
    json(StatusCode::OK, &all(&call)?)
}

/// `GET /templates/{id}/tags/count`.
pub(crate) async fn count(call: Call) -> Answer {
    let total = all(&call)?.len();
    json(StatusCode::OK, &TagCount { total })
}

/// `GET /templates/{id}/tags/exists`.
pub(crate) async fn exists(call: Call) -> Answer {
    let asked = call.query.get("tag");
    let asked = asked.ok_or_else(|| Refusal::bad_field("tag", "name one"))?;
    let exists = all(&call)?.iter().any(|known| known.tag == asked);
    json(StatusCode::OK, &TagExists { exists })
}

/// `POST /templates/tags`.
pub(crate) async fn assign(call: Call) -> Answer {
    let asked: AssignTags = body::parse(&call.body)?;
    let builder = Arc::clone(call.api.builder()?);
    let team = call.caller.team.clone();
    let (build, tags) = call
        .api
        .outlive(async move { Ok(builder.assign(&team, &asked.target, &asked.tags).await?) })
        .await?;
    json(
        StatusCode::CREATED,
        &AssignedTags {
            tags: tags.iter().map(ToString::to_string).collect(),
            build_id: build.to_string(),
        },
    )
}

/// `DELETE /templates/tags`.
pub(crate) async fn remove(call: Call) -> Answer {
    let asked: RemoveTags = body::parse(&call.body)?;
    let builder = Arc::clone(call.api.builder()?);
    let team = call.caller.team.clone();
    call.api
        .outlive(async move { Ok(builder.untag(&team, &asked.name, &asked.tags).await?) })
        .await?;
    Ok(nothing())
}

/// Of a template that was built, what each tag means; of another, all stand for the one there is.
fn all(call: &Call) -> Result<Vec<TemplateTag>, Refusal> {
    let (api, team, asked) = (&call.api, &call.caller.team, call.subject());
    let built = api
        .builder
        .as_ref()
        .map(|builder| builder.tags(team, asked));
    if let Some(Ok(tags)) = built {
        let tags = tags.into_iter().map(|tag| TemplateTag {
            tag: tag.tag.into(),
            build_id: tag.build.to_string(),
            created_at: tag.at,
        });
        return Ok(tags.collect());
    }
    let template = api.one(team, asked)?;
    let meant = api.meant(team, asked)?;
    let own = meant.found.filter(|_| meant.pool.is_none());
    let mut tags = BTreeSet::from([DEFAULT_TAG.to_owned()]);
    if let Some(own) = &own {
        tags.extend(own.spec.aliases().map(|(_, tag)| tag.to_owned()));
    }
    let tags = tags.into_iter().map(|tag| TemplateTag {
        tag,
        build_id: template.build_id.clone(),
        created_at: template.created_at,
    });
    Ok(tags.collect())
}
