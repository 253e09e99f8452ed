//! The caller's team and its API keys.

use auth::{key::NewKey, manage::KeyInfo};
use http::StatusCode;
use model::Timestamp;

use crate::{
    body,
    refusal::Refusal,
    route::{Answer, Call, json, nothing},
    wire::{ApiKey, CreatedApiKey, KeyMask, KeyName, Team},
};

/// `GET /teams`.
pub(crate) async fn list(call: Call) -> Answer {
    let id = call.caller.team.to_string();
    let team = call.api.keys.find_team(&call.caller.team);
    let name = team.and_then(|team| team.spec.display_name.clone());
    let team = Team {
        name: name.map_or_else(|| id.clone(), Into::into),
        team_id: id,
        // Whoever asks has it already, and the CLI keeps it from here.
        api_key: call.presented,
        is_default: true,
    };
    json(StatusCode::OK, &[team])
}

/// `GET /api-keys`.
pub(crate) async fn keys(call: Call) -> Answer {
    let keys = call.api.keys.list(&call.caller.team);
    let keys: Vec<ApiKey> = keys.into_iter().map(render).collect();
    json(StatusCode::OK, &keys)
}

/// `POST /api-keys`.
pub(crate) async fn create_key(call: Call) -> Answer {
    manages_keys(&call)?;
    let KeyName { name } = body::parse(&call.body)?;
    let keys = call.api.keys.clone();
    let made = call.api.outlive(async move {
        let wish = NewKey::named(name);
        Ok(keys.create(&call.caller.team, wish).await?)
    });
    let made = made.await?;
    let answer = CreatedApiKey {
        info: render(made.info),
        key: made.key.reveal().to_owned(),
    };
    json(StatusCode::CREATED, &answer)
}

/// `PATCH /api-keys/{id}`.
pub(crate) async fn rename_key(call: Call) -> Answer {
    manages_keys(&call)?;
    let KeyName { name } = body::parse(&call.body)?;
    let keys = &call.api.keys;
    let renamed = keys
        .rename(&call.caller.team, call.subject(), &name)
        .await?;
    json(StatusCode::OK, &render(renamed))
}

/// `DELETE /api-keys/{id}`.
pub(crate) async fn revoke_key(call: Call) -> Answer {
    manages_keys(&call)?;
    let keys = &call.api.keys;
    keys.revoke(&call.caller.team, call.subject()).await?;
    Ok(nothing())
}

/// A key with limits of its own could make one without them.
fn manages_keys(call: &Call) -> Result<(), Refusal> {
    if call.caller.may_manage_keys() {
        return Ok(());
    }
    Err(Refusal::forbidden(
        "this key has limits of its own and does not manage keys: use one without",
    ))
}

fn render(info: KeyInfo) -> ApiKey {
    ApiKey {
        id: info.id.to_string(),
        name: info.name.into(),
        mask: KeyMask {
            prefix: info.mask.prefix.to_owned(),
            value_length: info.mask.value_length,
            masked_value_prefix: info.mask.masked_value_prefix.into(),
            masked_value_suffix: info.mask.masked_value_suffix.into(),
        },
        created_at: info.created_at.unwrap_or(Timestamp::from_micros(0)),
        created_by: None,
        last_used: None,
    }
}
