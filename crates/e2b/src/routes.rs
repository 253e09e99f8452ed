//! Every route of E2B's control API: those that are served, and those that are refused by name.

use crate::{
    audit, builds, connect, create, egress, fork, history, lifetime, list, logs, metrics, pause,
    refusal::Refusal,
    route::{
        Route, Served,
        Verb::{Delete, Get, Patch, Post, Put},
        nothing,
    },
    snapshots, tags, teams, templates, wire,
};

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Route> {
    SERVED.iter().chain(&REFUSED)
}

static SERVED: [Route; 48] = [
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
        Post,
        "/v2/templates",
        "Ask for a build of a template (second version)",
        &[202, 409, 501],
        |call| Box::pin(builds::request(call)),
    )
    .audited("template.request")
    .takes::<builds::wire::NewBuild>()
    .gives::<builds::wire::RequestedBuild>(),
    Route::new(
        Post,
        "/v3/templates",
        "Ask for a build of a template (third version)",
        &[202, 409, 501],
        |call| Box::pin(builds::request(call)),
    )
    .audited("template.request")
    .takes::<builds::wire::NewBuild>()
    .gives::<builds::wire::RequestedBuild>(),
    Route::new(
        Get,
        "/templates/{templateID}/files/{hash}",
        "Where the files of a build are uploaded to",
        &[201, 404, 501],
        |call| Box::pin(builds::files::link(call)),
    )
    .gives::<builds::wire::FileUpload>(),
    Route::new(
        Put,
        "/templates/{templateID}/files/{hash}",
        "Upload the files of a build, to an address that the server gave",
        &[204, 401, 429, 501],
        |_| Box::pin(async { Err(Refusal::no_such_path()) }),
    )
    .served(Served::Signed(|delivery| {
        Box::pin(builds::files::put(delivery))
    }))
    .query(builds::files::QUERY),
    Route::new(
        Post,
        "/v2/templates/{templateID}/builds/{buildID}",
        "Start a build",
        &[202, 404, 409, 501],
        |call| Box::pin(builds::start(call)),
    )
    .audited("template.build")
    .takes::<builds::wire::StartBuild>(),
    Route::new(
        Get,
        "/templates/{templateID}/builds/{buildID}/status",
        "How far a build is, and what it said",
        &[200, 404, 501],
        |call| Box::pin(builds::status(call)),
    )
    .query(builds::STATUS_QUERY)
    .gives::<builds::wire::BuildInfo>(),
    Route::new(
        Get,
        "/templates/{templateID}/builds/{buildID}/logs",
        "What a build said, by time",
        &[200, 404, 501],
        |call| Box::pin(builds::logs(call)),
    )
    .query(builds::LOGS_QUERY)
    .gives::<builds::wire::BuildLogs>(),
    Route::new(
        Patch,
        "/templates/{templateID}",
        "Change a template (first version)",
        &[200, 404, 501],
        |call| Box::pin(builds::update(call)),
    )
    .audited("template.update")
    .may_take::<builds::wire::TemplateUpdate>()
    .gives::<builds::wire::TemplateNames>(),
    Route::new(
        Patch,
        "/v2/templates/{templateID}",
        "Change a template (second version)",
        &[200, 404, 501],
        |call| Box::pin(builds::update(call)),
    )
    .audited("template.update")
    .may_take::<builds::wire::TemplateUpdate>()
    .gives::<builds::wire::TemplateNames>(),
    Route::new(
        Post,
        "/templates/tags",
        "Put tags on a build",
        &[201, 404, 409, 501],
        |call| Box::pin(tags::assign(call)),
    )
    .audited("template.tag")
    .takes::<builds::wire::AssignTags>()
    .gives::<builds::wire::AssignedTags>(),
    Route::new(
        Delete,
        "/templates/tags",
        "Take tags away",
        &[204, 404, 409, 501],
        |call| Box::pin(tags::remove(call)),
    )
    .audited("template.untag")
    .takes::<builds::wire::RemoveTags>(),
    Route::new(
        Get,
        "/templates/{templateID}/tags",
        "The tags of a template",
        &[200, 404],
        |call| Box::pin(tags::list(call)),
    )
    .gives::<Vec<wire::TemplateTag>>(),
    Route::new(
        Get,
        "/templates/{templateID}/tags/count",
        "How many tags a template has",
        &[200, 404],
        |call| Box::pin(tags::count(call)),
    )
    .gives::<builds::wire::TagCount>(),
    Route::new(
        Get,
        "/templates/{templateID}/tags/exists",
        "Whether a template has a tag",
        &[200, 404],
        |call| Box::pin(tags::exists(call)),
    )
    .query(tags::EXISTS_QUERY)
    .gives::<builds::wire::TagExists>(),
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
        "Delete a snapshot, or a template that the team has built",
        &[204, 404, 409],
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

static REFUSED: [Route; 37] = refused! {
    "builds of the first version, by pushing to a registry of E2B's,":
        Post "/templates",
        Post "/templates/{templateID}",
        Post "/templates/{templateID}/builds/{buildID}";
    "histories of template tags":
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
