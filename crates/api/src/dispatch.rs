//! Paths of a catalogue to the handlers they mean.
//!
//! Which collections there are can change at any moment, so there are no fixed routes: a path is
//! read as `/api/v1` or `/apis/{group}/{version}`, then namespace, collection, name, subresource.

use axum::{
    extract::{FromRequest as _, FromRequestParts as _, Request, State},
    response::{IntoResponse as _, Response},
};
use http::Method;
use model::{Namespace, kinds::Scope};

use crate::{
    body::RawBody,
    collection::{Collection, Part},
    delete, discovery, foreign,
    negotiate::Accept,
    params::Params,
    place::Place,
    read,
    refusal::Refusal,
    resource_api::Api,
    served::Served,
};

/// Serves any path of a catalogue.
pub(crate) async fn serve(State(api): State<Api>, request: Request) -> Response {
    match dispatch(api, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn dispatch(api: Api, request: Request) -> Result<Response, Refusal> {
    let path = request.uri().path().to_owned();
    let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
    let (group, version, rest) = match steps.as_slice() {
        ["api"] => return Ok(discovery::core_versions().await),
        ["apis"] => return Ok(discovery::catalogue_groups(&api)),
        ["apis", group] => return discovery::catalogue_group(&api, group),
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(Refusal::no_such_path()),
    };
    if rest.is_empty() {
        return discovery::catalogue_resources(&api, group, version);
    }
    let target = Target::new(&api, group, version, rest)?;
    let (mut parts, body) = request.into_parts();
    let params = Params::from_request_parts(&mut parts, &api).await?;
    let accept = Accept::from_request_parts(&mut parts, &api).await?;
    let method = parts.method.clone();
    let body = RawBody::from_request(Request::from_parts(parts, body), &api).await?;
    target.call(api, &method, params, accept, body).await
}

/// What a path names.
struct Target {
    collection: &'static Collection,
    place: Place,
    part: Part,
}

impl Target {
    fn new(api: &Api, group: &str, version: &str, rest: &[&str]) -> Result<Self, Refusal> {
        let find = |plural: &str| {
            let catalogue = api.catalogue.as_ref()?;
            catalogue.find(group, version, plural)
        };
        // `namespaces/{name}/{plural}` is within a namespace; `namespaces/{name}` is one.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if rest.first().is_some_and(|plural| *plural != "status") =>
            {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, part) = match rest {
            [plural] => (*plural, None, Part::Main),
            [plural, name] => (*plural, Some(*name), Part::Main),
            [plural, name, "status"] => (*plural, Some(*name), Part::Status),
            _ => return Err(Refusal::no_such_path()),
        };
        let collection = find(plural).ok_or_else(Refusal::no_such_path)?;
        let fits = match collection.scope {
            Scope::Cluster => namespace.is_none(),
            Scope::Namespaced => namespace.is_some() || name.is_none(),
        };
        if !fits || (part == Part::Status && !collection.has_status) {
            return Err(Refusal::no_such_path());
        }
        let namespace = namespace
            .map(|text| {
                Namespace::new(text)
                    .map_err(|e| Refusal::invalid_option("metadata.namespace", e.to_string()))
            })
            .transpose()?;
        Ok(Self {
            collection,
            place: Place {
                served: Served::Foreign(collection),
                namespace,
                name: name.map(str::to_owned),
            },
            part,
        })
    }

    async fn call(
        self,
        api: Api,
        method: &Method,
        params: Params,
        accept: Accept,
        body: RawBody,
    ) -> Result<Response, Refusal> {
        let Self {
            collection,
            place,
            part,
        } = self;
        match (method, place.name.is_some(), part) {
            (&Method::GET, true, _) => read::get(State(api), place, params, accept).await,
            (&Method::GET, false, _) => {
                read::list_or_watch(State(api), place, params, accept).await
            }
            (&Method::POST, false, _) => {
                foreign::create(api, collection, place, &params, accept, body).await
            }
            (&Method::PUT, true, _) => {
                foreign::replace(api, collection, place, &params, accept, body, part).await
            }
            (&Method::PATCH, true, _) => {
                foreign::patch(api, collection, place, &params, accept, body, part).await
            }
            (&Method::DELETE, true, Part::Main) => {
                delete::delete(State(api), place, params, accept, body).await
            }
            (&Method::DELETE, false, _) => {
                delete::delete_collection(State(api), place, params, accept, body).await
            }
            (_, _, _) => Err(Refusal::method_not_allowed()),
        }
    }
}
