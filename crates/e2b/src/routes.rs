//! Every route of E2B's control API: those that are served, and those that are refused by name.

use crate::{
    audit, connect, create, egress, fork, history, lifetime, list, logs, metrics, pause,
    refusal::Refusal,
    route::{
        Route, Served,
        Verb::{Delete, Get, Patch, Post, Put},
        nothing,
    },
    snapshots, teams, templates, wire,
};

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Route> {
    SERVED.iter().chain(&REFUSED)
}

static SERVED: [Route; 35] = [
    Route::new(
        Get,
        "/health",
        "Whether the server answers",
        &[204, 503],
        |_| Box::pin(async { Ok(nothing()) }),
    )
    .served(Served::Open(|api| {
        api.unseen()
            .map_or_else(|| Ok(nothing()), |what| Err(Refusal::blind(what)))
    })),
    Route::new(
        Post,
        "/sandboxes",
        "Create a sandbox (first version: 15 seconds, secured if asked)",
        &[201, 404, 409, 422, 503, 504],
        |call| Box::pin(create::first(call)),
    )
    .audited("sandbox.create")
    .takes::<wire::NewSandbox>()
    .gives::<wire::Sandbox>(),
    Route::new(
        Post,
        "/v2/sandboxes",
        "Create a sandbox (second version: 300 seconds, always secured)",
        &[201, 404, 409, 422, 503, 504],
        |call| Box::pin(create::second(call)),
    )
    .audited("sandbox.create")
    .takes::<wire::NewSandbox>()
    .gives::<wire::Sandbox>(),
    Route::new(
        Get,
        "/sandboxes",
        "All sandboxes that run",
        &[200],
        |call| Box::pin(list::first(call)),
    )
    .query(list::FIRST_QUERY)
    .gives::<Vec<wire::ListedSandbox>>(),
    Route::new(
        Get,
        "/v2/sandboxes",
        "A page of sandboxes",
        &[200],
        |call| Box::pin(list::second(call)),
    )
    .query(list::SECOND_QUERY)
    .gives::<Vec<wire::ListedSandbox>>(),
    Route::new(
        Get,
        "/sandboxes/metrics",
        "What several sandboxes used last",
        &[200],
        |call| Box::pin(metrics::many(call)),
    )
    .query(metrics::MANY_QUERY)
    .gives::<wire::SandboxesMetrics>(),
    Route::new(
        Get,
        "/sandboxes/{sandboxID}",
        "A sandbox",
        &[200, 404],
        |call| Box::pin(list::get(call)),
    )
    .gives::<wire::SandboxDetail>(),
    Route::new(
        Delete,
        "/sandboxes/{sandboxID}",
        "End a sandbox",
        &[204, 404, 409, 503],
        |call| Box::pin(lifetime::kill(call)),
    )
    .audited("sandbox.kill"),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/connect",
        "Connect to a sandbox, waking it (first version)",
        &[200, 201, 404, 409, 503],
        |call| Box::pin(connect::first(call)),
    )
    .audited("sandbox.connect")
    .takes::<wire::Connect>()
    .gives::<wire::Sandbox>(),
    Route::new(
        Post,
        "/v2/sandboxes/{sandboxID}/connect",
        "Connect to a sandbox, waking it (second version)",
        &[200, 201, 404, 409, 503],
        |call| Box::pin(connect::second(call)),
    )
    .audited("sandbox.connect")
    .may_take::<wire::Connect>()
    .gives::<wire::Sandbox>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/resume",
        "Wake a sandbox that sleeps",
        &[201, 404, 409, 503],
        |call| Box::pin(connect::resume(call)),
    )
    .audited("sandbox.resume")
    .may_take::<wire::Resume>()
    .gives::<wire::Sandbox>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/pause",
        "Put a sandbox to sleep",
        &[204, 404, 409, 503],
        |call| Box::pin(pause::pause(call)),
    )
    .audited("sandbox.pause")
    .may_take::<wire::Pause>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/timeout",
        "Move the deadline of a sandbox; 0 brings it about",
        &[204, 404, 409, 503],
        |call| Box::pin(lifetime::set_timeout(call)),
    )
    .audited("sandbox.timeout")
    .takes::<wire::SetTimeout>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/refreshes",
        "Extend the deadline of a sandbox",
        &[204, 404, 503],
        |call| Box::pin(lifetime::refresh(call)),
    )
    .audited("sandbox.refresh")
    .may_take::<wire::Refresh>(),
    Route::new(
        Put,
        "/sandboxes/{sandboxID}/network",
        "Replace what a sandbox may reach",
        &[204, 404, 409, 503],
        |call| Box::pin(egress::update(call)),
    )
    .audited("sandbox.network")
    .may_take::<wire::NetworkUpdate>(),
    Route::new(
        Get,
        "/sandboxes/{sandboxID}/metrics",
        "What a sandbox used",
        &[200, 404],
        |call| Box::pin(metrics::one(call)),
    )
    .query(metrics::ONE_QUERY)
    .gives::<Vec<wire::SandboxMetric>>(),
    Route::new(
        Get,
        "/sandboxes/{sandboxID}/logs",
        "What happened to a sandbox (first version)",
        &[200, 404],
        |call| Box::pin(logs::first(call)),
    )
    .query(logs::FIRST_QUERY)
    .gives::<wire::SandboxLogs>(),
    Route::new(
        Get,
        "/v2/sandboxes/{sandboxID}/logs",
        "What happened to a sandbox (second version)",
        &[200, 404],
        |call| Box::pin(logs::second(call)),
    )
    .query(logs::SECOND_QUERY)
    .gives::<wire::SandboxLogsV2>(),
    Route::new(
        Get,
        "/templates",
        "What sandboxes can be made from",
        &[200],
        |call| Box::pin(templates::first(call)),
    )
    .query(templates::FIRST_QUERY)
    .gives::<Vec<wire::Template>>(),
    Route::new(
        Get,
        "/v2/templates",
        "What sandboxes can be made from, in pages",
        &[200],
        |call| Box::pin(templates::second(call)),
    )
    .query(templates::SECOND_QUERY)
    .gives::<Vec<wire::Template>>(),
    Route::new(
        Get,
        "/default-templates",
        "The template of a sandbox whose request names none",
        &[200],
        |call| Box::pin(templates::defaults(call)),
    )
    .gives::<Vec<wire::Template>>(),
    Route::new(
        Get,
        "/templates/aliases/{alias}",
        "Whether a name is taken, and by what",
        &[200, 404],
        |call| Box::pin(templates::alias(call)),
    )
    .gives::<wire::TemplateAlias>(),
    Route::new(
        Get,
        "/templates/{templateID}",
        "A template",
        &[200, 404],
        |call| Box::pin(templates::get(call)),
    )
    .gives::<wire::TemplateWithBuilds>(),
    Route::new(
        Get,
        "/templates/{templateID}/tags",
        "The tags of a template",
        &[200, 404],
        |call| Box::pin(templates::tags(call)),
    )
    .gives::<Vec<wire::TemplateTag>>(),
    Route::new(Get, "/teams", "The caller's team", &[200], |call| {
        Box::pin(teams::list(call))
    })
    .served(Served::KeyOrBearer(|call| Box::pin(teams::list(call))))
    .gives::<Vec<wire::Team>>(),
    Route::new(
        Get,
        "/api-keys",
        "The team's API keys",
        &[200, 503],
        |call| Box::pin(teams::keys(call)),
    )
    .gives::<Vec<wire::ApiKey>>(),
    Route::new(Post, "/api-keys", "Make an API key", &[201, 503], |call| {
        Box::pin(teams::create_key(call))
    })
    .audited("key.create")
    .takes::<wire::KeyName>()
    .gives::<wire::CreatedApiKey>(),
    Route::new(
        Patch,
        "/api-keys/{apiKeyID}",
        "Rename an API key",
        &[200, 404, 503],
        |call| Box::pin(teams::rename_key(call)),
    )
    .audited("key.rename")
    .takes::<wire::KeyName>()
    .gives::<wire::ApiKey>(),
    Route::new(
        Delete,
        "/api-keys/{apiKeyID}",
        "End an API key",
        &[204, 404, 503],
        |call| Box::pin(teams::revoke_key(call)),
    )
    .audited("key.revoke"),
    Route::new(
        Get,
        "/dormouse/audit",
        "Who did what to sandboxes and keys (not E2B's)",
        &[200, 501],
        |call| Box::pin(audit::list(call)),
    )
    .query(audit::QUERY)
    .gives::<wire::AuditPage>(),
    Route::new(
        Get,
        "/dormouse/history",
        "What sandboxes were, and are (not E2B's)",
        &[200, 503],
        |call| Box::pin(history::list(call)),
    )
    .query(history::QUERY)
    .gives::<wire::HistoryPage>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/fork",
        "Make sandboxes that start from the files of one that runs",
        &[201, 404, 409, 503],
        |call| Box::pin(fork::fork(call)),
    )
    .audited("sandbox.fork")
    .may_take::<wire::Fork>()
    .gives::<Vec<wire::ForkResult>>(),
    Route::new(
        Post,
        "/sandboxes/{sandboxID}/snapshots",
        "Keep the files of a sandbox, to create others from",
        &[201, 404, 409, 503],
        |call| Box::pin(snapshots::create(call)),
    )
    .audited("sandbox.snapshot")
    .may_take::<wire::NewSnapshot>()
    .gives::<wire::SnapshotInfo>(),
    Route::new(
        Get,
        "/snapshots",
        "A page of snapshots, newest first",
        &[200],
        |call| Box::pin(snapshots::list(call)),
    )
    .query(snapshots::QUERY)
    .gives::<Vec<wire::SnapshotInfo>>(),
    Route::new(
        Delete,
        "/templates/{templateID}",
        "Delete a snapshot; templates belong to the installation",
        &[204, 404, 501],
        |call| Box::pin(snapshots::delete(call)),
    )
    .audited("snapshot.delete"),
];

/// Rows that differ only in what they name.
macro_rules! refused {
    ($($what:literal: $($verb:ident $path:literal),+;)+) => {
        [$($(Route::not_built($verb, $path, |_| {
            Box::pin(async { Err(Refusal::not_built($what)) })
        })),+),+]
    };
}

static REFUSED: [Route; 49] = refused! {
    "template builds":
        Post "/templates",
        Post "/v2/templates",
        Post "/v3/templates",
        Post "/templates/{templateID}",
        Patch "/templates/{templateID}",
        Patch "/v2/templates/{templateID}",
        Get "/templates/{templateID}/files/{hash}",
        Post "/templates/{templateID}/builds/{buildID}",
        Post "/v2/templates/{templateID}/builds/{buildID}",
        Get "/templates/{templateID}/builds/{buildID}/status",
        Get "/templates/{templateID}/builds/{buildID}/logs";
    "template tags":
        Post "/templates/tags",
        Delete "/templates/tags",
        Get "/templates/{templateID}/tags/count",
        Get "/templates/{templateID}/tags/exists",
        Get "/templates/{templateID}/tags/groups",
        Get "/templates/{templateID}/tags/{tag}/assignments";
    "team metrics":
        Get "/teams/{teamID}/metrics",
        Get "/teams/{teamID}/metrics/max";
    "volumes":
        Get "/volumes",
        Post "/volumes",
        Get "/volumes/{volumeID}",
        Delete "/volumes/{volumeID}",
        Get "/volumecontent/{volumeID}/path",
        Patch "/volumecontent/{volumeID}/path",
        Delete "/volumecontent/{volumeID}/path",
        Get "/volumecontent/{volumeID}/dir",
        Post "/volumecontent/{volumeID}/dir",
        Get "/volumecontent/{volumeID}/file",
        Put "/volumecontent/{volumeID}/file";
    "secrets":
        Get "/secrets",
        Post "/secrets",
        Get "/secrets/{secret}",
        Post "/secrets/{secret}",
        Delete "/secrets/{secret}";
    "events":
        Get "/events/sandboxes",
        Get "/events/sandboxes/{sandboxID}";
    "webhooks":
        Get "/events/webhooks",
        Post "/events/webhooks",
        Get "/events/webhooks/{webhookID}",
        Patch "/events/webhooks/{webhookID}",
        Delete "/events/webhooks/{webhookID}";
    "access tokens":
        Post "/access-tokens",
        Delete "/access-tokens/{accessTokenID}";
    "nodes":
        Get "/nodes",
        Get "/nodes/{nodeID}",
        Post "/nodes/{nodeID}";
    "admin routes":
        Get "/admin/{*rest}",
        Post "/admin/{*rest}";
};
