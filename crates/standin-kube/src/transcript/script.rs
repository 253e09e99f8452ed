//! What is asked of an API server.

use serde_json::{Value, json};

use super::step::{
    APPLY, JSON, MERGE, PATCH, STRATEGIC, Step, delete, get, keep, patch, post, put, until,
    until_is,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.transcript.dormouse.dev";
const WIDGETS: &str = "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets";
const ONE: &str = "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/one";
const ONE_STATUS: &str =
    "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/one/status";
const TWO: &str = "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/two";
const MAPS: &str = "/api/v1/namespaces/transcript/configmaps";
const SECRET: &str = "/api/v1/namespaces/transcript/secrets/hidden";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/transcript/leases/lead";
const POD: &str = "/api/v1/namespaces/transcript/pods/idle";

fn widget(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "transcript.dormouse.dev/v1",
        "kind": "Widget",
        "metadata": {"name": name, "labels": {"of": "transcript"}},
        "spec": spec,
    })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.transcript.dormouse.dev"},
        "spec": {
            "group": "transcript.dormouse.dev",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.colour"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["size"], "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "colour": {"type": "string", "enum": ["red", "blue"]},
                        "shape": {"type": "string", "default": "round"},
                        "parts": {"type": "array", "items": {"type": "string"}},
                        "notes": {"type": "object", "additionalProperties": {"type": "string"}},
                    }},
                    "status": {"type": "object", "properties": {
                        "phase": {"type": "string"},
                        "observed": {"type": "integer"},
                    }},
                }}},
            }],
        },
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "idle"},
        // Nobody schedules it, so nothing happens to it by itself.
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "registry.example/a:1"}],
        },
    })
}

pub(super) fn script() -> Vec<Step> {
    let mut steps = setup();
    steps.extend(creates());
    steps.extend(updates());
    steps.extend(patches());
    steps.extend(applies());
    steps.extend(lists_and_watches());
    steps.extend(built_in());
    steps.extend(node());
    steps.extend(deletes());
    steps.extend(cleanup());
    steps
}

fn setup() -> Vec<Step> {
    vec![
        get("a kind that nobody defined is not found", WIDGETS),
        post("define a kind", DEFINITIONS, definition()),
        post("define it again", DEFINITIONS, definition()),
        until(
            200,
            get(
                "wait until it is served",
                "/apis/transcript.dormouse.dev/v1/widgets",
            ),
        ),
        post(
            "create in a namespace that is not there",
            WIDGETS,
            widget("one", &json!({"size": 1})),
        ),
        post(
            "create a namespace",
            "/api/v1/namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "transcript"}}),
        ),
    ]
}

fn creates() -> Vec<Step> {
    let mut with_status = widget("one", &json!({"size": 1, "colour": "red", "unknown": true}));
    with_status["status"] = json!({"phase": "Claimed"});
    let mut versioned = widget("versioned", &json!({"size": 1}));
    versioned["metadata"]["resourceVersion"] = "5".into();
    vec![
        keep(
            "one",
            post(
                "create; status and unknown fields are dropped, defaults filled in",
                WIDGETS,
                with_status,
            ),
        ),
        post(
            "create what is there",
            WIDGETS,
            widget("one", &json!({"size": 2})),
        ),
        post(
            "create with a value below its minimum",
            WIDGETS,
            widget("small", &json!({"size": 0})),
        ),
        post(
            "create with a value of the wrong type",
            WIDGETS,
            widget("typed", &json!({"size": "big"})),
        ),
        post(
            "create with a value that is not listed",
            WIDGETS,
            widget("green", &json!({"size": 1, "colour": "green"})),
        ),
        post(
            "create without a required field",
            WIDGETS,
            widget("lacking", &json!({})),
        ),
        post("create with a version", WIDGETS, versioned),
        post(
            "create with a bad name",
            WIDGETS,
            widget("Not_A_Name", &json!({"size": 1})),
        ),
        post(
            "create without a name",
            WIDGETS,
            json!({"apiVersion": "transcript.dormouse.dev/v1", "kind": "Widget", "spec": {"size": 1}}),
        ),
        post(
            "create of another kind than the path's",
            WIDGETS,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}),
        ),
        post("create what is no JSON", WIDGETS, Value::String("{".into())),
        post(
            "try to create",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?dryRun=All",
            widget("tried", &json!({"size": 1})),
        ),
        post(
            "create strictly with an unknown field",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?fieldValidation=Strict",
            widget("strict", &json!({"size": 1, "unknown": true})),
        ),
        get(
            "what was tried is not there",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/tried",
        ),
        get("read", ONE),
        get(
            "read what is not there",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/none",
        ),
    ]
}

fn updates() -> Vec<Step> {
    let at = |version: &str, size: u32| {
        let mut object = widget("one", &json!({"size": size, "colour": "red"}));
        object["metadata"]["resourceVersion"] = version.into();
        object
    };
    let mut unversioned = widget("one", &json!({"size": 9}));
    unversioned["metadata"]["labels"] = json!({});
    let mut other_uid = at("${one/metadata/resourceVersion}", 3);
    other_uid["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
    let mut renamed = at("${one/metadata/resourceVersion}", 3);
    renamed["metadata"]["name"] = "two".into();
    let mut status = at("${two/metadata/resourceVersion}", 7);
    status["status"] = json!({"phase": "Ready", "observed": 2, "unknown": 1});
    let mut labelled = at("${three/metadata/resourceVersion}", 2);
    labelled["metadata"]["labels"] = json!({"of": "transcript", "new": "yes"});
    vec![
        keep(
            "two",
            put(
                "replace: the generation counts",
                ONE,
                at("${one/metadata/resourceVersion}", 2),
            ),
        ),
        put(
            "replace an older version",
            ONE,
            at("${one/metadata/resourceVersion}", 3),
        ),
        put(
            "replace by the same changes nothing",
            ONE,
            at("${two/metadata/resourceVersion}", 2),
        ),
        put("replace without a version", ONE, unversioned),
        put("replace one with another uid", ONE, other_uid),
        put("replace by one with another name", ONE, renamed),
        put(
            "replace what is not there",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/none",
            {
                let mut object = widget("none", &json!({"size": 1}));
                object["metadata"]["resourceVersion"] = "${one/metadata/resourceVersion}".into();
                object
            },
        ),
        keep(
            "three",
            put("replace the status: the spec stays", ONE_STATUS, status),
        ),
        put(
            "replace labels: the generation stays, and the status",
            ONE,
            labelled,
        ),
        get("read the status", ONE_STATUS),
        put(
            "replace the status of an older version",
            ONE_STATUS,
            at("${one/metadata/resourceVersion}", 2),
        ),
    ]
}

fn patches() -> Vec<Step> {
    vec![
        patch(
            "merge",
            ONE,
            MERGE,
            json!({"spec": {"colour": "blue", "notes": {"a": "1", "b": "2"}}, "status": {"phase": "Ignored"}}),
        ),
        patch(
            "merge null away",
            ONE,
            MERGE,
            json!({"spec": {"notes": {"a": null}, "colour": null}}),
        ),
        patch("merge nothing", ONE, MERGE, json!({})),
        patch(
            "merge into an older version",
            ONE,
            MERGE,
            json!({"metadata": {"resourceVersion": "${one/metadata/resourceVersion}"}, "spec": {"size": 5}}),
        ),
        patch(
            "merge what does not fit",
            ONE,
            MERGE,
            json!({"spec": {"size": 0}}),
        ),
        patch(
            "merge into the status",
            ONE_STATUS,
            MERGE,
            json!({"status": {"phase": "Merged"}, "spec": {"size": 50}}),
        ),
        patch(
            "merge into what is not there",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/none",
            MERGE,
            json!({"spec": {"size": 5}}),
        ),
        patch(
            "operate",
            ONE,
            PATCH,
            json!([{"op": "test", "path": "/spec/size", "value": 2}, {"op": "replace", "path": "/spec/size", "value": 4}, {"op": "add", "path": "/spec/parts", "value": ["x"]}]),
        ),
        patch(
            "operate where a test fails",
            ONE,
            PATCH,
            json!([{"op": "test", "path": "/spec/size", "value": 2}]),
        ),
        patch(
            "operate on what is not there",
            ONE,
            PATCH,
            json!([{"op": "remove", "path": "/spec/none"}]),
        ),
        patch(
            "patch a custom resource strategically",
            ONE,
            STRATEGIC,
            json!({"spec": {"size": 5}}),
        ),
        patch(
            "patch by a type that is none",
            ONE,
            JSON,
            json!({"spec": {"size": 5}}),
        ),
        patch(
            "try to merge",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/one?dryRun=All",
            MERGE,
            json!({"spec": {"size": 77}}),
        ),
        get("what was tried did not happen", ONE),
    ]
}

fn applies() -> Vec<Step> {
    const AS_A: &str =
        "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/two?fieldManager=a";
    const AS_A_FORCED: &str = "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/two?fieldManager=a&force=true";
    const AS_B: &str =
        "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets/two?fieldManager=b";
    vec![
        patch(
            "apply what is not there",
            AS_A,
            APPLY,
            widget(
                "two",
                &json!({"size": 1, "colour": "red", "notes": {"a": "1"}}),
            ),
        ),
        patch(
            "apply the same again",
            AS_A,
            APPLY,
            widget(
                "two",
                &json!({"size": 1, "colour": "red", "notes": {"a": "1"}}),
            ),
        ),
        patch(
            "apply less: the rest goes",
            AS_A,
            APPLY,
            widget("two", &json!({"size": 1, "notes": {"a": "2"}})),
        ),
        patch(
            "apply as another: both stay",
            AS_B,
            APPLY,
            widget("two", &json!({"size": 1, "notes": {"b": "1"}})),
        ),
        patch(
            "apply against another",
            AS_B,
            APPLY,
            widget("two", &json!({"size": 1, "notes": {"a": "3", "b": "1"}})),
        ),
        patch(
            "apply by force",
            AS_A_FORCED,
            APPLY,
            widget("two", &json!({"size": 3, "notes": {"a": "4", "b": "5"}})),
        ),
        patch(
            "apply without a manager",
            TWO,
            APPLY,
            widget("two", &json!({"size": 1})),
        ),
        get("what was applied", TWO),
    ]
}

fn lists_and_watches() -> Vec<Step> {
    vec![
        keep("all", get("list", WIDGETS)),
        keep(
            "page",
            get(
                "list a page",
                "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?limit=1",
            ),
        ),
        get(
            "list the next page",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?limit=1&continue=${page/metadata/continue}",
        ),
        get(
            "list by a continuation that is none",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?limit=1&continue=zzz",
        ),
        get(
            "list by labels",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?labelSelector=new%3Dyes,of%20in%20(transcript,other)",
        ),
        get(
            "list by a field",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?fieldSelector=metadata.name%3Dtwo",
        ),
        get(
            "list by a field of the kind",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?fieldSelector=spec.colour%3Dgreen",
        ),
        get(
            "list by a field that is none",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?fieldSelector=spec.size%3D1",
        ),
        get(
            "list by a selector that is none",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?labelSelector=a%20b",
        ),
        get(
            "list in all namespaces",
            "/apis/transcript.dormouse.dev/v1/widgets",
        ),
        get(
            "watch from the beginning",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?watch=true&timeoutSeconds=1",
        ),
        patch(
            "change something to be watched",
            ONE,
            MERGE,
            json!({"metadata": {"labels": {"new": null}}}),
        ),
        patch(
            "change something else",
            TWO,
            MERGE,
            json!({"spec": {"size": 6}}),
        ),
        get(
            "watch from a version",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?watch=true&timeoutSeconds=1&resourceVersion=${all/metadata/resourceVersion}",
        ),
        get(
            "watch by labels: what no longer fits is gone",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?watch=true&timeoutSeconds=1&labelSelector=new%3Dyes&resourceVersion=${all/metadata/resourceVersion}",
        ),
        get(
            "watch from too long ago",
            "/api/v1/namespaces/transcript/configmaps?watch=true&timeoutSeconds=1&resourceVersion=1",
        ),
        get(
            "watch from the beginning, and be told of its end",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?watch=true&timeoutSeconds=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        ),
    ]
}

fn built_in() -> Vec<Step> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}, "data": {"a": "1"}});
    let unnamed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Bad_Name"}, "data": {"a": "1"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"word": "hush"}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lead"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    let lease_at = |holder: &str| {
        let mut lease = lease.clone();
        lease["metadata"]["resourceVersion"] = "${lease/metadata/resourceVersion}".into();
        lease["spec"]["holderIdentity"] = holder.into();
        lease
    };
    let mut replaced = map.clone();
    replaced["data"] = json!({"b": "2"});
    vec![
        post("create a ConfigMap", MAPS, map),
        post("create a ConfigMap with a bad name", MAPS, unnamed),
        put(
            "replace a ConfigMap without a version",
            "/api/v1/namespaces/transcript/configmaps/plain",
            replaced,
        ),
        patch(
            "patch a ConfigMap strategically",
            "/api/v1/namespaces/transcript/configmaps/plain",
            STRATEGIC,
            json!({"data": {"c": "3"}}),
        ),
        get(
            "a ConfigMap has no status",
            "/api/v1/namespaces/transcript/configmaps/plain/status",
        ),
        post(
            "create a Secret from text",
            "/api/v1/namespaces/transcript/secrets",
            secret,
        ),
        get("read a Secret", SECRET),
        keep(
            "lease",
            post(
                "create a Lease",
                "/apis/coordination.k8s.io/v1/namespaces/transcript/leases",
                lease.clone(),
            ),
        ),
        put("take a Lease", LEASE, lease_at("b")),
        put("take a Lease that was taken", LEASE, lease_at("c")),
        put("take a Lease without a version", LEASE, lease.clone()),
        keep(
            "pod",
            post("create a Pod", "/api/v1/namespaces/transcript/pods", pod()),
        ),
        patch(
            "change the image of a Pod",
            POD,
            STRATEGIC,
            json!({"spec": {"containers": [{"name": "main", "image": "registry.example/a:2"}]}}),
        ),
        patch(
            "change what cannot be changed of a Pod",
            POD,
            MERGE,
            json!({"spec": {"restartPolicy": "Never"}}),
        ),
        patch(
            "change the status of a Pod",
            "/api/v1/namespaces/transcript/pods/idle/status",
            MERGE,
            json!({"status": {"phase": "Running"}}),
        ),
        get(
            "list Pods by phase",
            "/api/v1/namespaces/transcript/pods?fieldSelector=status.phase%3DRunning",
        ),
        post(
            "create a Pod without containers",
            "/api/v1/namespaces/transcript/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "empty"}, "spec": {"containers": []}}),
        ),
    ]
}

/// What a node does. The image is one that the recorded cluster has.
fn node() -> Vec<Step> {
    const BUSY: &str = "/api/v1/namespaces/transcript/pods/busy";
    const JOB: &str = "/apis/batch/v1/namespaces/transcript/jobs/short";
    let container = |command: &[&str]| json!({"name": "main", "image": "localhost/busybox:1", "command": command});
    let busy = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "busy"},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "containers": [container(&["/bin/busybox", "sleep", "3600"])],
        },
    });
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "short"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "containers": [container(&["/bin/busybox", "true"])],
        }}},
    });
    let mut always = job.clone();
    always["spec"]["template"]["spec"]["restartPolicy"] = "Always".into();
    vec![
        post(
            "create a Pod that runs",
            "/api/v1/namespaces/transcript/pods",
            busy,
        ),
        until_is("/status/phase", "Running", get("wait until it runs", BUSY)),
        delete(
            "delete a Pod that runs: it is given time",
            BUSY,
            Value::Null,
        ),
        until(404, get("wait until it has ended", BUSY)),
        post(
            "create a Job that never ends",
            "/apis/batch/v1/namespaces/transcript/jobs",
            always,
        ),
        post(
            "create a Job",
            "/apis/batch/v1/namespaces/transcript/jobs",
            job,
        ),
        until_is(
            "/status/conditions/1/type",
            "Complete",
            get("wait until it is complete", JOB),
        ),
        get(
            "its Pod succeeded",
            "/api/v1/namespaces/transcript/pods?labelSelector=job-name%3Dshort&fieldSelector=status.phase%3DSucceeded",
        ),
        delete(
            "delete the Job",
            "/apis/batch/v1/namespaces/transcript/jobs/short?propagationPolicy=Background",
            Value::Null,
        ),
        until(404, get("wait until it is gone", JOB)),
    ]
}

fn deletes() -> Vec<Step> {
    let owned = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": "transcript.dormouse.dev/v1",
            "kind": "Widget",
            "name": "two",
            "uid": "${applied/metadata/uid}",
        }]},
    });
    vec![
        delete(
            "delete another than is there",
            ONE,
            json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        ),
        delete(
            "delete an older version",
            ONE,
            json!({"preconditions": {"resourceVersion": "${one/metadata/resourceVersion}"}}),
        ),
        patch(
            "add a finalizer",
            ONE,
            MERGE,
            json!({"metadata": {"finalizers": ["transcript.dormouse.dev/hold"]}}),
        ),
        delete("delete what is held", ONE, Value::Null),
        delete("delete what is going", ONE, Value::Null),
        patch(
            "add a finalizer to what is going",
            ONE,
            MERGE,
            json!({"metadata": {"finalizers": ["transcript.dormouse.dev/hold", "transcript.dormouse.dev/more"]}}),
        ),
        patch(
            "let it go",
            ONE,
            MERGE,
            json!({"metadata": {"finalizers": null}}),
        ),
        get("it is gone", ONE),
        keep("applied", get("read an owner", TWO)),
        post("create what it owns", MAPS, owned),
        delete("delete the owner", TWO, Value::Null),
        delete("delete what is gone", TWO, Value::Null),
        until(
            404,
            get(
                "what it owned goes too",
                "/api/v1/namespaces/transcript/configmaps/owned",
            ),
        ),
        delete("delete a Pod that runs nowhere", POD, Value::Null),
        get("it is gone at once", POD),
        post(
            "create one more",
            WIDGETS,
            widget("three", &json!({"size": 1})),
        ),
        delete(
            "delete all that match",
            "/apis/transcript.dormouse.dev/v1/namespaces/transcript/widgets?labelSelector=of%3Dtranscript",
            Value::Null,
        ),
        get("none is left", WIDGETS),
    ]
}

fn cleanup() -> Vec<Step> {
    vec![
        delete(
            "delete the namespace",
            "/api/v1/namespaces/transcript",
            Value::Null,
        ),
        until(
            404,
            get("wait until it is gone", "/api/v1/namespaces/transcript"),
        ),
        delete("delete the definition", DEFINITION, Value::Null),
        until(
            404,
            get(
                "its kind is served no longer",
                "/apis/transcript.dormouse.dev/v1/widgets",
            ),
        ),
    ]
}
