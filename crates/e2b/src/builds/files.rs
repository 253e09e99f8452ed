//! Files of COPY: whether they are here, where to upload them, and the upload itself.
//!
//! The address of an upload carries its own proof, for clients send no key with it: an HMAC of whose
//! files they are, which, and until when.

use std::collections::BTreeMap;

use auth::seal::hash;
use futures_util::TryStreamExt as _;
use http::StatusCode;
use model::{Namespace, workload::Secret};

use super::{part, wire::FileUpload};
use crate::{
    refusal::Refusal,
    route::{Answer, Call, Delivery, Param, json, nothing},
    service::E2b,
};

/// How long an address can be used, in seconds.
const VALID: i64 = 3600;
pub(crate) const QUERY: &[Param] = &[
    Param::new("team", "Whose files they are"),
    Param::new(
        "expires",
        "Until when the address can be used, in seconds of 1970",
    ),
    Param::new(
        "signature",
        "What proves that this server gave the address away",
    ),
];

/// `GET /templates/{id}/files/{hash}`.
pub(crate) async fn link(call: Call) -> Answer {
    let (api, team) = (&call.api, &call.caller.team);
    let builder = api.builder()?;
    let (template, files) = (part(&call, 0), part(&call, 1));
    if builder.requested(team, template).is_none() && builder.template_of(team, template).is_none()
    {
        return Err(Refusal::no_template(template));
    }
    let present = builder.shelf().has(team, files)?;
    let expires = api.now().as_micros() / 1_000_000 + VALID;
    let signature = sign(api, team, template, files, expires);
    let (scheme, host) = (scheme(&call), &call.host);
    let url = format!(
        "{scheme}://{host}/templates/{template}/files/{files}?team={team}&expires={expires}&signature={}",
        signature.reveal()
    );
    json(
        StatusCode::CREATED,
        &FileUpload {
            present,
            url,
            headers: BTreeMap::new(),
        },
    )
}

/// `PUT /templates/{id}/files/{hash}`.
pub(crate) async fn put(delivery: Delivery) -> Answer {
    let Delivery {
        api,
        path,
        query,
        body,
    } = delivery;
    let (Some(template), Some(files)) = (path.first(), path.get(1)) else {
        return Err(Refusal::unsigned());
    };
    let read = || {
        let expires: i64 = query.get("expires")?.parse().ok()?;
        let team = Namespace::new(query.get("team")?).ok()?;
        Some((expires, team, Secret::new(query.get("signature")?)))
    };
    let (expires, team, given) = read().ok_or_else(Refusal::unsigned)?;
    let wanted = sign(&api, &team, template, files, expires);
    // By their hashes, so that the time it takes says nothing.
    let forged = hash(&given) != hash(&wanted);
    if forged || api.now().as_micros() / 1_000_000 > expires {
        return Err(Refusal::unsigned());
    }
    let builder = api.builder()?;
    let content = body.into_data_stream().map_err(std::io::Error::other);
    builder.shelf().put(&team, files, content).await?;
    Ok(nothing())
}

fn sign(api: &E2b, team: &Namespace, template: &str, files: &str, expires: i64) -> Secret {
    let what = format!("{team}/{template}/{files}/{expires}");
    api.seal.upload_token(&what)
}

/// How the client reached this server: TLS ends at the listener of the domain, or before it.
fn scheme(call: &Call) -> &'static str {
    let forwarded = call.headers.get("x-forwarded-proto");
    let forwarded = forwarded.is_some_and(|value| value.as_bytes() == b"https");
    let domain = call.api.options.domain.as_deref();
    let of_domain = domain.is_some_and(|domain| {
        call.host == domain
            || call
                .host
                .strip_suffix(domain)
                .is_some_and(|rest| rest.ends_with('.'))
    });
    match forwarded || of_domain {
        true => "https",
        false => "http",
    }
}
